"""Openings, mutations and refusals of the recipes."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from recipe_calls import Call, call, card

from forge_tui.proposers.recipes import registry
from forge_tui.proposers.recipes.recipe import Recipe
from forge_tui.records.candidate import Candidate, Draft
from forge_tui.records.card import Dim, VariantKey
from forge_tui.records.plan import check_against

r = torch.randn
SOME = {
    "gelu": call("aten::gelu", self=r(4, 64)),
    "softmax": call("aten::softmax.int", self=r(1, 20000), dim=-1),
    "max_pool": call("aten::max_pool2d", self=r(1, 2, 20, 20), kernel_size=[3, 3], stride=[2, 2], padding=[1, 1]),
    "linear": call("aten::linear", input=r(2, 48), weight=r(29, 48)),
    "layer_norm": call("aten::layer_norm", input=r(4, 64), normalized_shape=[64]),
    "attention": call(
        "aten::scaled_dot_product_attention", query=r(1, 2, 5, 32), key=r(1, 2, 7, 32), value=r(1, 2, 7, 32)
    ),
}


def node(draft: Draft, proposer: str = "recipe") -> Candidate:
    return Candidate("n1", "c1", draft.language, "T3", draft.source, draft.plan, proposer, detail=draft.detail)


@pytest.mark.parametrize("name", SOME)
def test_openings_are_different_and_their_plans_fit_the_card(name: str) -> None:
    key = SOME[name].key
    drafts = registry.first_drafts(card(key), 2)
    assert 2 <= len(drafts) <= 6
    assert len({registry.digest(d) for d in drafts}) == len({d.source for d in drafts}) == len(drafts)
    for draft in drafts:
        assert check_against(draft.plan, key) == []
        assert draft.detail is not None and draft.detail["point"] == draft.plan.tunables
        assert draft.technique


@pytest.mark.parametrize("name", SOME)
def test_mutation_walks_the_whole_space_once_and_ends(name: str) -> None:
    made = card(SOME[name].key)
    rng = random.Random(3)
    parent = node(registry.first_drafts(made, 2)[0])
    seen = {parent.digest()}
    while (draft := registry.mutate(made, parent, 2, rng, seen)) is not None:
        assert registry.digest(draft) not in seen
        seen.add(registry.digest(draft))
        if rng.random() < 0.3:
            parent = node(draft)
        assert len(seen) < 3000
    assert len(seen) == sum(count_points(recipe, made.key) for recipe in registry.recipes_for(made.key))


def count_points(recipe: Recipe, key: VariantKey) -> int:
    """Points reachable by single changes from the openings."""
    found: list[dict[str, object]] = list(recipe.first_points(key, 2))
    for point in found:
        found += [p for p in recipe.neighbours(key, point, 2) if p not in found]
    return len(found)


def test_a_mutation_changes_one_tunable_of_its_parent() -> None:
    made = card(SOME["linear"].key)
    parent = node(registry.first_drafts(made, 2)[0])
    for seed in range(20):
        draft = registry.mutate(made, parent, 2, random.Random(seed), {parent.digest()})
        assert draft is not None
        changed = [k for k, v in draft.plan.tunables.items() if parent.plan.tunables[k] != v]
        assert len(changed) == 1


def test_the_same_seed_draws_the_same_mutation() -> None:
    made = card(SOME["gelu"].key)
    parent = node(registry.first_drafts(made, 2)[0])
    first, second = (registry.mutate(made, parent, 2, random.Random(9), {parent.digest()}) for _ in range(2))
    assert first == second


def test_a_parent_from_elsewhere_is_followed_by_the_openings() -> None:
    made = card(SOME["gelu"].key)
    drafts = registry.first_drafts(made, 2)
    stranger = node(dataclasses.replace(drafts[0], source="// written by a person", detail=None), "editor")
    draft = registry.mutate(made, stranger, 2, random.Random(1), {registry.digest(drafts[0])})
    assert draft == drafts[1]


def test_a_stored_point_that_no_longer_exists_does_not_break_mutation() -> None:
    made = card(SOME["gelu"].key)
    draft = registry.first_drafts(made, 2)[0]
    old = dataclasses.replace(draft, detail={"recipe": "pointwise", "point": {"gone": 1}})
    assert registry.mutate(made, node(old), 2, random.Random(1), set()) is not None


def test_one_thread_leaves_no_parallel_points() -> None:
    for made in SOME.values():
        for draft in registry.first_drafts(card(made.key), 1):
            assert draft.plan.tunables["threads"] == 1


def test_an_operator_without_a_recipe_gets_no_drafts() -> None:
    key = call("aten::cumsum", self=r(3, 4), dim=1).key
    assert registry.first_drafts(card(key), 2) == []
    assert registry.refusals(key) == []
    assert (
        registry.mutate(
            card(key), node(registry.first_drafts(card(SOME["gelu"].key), 1)[0]), 2, random.Random(1), set()
        )
        is None
    )


REFUSED: dict[str, tuple[Call, str]] = {
    "transposed": (call("aten::softmax.int", self=r(5, 6).t(), dim=-1), "not contiguous"),
    "dim 0": (call("aten::softmax.int", self=r(5, 6), dim=0), "not the last"),
    "half": (call("aten::gelu", self=r(5).half()), "float16"),
    "float64": (call("aten::layer_norm", input=r(5, 6).double(), normalized_shape=[6]), "float64"),
    "integers": (call("aten::add.Tensor", self=torch.arange(3), other=torch.arange(3)), "int64"),
    "empty": (call("aten::relu", self=r(0, 3)), "empty"),
    "alpha": (call("aten::add.Tensor", self=r(3), other=r(3), alpha=2), "alpha"),
    "cube root": (call("aten::pow.Tensor_Scalar", self=r(3), exponent=0.33), "exponent"),
    "middle broadcast": (call("aten::add.Tensor", self=r(3, 4, 5), other=r(3, 1, 5)), "several"),
    "mixed layouts": (call("aten::add.Tensor", self=r(4, 5), other=r(5, 4).t()), "layout"),
    "expanded": (call("aten::relu", self=r(1, 4).expand(3, 4)), "layout"),
    "dilated": (call("aten::max_pool2d", self=r(1, 9, 9), kernel_size=[3], dilation=[2]), "dilated"),
    "ceil": (call("aten::max_pool2d", self=r(1, 9, 9), kernel_size=[2], ceil_mode=True), "ceil"),
    "to 7x7": (call("aten::adaptive_avg_pool2d", self=r(1, 9, 9), output_size=[7, 7]), "1x1"),
    "first dim": (call("aten::mean.dim", self=r(4, 5), dim=[0]), "trailing"),
    "many rows": (call("aten::linear", input=r(300, 8), weight=r(8, 8)), "rows"),
    "weight transposed": (call("aten::linear", input=r(3, 8), weight=r(8, 6).t()), "not contiguous"),
    "head of 20": (call("aten::scaled_dot_product_attention", query=r(1, 1, 3, 20), key=r(1, 1, 3, 20), value=r(1, 1, 3, 20)), "head"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_recipe_says_why_it_refuses(name: str) -> None:
    made, word = REFUSED[name]
    assert registry.recipes_for(made.key) == []
    assert word in " ".join(registry.refusals(made.key))


def test_training_autocast_and_other_devices_are_refused() -> None:
    norm = {"weight": r(3), "bias": r(3), "running_mean": r(3), "running_var": r(3).abs()}
    training = call(
        "aten::batch_norm", input=r(2, 3, 4), **norm, training=True, momentum=0.1, eps=1e-5, cudnn_enabled=True
    )
    assert registry.refusals(training.key) == ["training mode"]
    key = SOME["gelu"].key
    assert "autocast" in registry.refusals(dataclasses.replace(key, autocast="bfloat16"))[0]
    on_gpu = tuple(dataclasses.replace(t, device="cuda:0") for t in key.tensors)
    assert "CPU" in registry.refusals(dataclasses.replace(key, tensors=on_gpu))[0]


def test_an_argument_that_shares_memory_with_the_written_one_is_refused() -> None:
    key = call("aten::add_.Tensor", self=r(5), other=r(5)).key
    shared = (key.tensors[0], dataclasses.replace(key.tensors[1], shares=0))
    assert registry.recipes_for(key)
    assert "share" in registry.refusals(dataclasses.replace(key, tensors=shared))[0]


def test_ranges_with_different_symbols_are_not_taken_for_equal_sizes() -> None:
    key = call("aten::add.Tensor", self=r(6, 4), other=r(6, 4)).key

    def ranged(index: int, symbol: str) -> object:
        spec = key.tensors[index]
        return dataclasses.replace(spec, dims=(Dim(1, 64, 1, symbol), spec.dims[1]))

    out = dataclasses.replace(key.outputs[0], dims=(Dim(1, 64, 1, "n"), key.outputs[0].dims[1]))
    same = dataclasses.replace(key, tensors=(ranged(0, "n"), ranged(1, "n")), outputs=(out,))
    other = dataclasses.replace(key, tensors=(ranged(0, "n"), ranged(1, "m")), outputs=(out,))
    assert registry.recipes_for(same)
    assert registry.recipes_for(other) == []
