"""Exact keys fold into families only where they belong together, and every member is admitted by its family."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from forge_tui.capture.capture import capture
from forge_tui.capture.describe import call_of, operator_of, results_of, signature, variant_key
from forge_tui.capture.families import Fold, Member, fold, form
from forge_tui.records.card import VariantKey
from forge_tui.records.codec import dumps, loads
from forge_tui.records.expr import value_of
from forge_tui.workload.workload import InputSet, Workload


def key_of(op: object, *args: object, **kwargs: object) -> VariantKey:
    call = call_of(operator_of(op), args, dict(kwargs))
    with torch.no_grad():
        results = results_of(op(*args, **kwargs))  # type: ignore[operator]
    return variant_key(call, results, frozenset(), "", ())


def softmax_key(*sizes: int) -> VariantKey:
    return key_of(torch.ops.aten.softmax.int, torch.zeros(sizes), -1)


def members(*keys: VariantKey, modules: tuple[str, ...] = ("m",)) -> list[Member]:
    return [Member(key, frozenset(modules)) for key in keys]


def admits(family: VariantKey, key: VariantKey) -> bool:
    symbols: dict[str, int] = {}
    for wide, narrow in zip(family.tensors, key.tensors, strict=True):
        for dim, size in zip(wide.dims, narrow.sizes, strict=True):
            if not dim.admits(size):
                return False
            if not dim.exact and symbols.setdefault(dim.symbol, size) != size:
                return False
    return all(
        (dim.lo if dim.exact else value_of(dim.symbol, symbols)) == size
        for wide, narrow in zip(family.outputs, key.outputs, strict=True)
        for dim, size in zip(wide.dims, narrow.sizes, strict=True)
    )


def test_growing_lengths_fold_into_one_family_with_divisibility() -> None:
    folds = fold(members(*(softmax_key(1, 9, n, 3) for n in (16, 24, 32, 40))))
    assert len(folds) == 1 and folds[0].members == (0, 1, 2, 3)
    for spec in (folds[0].key.tensors[0], folds[0].key.outputs[0]):
        assert [(d.lo, d.hi, d.multiple, d.symbol) for d in spec.dims][2] == (16, 40, 8, "s0")
        assert [d.exact for d in spec.dims] == [True, True, False, True]


def test_a_size_seen_once_and_size_one_stay_exact() -> None:
    folds = fold(members(softmax_key(1, 64), softmax_key(7, 64), softmax_key(8, 64), softmax_key(400, 64)))
    assert sorted(f.members for f in folds) == [(0,), (1, 2), (3,)]


def test_different_places_in_the_model_never_fold() -> None:
    keys = [softmax_key(4, n) for n in (8, 9, 10)]
    apart = [Member(key, frozenset({f"layer{n}"})) for n, key in enumerate(keys)]
    assert [f.members for f in fold(apart)] == [(0,), (1,), (2,)]


def test_a_doubling_inside_one_module_is_two_places_not_a_length() -> None:
    channels = fold(members(softmax_key(1, 64, 32, 32), softmax_key(1, 128, 32, 32)))
    assert [f.members for f in channels] == [(0,), (1,)]


def test_two_sizes_that_move_apart_do_not_fold() -> None:
    folds = fold(members(softmax_key(4, 8), softmax_key(5, 9), softmax_key(6, 11)))
    assert all(f.key.exact for f in folds)


def test_attention_over_a_growing_cache_folds_keys_and_values_together() -> None:
    attention = torch.ops.aten.scaled_dot_product_attention.default
    keys = [key_of(attention, torch.zeros(1, 3, 1, 8), kv := torch.zeros(1, 3, n, 8), kv) for n in range(5, 15)]
    (family,) = fold(members(*keys))
    symbols = [d.symbol for t in family.key.tensors for d in t.dims if not d.exact]
    assert symbols == ["s0", "s0"] and family.key.outputs[0].dims == keys[0].outputs[0].dims


def test_a_result_that_is_longer_by_one_is_an_expression_of_the_symbol() -> None:
    keys = [key_of(torch.ops.aten.cat.default, [torch.zeros(2, n, 4), torch.zeros(2, 1, 4)], 1) for n in (5, 6, 7)]
    (family,) = fold(members(*keys))
    assert family.key.outputs[0].dims[1].symbol == "s0+1" and family.key.outputs[0].dims[1].lo == 6


def test_strided_members_fold_only_when_their_strides_agree() -> None:
    def step(n: int, width: int) -> VariantKey:
        return key_of(torch.ops.aten.relu.default, torch.zeros(n, width)[:, :8])

    assert len(fold(members(step(4, 16), step(5, 16), step(6, 16)))) == 1
    assert len(fold(members(step(4, 16), step(5, 17), step(6, 18)))) == 3


def test_weights_of_different_sizes_never_fold() -> None:
    def linear(rows: int) -> VariantKey:
        key = key_of(torch.ops.aten.linear.default, torch.zeros(3, 8), torch.zeros(rows, 8))
        return replace(key, tensors=(key.tensors[0], replace(key.tensors[1], parameter=True)))

    assert len(fold(members(linear(6), linear(7), linear(8)))) == 3


SHAPES = st.lists(st.tuples(*[st.integers(0, 12)] * 3), min_size=1, max_size=14, unique=True)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.lists(st.sampled_from("abc"), min_size=14, max_size=14))
def test_every_key_lands_in_exactly_one_fold_that_admits_it(shapes: list[tuple[int, ...]], places: list[str]) -> None:
    keys = [softmax_key(*shape) for shape in shapes]
    folds: list[Fold] = fold([Member(k, frozenset({p})) for k, p in zip(keys, places, strict=False)])
    assert sorted(n for f in folds for n in f.members) == list(range(len(keys)))
    for f in folds:
        assert all(admits(f.key, keys[n]) and form(keys[n]) == form(f.key) for n in f.members)
        assert f.key.tensors[0].sizes == keys[f.members[0]].tensors[0].sizes
        assert loads(VariantKey, dumps(f.key)).digest() == f.key.digest()


VIEWS = {
    "plain": lambda t: t,
    "transposed": lambda t: t.transpose(0, 1),
    "stepped": lambda t: t[:, ::2],
    "expanded": lambda t: t[:, :1].expand(-1, 6),
    "offset": lambda t: t[1:],
}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(VIEWS)),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]),
    st.sampled_from([1, 1.0, True, float("inf"), float("-inf")]),
    st.tuples(st.integers(2, 6), st.integers(1, 6)),
)
def test_keys_keep_everything_through_json_and_differ_where_calls_differ(
    view: str, dtype: torch.dtype, number: float, sizes: tuple[int, int]
) -> None:
    tensor = VIEWS[view](torch.zeros(sizes).to(dtype))
    op = torch.ops.aten.eq.Scalar
    key = key_of(op, tensor, number)
    again = loads(VariantKey, dumps(key))
    assert again.digest() == key.digest() and again.tensors == key.tensors
    spec = key.tensors[0]
    assert (spec.sizes, spec.strides, spec.dtype) == (tuple(tensor.shape), tensor.stride(), str(tensor.dtype)[6:])
    assert float(again.args[1].value) == float(number)
    operator = operator_of(op)
    identity = signature(call_of(operator, (tensor, number), {}), frozenset(), ())
    for other in (1, 1.0, True, 2, float("inf"), float("-inf")):
        same = type(other) is type(number) and other == number
        assert (signature(call_of(operator, (tensor, other), {}), frozenset(), ()) == identity) == same


class Decoder(nn.Module):
    """A tiny language model with a growing cache, written out by hand."""

    def __init__(self, layers: int = 2, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.head = nn.Linear(width, 50)

    def forward(self, ids: torch.Tensor, steps: int) -> torch.Tensor:
        cache: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * len(self.qkv)
        for _ in range(steps):
            x = self.embed(ids[:, -1:] if cache[0] is not None else ids)
            for n, layer in enumerate(self.qkv):
                q, k, v = layer(x).chunk(3, dim=-1)
                if (old := cache[n]) is not None:
                    k, v = torch.cat((old[0], k), 1), torch.cat((old[1], v), 1)
                cache[n] = (k, v)
                x = x + F.rms_norm(torch.softmax(q @ k.transpose(1, 2), -1) @ v, (16,))
            ids = torch.cat((ids, self.head(x[:, -1]).argmax(-1, keepdim=True)), 1)
        return ids


def test_a_decode_loop_needs_few_cards_with_samples_at_both_ends(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Decoder().eval()
    workload = Workload(
        "decoder", "model", model, {"": model}, (InputSet("a", (torch.ones(1, 4, dtype=torch.long), 20)),)
    )
    result = capture(workload, tmp_path, 8 << 20, runs=1)
    assert result.bit_equal is True
    softmax = [c for c in result.cards if c.key.base_op == "softmax"]
    assert sorted(c.calls for c in softmax) == [2, 38]
    family = max(softmax, key=lambda c: c.calls)
    assert [(d.lo, d.hi) for d in family.key.tensors[0].dims] == [(1, 1), (1, 1), (5, 23)]
    assert [s.tensors[0].sizes[-1] for s in family.samples] == [5, 23, 14]
    # Views whose strides grow with the cache (k.transpose, ids[:, -1:]) keep an exact card per length: a guard compares them.
    folded = [c for c in result.cards if c.key.base_op in ("softmax", "cat", "add", "rms_norm", "linear")]
    assert len(folded) <= 13 and sum(c.calls for c in folded) > 250
    assert sum(c.calls for c in result.cards) + sum(n.calls for n in result.not_seen) == result.calls


def test_a_transformers_llama_decode_folds_into_families(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.arange(6)[None]

    def run() -> torch.Tensor:
        with torch.inference_mode():
            return model.generate(ids, max_new_tokens=16, min_new_tokens=16, do_sample=False, pad_token_id=0)

    workload = Workload("llama", "callable", run, {"": model}, (InputSet("run"),), own_grad=True)
    result = capture(workload, tmp_path, 8 << 20, runs=1)
    assert result.bit_equal is True
    attention = [c for c in result.cards if c.key.base_op == "scaled_dot_product_attention"]
    assert sum(c.calls for c in attention) == 2 * 16 and len(attention) <= 3
    family = max(attention, key=lambda c: c.calls)
    assert not family.key.exact and family.modules == ("model.layers.0.self_attn", "model.layers.1.self_attn")
