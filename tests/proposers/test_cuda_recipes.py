"""CUDA recipes without a device: sources compile, plans fit, mutation ends, refusals say why."""

from __future__ import annotations

import dataclasses
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from cuda_calls import compile_cubin, cuda_key, meta
from recipe_calls import card

from forge_tui.languages.cubin import check_plan, kernels_of
from forge_tui.languages.cuda_audit import audit_device_source
from forge_tui.proposers.recipes import registry
from forge_tui.records.candidate import Candidate, Draft
from forge_tui.records.card import Dim, VariantKey
from forge_tui.records.plan import check_against

INDICES = torch.empty((3, 7), dtype=torch.int64, device="meta")
KEYS: dict[str, VariantKey] = {
    "softmax short": cuda_key("aten::softmax.int", self=meta(4, 5, 77, dtype="float16"), dim=-1),
    "softmax long": cuda_key("aten::softmax.int", self=meta(32, 40_000), dim=-1),
    "softmax to float32": cuda_key("aten::softmax.int", self=meta(9, 1024), dim=1, dtype=torch.float32),
    "layer_norm": cuda_key("aten::layer_norm", input=meta(6, 1000, dtype="float32"), normalized_shape=[1000], weight=meta(1000, dtype="float32")),
    "rms_norm": cuda_key("aten::rms_norm", input=meta(2, 3, 512), normalized_shape=[512], weight=meta(512), eps=1e-6),
    "group_norm small": cuda_key("aten::group_norm", input=meta(2, 12, 5, 5), num_groups=4, weight=meta(12), bias=meta(12)),
    "group_norm large": cuda_key("aten::group_norm", input=meta(1, 64, 128, 128, dtype="float16"), num_groups=2),
    "group_norm huge": cuda_key("aten::group_norm", input=meta(1, 256, 512, 512), num_groups=32, weight=meta(256), bias=meta(256)),
    "group_norm nhwc": cuda_key("aten::group_norm", input=meta(2, 64, 9, 7).to(memory_format=torch.channels_last), num_groups=8, weight=meta(64)),
    "pool": cuda_key("aten::adaptive_avg_pool2d", self=meta(4, 32, 7, 7, dtype="float32"), output_size=[1, 1]),
    "mean": cuda_key("aten::mean.dim", self=meta(3, 100_000), dim=[-1], keepdim=True),
    "sum of all": cuda_key("aten::sum", self=meta(30, 41, dtype="float32")),
    "linear 1": cuda_key("aten::linear", input=meta(1, 1, 2048), weight=meta(500, 2048), bias=meta(500)),
    "linear 8": cuda_key("aten::linear", input=meta(8, 576, dtype="float16"), weight=meta(100, 576, dtype="float16")),
    "linear float32": cuda_key("aten::linear", input=meta(3, 70, dtype="float32"), weight=meta(33, 70, dtype="float32")),
    "embedding": cuda_key("aten::embedding", weight=meta(1000, 130), indices=INDICES),
    "gelu": cuda_key("aten::gelu", self=meta(5, 333)),
    "tanh": cuda_key("aten::tanh", self=meta(1001, dtype="float16")),
    "relu_": cuda_key("aten::relu_", self=meta(2, 3, 5, dtype="float32")),
    "mul column": cuda_key("aten::mul.Tensor", self=meta(2, 16, 100), other=meta(16, 1)),
    "add row": cuda_key("aten::add.Tensor", self=meta(2, 16, 100), other=meta(100), alpha=0.5),
}  # fmt: skip


def node(draft: Draft) -> Candidate:
    return Candidate("n1", "c1", draft.language, "T1", draft.source, draft.plan, "recipe", detail=draft.detail)


def reachable(key: VariantKey) -> int:
    """Points reachable by single changes from the openings, over all recipes."""
    total = 0
    for recipe in registry.recipes_for(key):
        found = {str(sorted(p.items())): p for p in recipe.first_points(key, 1)}
        queue = list(found.values())
        while queue:
            for p in recipe.neighbours(key, queue.pop(), 1):
                if str(sorted(p.items())) not in found:
                    found[str(sorted(p.items()))] = p
                    queue.append(p)
        total += len(found)
    return total


@pytest.mark.parametrize("name", KEYS)
def test_openings_are_different_device_sources_with_fitting_plans(name: str) -> None:
    drafts = registry.first_drafts(card(KEYS[name]), 2)
    assert drafts and len({registry.digest(d) for d in drafts}) == len(drafts)
    for draft in drafts:
        assert draft.language == "cuda" and draft.expected_gain is None and draft.technique
        assert draft.detail is not None and draft.detail["point"] == draft.plan.tunables
        assert check_against(draft.plan, KEYS[name]) == []
        assert audit_device_source(draft.source) is None


def test_each_kind_of_kernel_compiles_and_its_binary_takes_the_plans_parameters(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the path")
    jobs = []
    for name, key in KEYS.items():
        kinds: dict[tuple[object, ...], Draft] = {}
        for draft in registry.first_drafts(card(key), 2):
            detail = draft.detail or {}
            kind = (detail["recipe"], detail["point"].get("method"), detail["point"].get("blocks", 1) > 1)
            kinds.setdefault(kind, draft)
        jobs += [(f"{name} {i}", key, draft) for i, draft in enumerate(kinds.values())]

    def build(job: tuple[str, VariantKey, Draft]) -> str:
        name, key, draft = job
        cubin, _ = compile_cubin(draft.source, key, tmp_path / name)
        problem = check_plan(draft.plan, key, kernels_of(cubin), "sm_90")
        return f"{name}: {problem.line}" if problem else ""

    with ThreadPoolExecutor(2) as pool:
        assert [line for line in pool.map(build, jobs) if line] == []


@pytest.mark.parametrize("name", ["softmax short", "group_norm small", "pool", "linear float32", "embedding", "gelu"])
def test_mutation_walks_the_whole_space_once_and_ends(name: str) -> None:
    made = card(KEYS[name])
    parent = node(registry.first_drafts(made, 2)[0])
    seen = {parent.digest()}
    rng = random.Random(5)
    while (draft := registry.mutate(made, parent, 2, rng, seen)) is not None:
        assert registry.digest(draft) not in seen
        seen.add(registry.digest(draft))
        if rng.random() < 0.1:
            parent = node(draft)
        if len(seen) >= 250:
            return  # far enough: large spaces are covered by the test of single changes
    assert len(seen) == reachable(KEYS[name])


def test_a_mutation_of_a_huge_group_norm_changes_one_tunable() -> None:
    made = card(KEYS["group_norm huge"])
    for first in registry.first_drafts(made, 2):
        parent = node(first)
        for seed in range(3):
            draft = registry.mutate(made, parent, 2, random.Random(seed), {parent.digest()})
            assert draft is not None
            assert len([k for k, v in draft.plan.tunables.items() if parent.plan.tunables[k] != v]) == 1


def test_cpu_keys_get_cpu_recipes_and_cuda_keys_get_cuda_recipes() -> None:
    key = KEYS["gelu"]
    assert {d.language for d in registry.first_drafts(card(key), 2)} == {"cuda"}
    cpu = dataclasses.replace(
        key,
        tensors=tuple(dataclasses.replace(t, device="cpu") for t in key.tensors),
        outputs=tuple(dataclasses.replace(t, device="cpu") for t in key.outputs),
    )
    assert {d.language for d in registry.first_drafts(card(cpu), 2)} == {"cpp"}


def _ranged() -> VariantKey:
    key = KEYS["gelu"]
    dims = (Dim(5, 64, 1, "rows"), key.tensors[0].dims[1])
    return dataclasses.replace(key, tensors=(dataclasses.replace(key.tensors[0], dims=dims),))


def _two_devices() -> VariantKey:
    key = KEYS["embedding"]
    weight, indices = key.tensors
    return dataclasses.replace(key, tensors=(weight, dataclasses.replace(indices, device="cuda:1")))


REFUSED: dict[str, tuple[VariantKey, str]] = {
    "float64": (cuda_key("aten::relu", self=meta(5, dtype="float64")), "float64"),
    "transposed": (cuda_key("aten::softmax.int", self=meta(8, 9).t(), dim=-1), "not contiguous"),
    "other dim": (cuda_key("aten::softmax.int", self=meta(8, 9), dim=0), "not over the last dimension"),
    "many rows": (cuda_key("aten::linear", input=meta(9, 64), weight=meta(64, 64)), "9 rows"),
    "to 7x7": (cuda_key("aten::adaptive_avg_pool2d", self=meta(1, 2, 9, 9), output_size=[7, 7]), "not to 1x1"),
    "leading dim": (cuda_key("aten::mean.dim", self=meta(4, 5), dim=[0]), "trailing"),
    "autocast": (dataclasses.replace(KEYS["gelu"], autocast="bfloat16"), "autocast"),
    "family": (_ranged(), "sizes vary"),
    "two devices": (_two_devices(), "one CUDA device"),
    "separate dimensions": (cuda_key("aten::add.Tensor", self=meta(3, 4, 5), other=meta(3, 1, 5)), "separate dimensions"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_cuda_recipe_says_why_it_refuses(name: str) -> None:
    key, word = REFUSED[name]
    assert registry.recipes_for(key) == []
    assert word in " ".join(registry.refusals(key))


def test_narrow_alignment_narrows_the_accesses() -> None:
    narrow = cuda_key("aten::softmax.int", alignment=4, self=meta(64, 1024), dim=-1)
    widths = {d.plan.tunables["bytes"] for d in registry.first_drafts(card(narrow), 2)}
    assert widths <= {4, 2} and widths
