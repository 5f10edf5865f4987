"""Recipes compiled with the real compiler give what torch gives: within eager's own error, exact where eager is exact."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recipe_calls import Call, call, card, compile_all, run, spec_of

from forge_tui.proposers.recipes import registry
from forge_tui.records.candidate import Candidate
from forge_tui.records.card import Arg, Dim, VariantKey
from forge_tui.records.dtype import EPS

r = torch.randn
NAN, INF = float("nan"), float("inf")
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1e-42, -1e-42, 1e-38, 3e38, -3e38, -1e-38, 1.0, -20.0, -100.0, 88.5, -88.5]
EXACT = ("relu", "max_pool2d", "embedding", "neg")


def norm_parts(channels: int) -> dict[str, Any]:
    return {"weight": r(channels), "bias": r(channels), "running_mean": r(channels), "running_var": r(channels).abs()}


def attention(heads: int, queries: int, keys: int, head: int, kv_heads: int | None = None, **more: Any) -> Call:
    kv = kv_heads or heads
    given = {
        "query": r(2, queries, heads, head).transpose(1, 2),
        "key": r(2, keys, kv, head).transpose(1, 2),
        "value": r(2, keys, kv, head).transpose(1, 2),
    }
    return call("aten::scaled_dot_product_attention", **given, **more)


def some_calls() -> dict[str, Call]:
    """Sizes with tails, several dtypes and layouts."""
    torch.manual_seed(5)
    pool_input = r(2, 3, 17, 23).round(decimals=1)
    mask = torch.rand(2, 1, 5, 7) > 0.3
    mask[0, 0, 2] = False
    b = torch.bfloat16
    last = r(2, 8, 5, 7).to(memory_format=torch.channels_last)
    return {
        "relu_": call("aten::relu_", self=r(13, 37)),
        "gelu": call("aten::gelu", self=r(13, 37) * 3),
        "gelu tanh": call("aten::gelu", self=r(13, 37) * 3, approximate="tanh"),
        "gelu bf16": call("aten::gelu", self=r(13, 37).to(b)),
        "silu": call("aten::silu", self=r(3, 5, 37) * 5),
        "silu_ channels last": call("aten::silu_", self=last),
        "sigmoid": call("aten::sigmoid", self=r(333) * 8),
        "tanh": call("aten::tanh", self=r(13, 37)),
        "tanh small": call("aten::tanh", self=r(13, 37) * 1e-3),
        "exp": call("aten::exp", self=r(13, 37) * 20),
        "rsqrt": call("aten::rsqrt", self=r(13, 1).abs()),
        "pow": call("aten::pow.Tensor_Scalar", self=r(13, 37), exponent=2),
        "add": call("aten::add.Tensor", self=r(2, 13, 37), other=r(2, 13, 37)),
        "add row": call("aten::add.Tensor", self=r(2, 13, 37), other=r(37)),
        "add_ bf16": call("aten::add_.Tensor", self=r(13, 37).to(b), other=r(13, 37).to(b)),
        "mul column": call("aten::mul.Tensor", self=r(2, 13, 37), other=r(2, 13, 1)),
        "mul row first": call("aten::mul.Tensor", self=r(37), other=r(2, 13, 37)),
        "mul scalar tensor": call("aten::mul.Tensor", self=r(13, 37), other=torch.tensor(0.3)),
        "softmax": call("aten::softmax.int", self=r(9, 7, 49) * 3, dim=-1),
        "softmax short": call("aten::softmax.int", self=r(33, 5), dim=1),
        "softmax long": call("aten::softmax.int", self=r(1, 20011) * 2, dim=-1),
        "softmax bf16": call("aten::softmax.int", self=r(9, 64).to(b), dim=-1),
        "softmax to float": call("aten::softmax.int", self=r(9, 33).to(b), dim=-1, dtype=torch.float32),
        "layer_norm": call("aten::layer_norm", input=r(13, 384), normalized_shape=[384], weight=r(384), bias=r(384)),
        "layer_norm offset": call("aten::layer_norm", input=r(13, 37) + 1e3, normalized_shape=[37]),
        "layer_norm constant": call("aten::layer_norm", input=torch.full((3, 50), 7.3), normalized_shape=[50], bias=r(50)),
        "layer_norm two": call("aten::layer_norm", input=r(5, 6, 7), normalized_shape=[6, 7], weight=r(6, 7)),
        "layer_norm bf16": call("aten::layer_norm", input=r(5, 40).to(b), normalized_shape=[40], weight=r(40).to(b)),
        "rms_norm": call("aten::rms_norm", input=r(13, 576), normalized_shape=[576], weight=r(576)),
        "rms_norm long": call("aten::rms_norm", input=r(3, 5001), normalized_shape=[5001], eps=1e-5),
        "group_norm": call("aten::group_norm", input=r(2, 12, 7, 9) + 50, num_groups=3, weight=r(12), bias=r(12)),
        "group_norm plain": call("aten::group_norm", input=r(2, 12, 370), num_groups=4),
        "batch_norm": call(
            "aten::batch_norm", input=r(3, 12, 7, 9), **norm_parts(12), training=False, momentum=0.1, eps=1e-5,
            cudnn_enabled=True,
        ),
        "max_pool 3/2/1": call("aten::max_pool2d", self=pool_input, kernel_size=[3, 3], stride=[2, 2], padding=[1, 1]),
        "max_pool 2": call("aten::max_pool2d", self=r(3, 40, 71), kernel_size=[2, 2]),
        "max_pool odd": call(
            "aten::max_pool2d", self=r(2, 3, 40, 71), kernel_size=[3, 2], stride=[1, 3], padding=[0, 1]
        ),
        "max_pool overlap": call("aten::max_pool2d", self=pool_input, kernel_size=[5], stride=[1], padding=[2]),
        "avg_pool": call("aten::adaptive_avg_pool2d", self=r(2, 50, 7, 7), output_size=[1, 1]),
        "mean": call("aten::mean.dim", self=r(3, 50, 100), dim=[-1], keepdim=True),
        "mean long": call("aten::mean.dim", self=r(3, 10001) + 100, dim=[1]),
        "sum": call("aten::sum.dim_IntList", self=r(3, 5, 10), dim=[1, 2]),
        "embedding": call("aten::embedding", weight=r(100, 37), indices=torch.randint(0, 100, (3, 4))),
        "linear": call("aten::linear", input=r(1, 7, 100), weight=r(29, 100), bias=r(29)),
        "linear vector": call("aten::linear", input=r(64), weight=r(40, 64)),
        "linear many": call("aten::linear", input=r(3, 11, 48), weight=r(31, 48), bias=r(31)),
        "attention": attention(3, 13, 21, 32),
        "attention one": attention(2, 1, 64, 64),
        "attention causal": attention(2, 17, 17, 64, is_causal=True),
        "attention mask": attention(3, 5, 7, 32, attn_mask=mask),
        "attention added": attention(3, 5, 7, 40, attn_mask=r(5, 7)),
        "attention groups": attention(6, 5, 7, 32, kv_heads=2, enable_gqa=True, scale=0.3),
    }  # fmt: skip


CALLS = some_calls()


def drafts_of(made: Call, how_many: int = 2) -> list[str]:
    """The first openings and one mutation, chosen by the call's digest."""
    drafts = registry.first_drafts(card(made.key), 2)[:how_many]
    rng = random.Random(made.key.digest())
    parent = Candidate("n1", "c1", "cpp", "T3", drafts[0].source, drafts[0].plan, "recipe", detail=drafts[0].detail)
    other = registry.mutate(card(made.key), parent, 2, rng, {registry.digest(d) for d in drafts})
    return [d.source for d in drafts] + ([other.source] if other else [])


@pytest.fixture(scope="session")
def kernels(binaries: Path) -> dict[str, list[Any]]:
    sources = {name: drafts_of(made) for name, made in CALLS.items()}
    flat = [text for texts in sources.values() for text in texts]
    loaded = dict(zip(flat, compile_all(flat, binaries), strict=True))
    return {name: [loaded[text] for text in texts] for name, texts in sources.items()}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bitwise equal, except that any NaN equals any other."""
    raw = torch.int32 if a.dtype == torch.float32 else torch.int16
    return bool(((a.view(raw) == b.view(raw)) | (a.isnan() & b.isnan())).all())


def within_eagers_error(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> str:
    """The judge's main rule: rms error at most twice eager's plus a small floor; "" when it holds."""
    if not torch.equal(got.isnan(), eager.isnan()) or not torch.equal(got.isinf(), eager.isinf()):
        return "NaN or Inf in other places than eager"
    where = exact.isfinite() & eager.isfinite()
    exact = exact[where]

    def rms(t: torch.Tensor) -> float:
        return float(t.double().pow(2).mean().sqrt())

    floor = EPS[str(eager.dtype).removeprefix("torch.")] * rms(exact) / 8
    ours, theirs = rms(got[where].double() - exact), rms(eager[where].double() - exact)
    return "" if ours <= 2 * theirs + floor else f"rms error {ours:.2e}, eager's {theirs:.2e}"


@pytest.mark.parametrize("name", CALLS)
def test_every_recipe_is_as_accurate_as_eager(name: str, kernels: dict[str, list[Any]]) -> None:
    made = CALLS[name]
    eager, exact = made.eager()[0], made.eager(double=True)[0]
    for kernel in kernels[name]:
        for threads in (1, 2):
            status, results = run(kernel, made, threads)
            assert status == 0
            if made.key.base_op.rstrip("_") in EXACT:
                assert same_bits(results[0], eager)
            else:
                assert within_eagers_error(results[0], eager, exact) == ""


@pytest.mark.parametrize("name", CALLS)
def test_a_kernel_gives_the_same_bits_again(name: str, kernels: dict[str, list[Any]]) -> None:
    for kernel in kernels[name]:
        assert same_bits(run(kernel, CALLS[name])[1][0].float(), run(kernel, CALLS[name])[1][0].float())


UNARY_NAMES = ["relu_", "gelu", "gelu tanh", "silu", "sigmoid", "tanh", "exp", "rsqrt", "pow"]


@pytest.mark.parametrize("name", UNARY_NAMES)
def test_special_values_go_through_activations_as_in_eager(name: str, kernels: dict[str, list[Any]]) -> None:
    made = CALLS[name]
    x = made.tensors[0]
    values = torch.tensor(SPECIAL).repeat(x.numel() // len(SPECIAL) + 1)[: x.numel()].view(x.shape)
    special = Call(made.op, {**made.arguments, "self": values}, made.key)
    eager, exact = special.eager()[0], special.eager(double=True)[0]
    # Where eager's own float formula overflows and exact arithmetic does not (gelu of inf and 3e38), the exact value rules.
    decided = torch.where(eager.isfinite(), eager, exact.float())
    for kernel in kernels[name]:
        got = run(kernel, special)[1][0]
        assert torch.equal(got.isnan(), decided.isnan())
        assert torch.equal(got.isinf(), decided.isinf())
        finite = decided.isfinite()
        torch.testing.assert_close(got[finite], decided[finite], rtol=2e-6, atol=1e-6)
        if name in ("relu_", "silu", "tanh"):
            zero = values == 0
            assert torch.equal(got[zero].signbit(), eager[zero].signbit())


@pytest.mark.parametrize(
    "row", [[-INF] * 5, [-INF, 1, 2, 3, 4], [INF, 1, 2, 3, 4], [NAN, 1, 2, 3, 4], [-200, 0, 0, 0, -95]]
)
def test_softmax_rows_that_are_not_finite_are_as_in_eager(row: list[float], kernels: dict[str, list[Any]]) -> None:
    made = CALLS["softmax short"]
    made = Call(made.op, {**made.arguments, "self": torch.tensor(row).float().repeat(33, 1)}, made.key)
    for kernel in kernels["softmax short"]:
        torch.testing.assert_close(run(kernel, made)[1][0], made.eager()[0], rtol=1e-5, atol=0, equal_nan=True)


def test_nan_wins_a_pooling_window_and_zeros_keep_their_sign(kernels: dict[str, list[Any]]) -> None:
    for name in ("max_pool 3/2/1", "max_pool overlap"):
        x = (
            torch.randint(-1, 2, CALLS[name].tensors[0].shape).float()
            * torch.tensor([0.0, -0.0])[torch.randint(0, 2, (23,))]
        )
        x[0, 0, 3, 4], x[0, 2], x[1, 1, 5] = NAN, -INF, -INF
        made = Call(CALLS[name].op, {**CALLS[name].arguments, "self": x}, CALLS[name].key)
        for kernel in kernels[name]:
            assert same_bits(run(kernel, made)[1][0], made.eager()[0])


@pytest.mark.parametrize("name", ["attention", "attention mask"])
def test_attention_over_nan_and_inf_is_as_in_eager(name: str, kernels: dict[str, list[Any]]) -> None:
    made = CALLS[name]
    given = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in made.arguments.items()}
    given["query"][0, 0, 1, 0] = NAN
    given["key"][0, 1, 3, 0] = NAN
    given["value"][1, 2, 3, 0] = INF
    broken = Call(made.op, given, made.key)
    for kernel in kernels[name]:
        got, eager = run(kernel, broken)[1][0], broken.eager()[0]
        assert torch.equal(got.isnan(), eager.isnan())
        torch.testing.assert_close(got, eager, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("index", [-1, 100])
def test_embedding_declines_before_writing_when_an_index_is_outside(index: int, kernels: dict[str, list[Any]]) -> None:
    made = CALLS["embedding"]
    indices = made.arguments["indices"].clone()
    indices[2, 3] = index
    for kernel in kernels["embedding"]:
        status, results = run(kernel, Call(made.op, {**made.arguments, "indices": indices}, made.key))
        assert status > 0
        assert bool((results[0] == -1234.5).all())


def family(made: Call, tensor: int, dim: int, out_dim: int) -> VariantKey:
    """The call's key with one dimension turned into a range of lengths 1..64."""
    ranged = Dim(1, 64, 1, "tokens")
    tensors, outputs = list(made.key.tensors), list(made.key.outputs)
    tensors[tensor] = spec_of(made.tensors[tensor], tensors[tensor].name, ranged={dim: ranged})
    out = torch.empty(outputs[0].sizes)
    outputs[0] = spec_of(out, outputs[0].name, ranged={out_dim: ranged})
    return VariantKey(made.key.op, made.key.args, tuple(tensors), tuple(outputs), (), made.key.output_alias)


FAMILIES = {
    "gelu": (call("aten::gelu", self=r(1, 6, 24)), 0, 1, 1),
    "softmax": (call("aten::softmax.int", self=r(3, 6), dim=-1), 0, 1, 1),
    "layer_norm": (call("aten::layer_norm", input=r(6, 40), normalized_shape=[40], weight=r(40)), 0, 0, 0),
    "linear": (call("aten::linear", input=r(1, 6, 48), weight=r(29, 48), bias=r(29)), 0, 1, 1),
}


@pytest.fixture(scope="session")
def family_kernels(binaries: Path) -> dict[str, Any]:
    sources = [registry.first_drafts(card(family(*given)), 2)[0].source for given in FAMILIES.values()]
    return dict(zip(FAMILIES, compile_all(sources, binaries), strict=True))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(FAMILIES)), size=st.integers(1, 64))
def test_a_family_kernel_serves_every_length_of_its_range(name: str, size: int, family_kernels: dict[str, Any]) -> None:
    made, _, dim, _ = FAMILIES[name]
    arguments = dict(made.arguments)
    first = next(n for n, v in arguments.items() if isinstance(v, torch.Tensor))
    shape = list(arguments[first].shape)
    shape[dim] = size
    arguments[first] = r(shape)
    sized = call(made.op, **arguments)
    status, results = run(family_kernels[name], sized)
    assert status == 0
    assert within_eagers_error(results[0], sized.eager()[0], sized.eager(double=True)[0]) == ""


def test_a_number_argument_is_part_of_the_kernel(binaries: Path) -> None:
    made = call("aten::mul.Tensor", self=r(5, 19), other=torch.tensor(0.1))
    key = VariantKey(
        made.op, (made.key.args[0], Arg("other", "number", ["float64", 0.1])), made.key.tensors[:1], made.key.outputs, (), (-1,)
    )  # fmt: skip
    [kernel] = compile_all([registry.first_drafts(card(key), 1)[0].source], binaries)
    status, results = run(kernel, Call(made.op, {"self": made.arguments["self"]}, key))
    assert status == 0
    assert torch.equal(results[0], made.arguments["self"] * 0.1)
