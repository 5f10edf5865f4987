"""A key admits the call it was captured from and refuses every single difference; C++ and Python decide alike."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import castkit as kit
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge_tui import cast
from forge_tui.cast.guards import GuardRow, flag_bits, guard_row, mismatch, words_for_people
from forge_tui.cast.installed import Installed
from forge_tui.cast.keys import operator, schema_of
from forge_tui.cast.native import NativeHooks, build
from forge_tui.cast.python_hooks import flags_now, seen
from forge_tui.cast.states import REASONS, STATES
from forge_tui.cast.words import CannotGuard, Parameter, words_of_call, words_of_key
from forge_tui.records.card import Arg, Dim, TensorSpec, VariantKey
from forge_tui.records.codec import dumps, loads

# Declines every call that reaches it, so `declined` counts what the guard admitted and eager's result is returned.
DECLINE = kit.HEAD + 'extern "C" int forge_launch(const forge_args*) { return 1; }'
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def decide(row: GuardRow, op: str, *args: Any, **kwargs: Any) -> str:
    schema, _ = schema_of(operator(op))
    call = words_of_call(schema, args, kwargs, is_tensor)
    assert call is not None
    return mismatch(row, call[0], [seen(t) for t in call[1]])


def row_of(key: VariantKey) -> GuardRow:
    return guard_row(key, schema_of(operator(key.op))[0])


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Small tensors of many layouts: contiguous, permuted, sliced, expanded, channels-last, with offset, empty."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.bool]))
    make = draw(st.sampled_from(["plain", "permuted", "sliced", "expanded", "offset", "channels_last"]))
    base = torch.zeros([s + 1 for s in sizes], dtype=dtype) if make == "sliced" else torch.zeros(sizes, dtype=dtype)
    if make == "permuted":
        return base.permute(draw(st.permutations(range(base.dim()))))
    if make == "sliced":
        return base[tuple(slice(1, None) for _ in sizes)]
    if make == "expanded":
        return torch.zeros([1, *sizes[1:]], dtype=dtype).expand(sizes)
    if make == "offset":
        count = base.numel()
        return torch.zeros(count + 8, dtype=dtype)[3 : 3 + count].view(sizes)
    if make == "channels_last" and base.dim() == 4:
        return base.contiguous(memory_format=torch.channels_last)
    return base


def same_look(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


@SLOW
@given(tensors())
def test_a_key_admits_its_own_call(x: torch.Tensor) -> None:
    key = kit.key_of("aten::clone", x)
    assert decide(row_of(key), "aten::clone", x) == ""
    assert decide(row_of(loads(VariantKey, dumps(key))), "aten::clone", x) == ""


@SLOW
@given(tensors(), tensors())
def test_a_key_refuses_every_other_looking_tensor(x: torch.Tensor, y: torch.Tensor) -> None:
    reason = decide(row_of(kit.key_of("aten::clone", x)), "aten::clone", y)
    assert (reason == "") == same_look(x, y)
    assert reason == "" or reason in REASONS


MUTATIONS: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], tuple[Any, ...]], str]] = {
    "more rows": (lambda x, y: (torch.cat([x, x]), y), "shape"),
    "one dimension more": (lambda x, y: (x[None], y), "shape"),
    "broadcast": (lambda x, y: (x, y[:1]), "shape"),
    "transposed": (lambda x, y: (x.t().contiguous().t(), y), "stride"),
    "sliced": (lambda x, y: (torch.cat([x, x], 1)[:, ::2], y), "stride"),
    "expanded": (lambda x, y: (x[:1].expand(8, 8), y), "stride"),
    "wider dtype": (lambda x, y: (x.double(), y), "dtype"),
    "other order of dtypes": (lambda x, y: (x, y.half()), "dtype"),
    "less aligned": (lambda x, y: (torch.zeros(72).view(-1)[1:65].view(8, 8), y), "alignment"),
    "other factor": (lambda x, y: (x, y, 2), "scalar"),
    "factor as a float": (lambda x, y: (x, y, 1.0), "scalar"),
    "factor as a boolean": (lambda x, y: (x, y, True), "scalar"),
    "a number for a tensor": (lambda x, y: (x, 3), "arguments"),
}


def aligned(key: VariantKey, alignment: int) -> VariantKey:
    return replace(key, tensors=tuple(replace(t, alignment=alignment) for t in key.tensors))


@pytest.mark.parametrize("name", MUTATIONS)
def test_single_mutations_are_refused_with_their_reason(name: str) -> None:
    x, y = torch.zeros(8, 8), torch.zeros(8, 8)
    row = row_of(aligned(kit.key_of("aten::add.Tensor", x, y), 64))
    assert decide(row, "aten::add.Tensor", x, y) == ""
    change, reason = MUTATIONS[name]
    args = change(x, y)
    named = {"alpha": args[2]} if len(args) == 3 else {}
    assert decide(row, "aten::add.Tensor", *args[:2], **named) == reason


def test_aliasing_is_part_of_an_in_place_key() -> None:
    x, y = torch.zeros(8, 8), torch.zeros(8, 8)
    row = row_of(kit.key_of("aten::add_.Tensor", x, y))
    assert decide(row, "aten::add_.Tensor", x, y) == ""
    assert decide(row, "aten::add_.Tensor", x, x) == "aliasing"
    whole = torch.zeros(16, 8)
    assert decide(row, "aten::add_.Tensor", whole[:8], whole[8:]) == "aliasing"


def test_a_key_of_one_tensor_twice_needs_one_tensor_twice() -> None:
    x = torch.zeros(8, 8)
    key = kit.key_of("aten::mul.Tensor", x, x)
    row = row_of(replace(key, tensors=(key.tensors[0], replace(key.tensors[1], shares=0))))
    assert decide(row, "aten::mul.Tensor", x, x) == ""
    assert decide(row, "aten::mul.Tensor", x, x.clone()) == "aliasing"
    whole = torch.zeros(9, 8)
    assert decide(row, "aten::mul.Tensor", whole[:8], whole[1:]) == "aliasing"


def test_wrapped_numbers_are_guarded_by_value_and_type() -> None:
    x = torch.zeros(4)
    row = row_of(kit.key_of("aten::add.Tensor", x, 1))
    assert decide(row, "aten::add.Tensor", x, 1) == ""
    for other in (2, 1.0, True, x):
        assert decide(row, "aten::add.Tensor", x, other) in ("scalar", "arguments")


def family(rows: tuple[int, int, int]) -> VariantKey:
    dims = (Dim(*rows, "s0"), Dim(8, 8))
    spec = TensorSpec("x", dims, "float32", "contiguous", (8, 1), "cpu", 4)
    other = replace(spec, name="y")
    args = (Arg("self", "tensor", 0), Arg("other", "tensor", 1), Arg("alpha", "int", 1))
    return VariantKey("aten::add.Tensor", args, (spec, other), (replace(spec, name="out"),), (), (-1,))


@SLOW
@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 4), st.integers(0, 20), st.integers(0, 20))
def test_a_family_admits_its_range_and_nothing_else(a: int, b: int, multiple: int, lo: int, more: int) -> None:
    row = row_of(family((lo, lo + more + 1, multiple)))
    admitted = decide(row, "aten::add.Tensor", torch.zeros(a, 8), torch.zeros(b, 8)) == ""
    assert admitted == (a == b and lo <= a <= lo + more + 1 and a % multiple == 0)


def test_json_infinities_survive_as_text() -> None:
    key = kit.key_of("aten::masked_fill.Scalar", torch.zeros(4), torch.zeros(4, dtype=torch.bool), float("-inf"))
    stored = replace(key, args=tuple(replace(a, value="-inf") if a.kind == "float" else a for a in key.args))
    again = loads(VariantKey, dumps(stored))
    assert (
        decide(
            row_of(again), "aten::masked_fill.Scalar", torch.zeros(4), torch.zeros(4, dtype=torch.bool), float("-inf")
        )
        == ""
    )
    with pytest.raises(CannotGuard, match="not a number"):
        row_of(loads(VariantKey, dumps(key)))


@pytest.mark.parametrize(
    ("flags", "autocast"),
    [(("deterministic",), ""), (("matmul=high",), ""), ((), "bfloat16"), (("deterministic", "matmul=medium"), "")],
)
def test_flags_are_read_as_they_are_recorded(flags: tuple[str, ...], autocast: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.use_deterministic_algorithms("deterministic" in flags)
        for flag in flags:
            if flag.startswith("matmul="):
                torch.set_float32_matmul_precision(flag.removeprefix("matmul="))
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(autocast)):
            assert flags_now() == flag_bits(flags, autocast)
            built = build()
            if not isinstance(built, str):
                assert NativeHooks(built)._lib.forge_flags() == flag_bits(flags, autocast)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision(before)
    with pytest.raises(CannotGuard, match="not known"):
        flag_bits(("tf32",), "")


def test_a_schema_that_changed_declines_the_entry() -> None:
    schema = (Parameter("self", "Tensor"), Parameter("dim", "int"), Parameter("dtype", "Optional[int]", True, None))
    spec = kit.spec_of(torch.zeros(4), "self")
    args = (Arg("self", "tensor", 0), Arg("dim", "int", -1))
    key = VariantKey("aten::softmax.int", args, (spec,), (spec,), (), (-1,))
    full = replace(key, args=(*args, Arg("dtype", "none")))
    assert words_of_key(key, schema) == words_of_key(full, schema)  # a new argument with a default
    with pytest.raises(CannotGuard, match="no argument 'half'"):
        words_of_key(replace(key, args=(*args, Arg("half", "bool", False))), schema)
    with pytest.raises(CannotGuard, match="needs argument 'dim'"):
        words_of_key(replace(key, args=args[:1]), schema)


def test_guards_in_words() -> None:
    text = "\n".join(words_for_people(family((2, 32, 2))))
    assert "(s0 2..32 in steps of 2)x8 float32" in text and "alpha=1" in text and "no gradients" in text


def test_the_reason_names_are_the_native_ones() -> None:
    built = build()
    if isinstance(built, str):
        pytest.skip(built)
    assert NativeHooks(built).reason_names() == tuple(REASONS)
    assert {s.reason for s in STATES if s.reason} <= set(REASONS)


# --- the same decisions in C++ ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guards")


@pytest.fixture
def declining(folder: Path) -> Iterator[Callable[[VariantKey], Installed]]:
    made: list[Installed] = []

    def install(key: VariantKey) -> Installed:
        path = kit.cast_file(folder / f"{key.digest()}.cast", kit.entry_of("card", key, DECLINE))
        installed = cast.load(path, accept_host_code=True).install(None)
        made.append(installed)
        return installed

    yield install
    for installed in made:
        installed.uninstall()


def admitted(installed: Installed, call: Callable[[], Any]) -> bool:
    before = installed.report().entries[0].declined
    with torch.no_grad(), installed.active():
        call()
    return installed.report().entries[0].declined > before


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(tensors(), min_size=2, max_size=5))
def test_typed_and_generic_hooks_decide_like_the_python_guard(
    declining: Callable[[VariantKey], Installed], shown: list[torch.Tensor]
) -> None:
    for op in ("aten::relu", "aten::neg"):  # a typed hook, the generic hook
        overload = operator(op)
        shown = [t for t in shown if t.dtype != torch.bool]
        if not shown:
            return
        key = kit.key_of(op, shown[0])
        row = row_of(key)
        installed = declining(key)
        for t in shown:
            assert admitted(installed, functools.partial(overload, t)) == (decide(row, op, t) == ""), (
                t.shape,
                t.stride(),
            )
        installed.uninstall()


@pytest.mark.parametrize("name", MUTATIONS)
def test_cpp_refuses_the_same_mutations_for_the_same_reason(
    name: str, declining: Callable[[VariantKey], Installed]
) -> None:
    from forge_tui.cast.owner import owner

    x, y = torch.zeros(8, 8), torch.zeros(8, 8)
    installed = declining(aligned(kit.key_of("aten::add.Tensor", x, y), 64))
    assert admitted(installed, lambda: torch.add(x, y))
    change, reason = MUTATIONS[name]
    args = change(x, y)
    factor = args[2] if len(args) == 3 else 1
    owner().diagnose(True)
    try:
        with contextlib.suppress(RuntimeError):  # eager itself refuses some of them
            assert not admitted(installed, lambda: torch.add(*args[:2], alpha=factor))
    finally:
        owner().diagnose(False)
    misses = installed.report().misses["aten::add.Tensor"]
    assert misses.get(reason) == 1, misses


CALLS: list[tuple[str, Callable[[], tuple[Any, ...]]]] = [
    ("aten::softmax.int", lambda: (torch.randn(4, 8), -1)),
    ("aten::log_softmax.int", lambda: (torch.randn(4, 8), -1, torch.float64)),
    ("aten::layer_norm", lambda: (torch.randn(4, 8), [8], torch.ones(8), None, 1e-5)),
    ("aten::rms_norm", lambda: (torch.randn(4, 8), [8], torch.ones(8), 1e-6)),
    ("aten::group_norm", lambda: (torch.randn(2, 4, 3, 3), 2, torch.ones(4), torch.zeros(4), 1e-5)),
    ("aten::batch_norm", lambda: (torch.randn(2, 4, 3, 3), None, None, torch.zeros(4), torch.ones(4), False, 0.1, 1e-5, True)),
    ("aten::gelu", lambda: (torch.randn(8),)),
    ("aten::gelu_", lambda: (torch.randn(8),)),
    ("aten::silu", lambda: (torch.randn(8),)),
    ("aten::silu_", lambda: (torch.randn(8),)),
    ("aten::relu_", lambda: (torch.randn(8),)),
    ("aten::add_.Tensor", lambda: (torch.randn(8), torch.randn(8))),
    ("aten::mul.Tensor", lambda: (torch.randn(8), 0.5)),
    ("aten::mul_.Tensor", lambda: (torch.randn(8), torch.randn(8))),
    ("aten::sub.Tensor", lambda: (torch.randn(8), torch.randn(8))),
    ("aten::div.Tensor", lambda: (torch.randn(8), 3)),
    ("aten::sigmoid", lambda: (torch.randn(8),)),
    ("aten::tanh", lambda: (torch.randn(8),)),
    ("aten::embedding", lambda: (torch.randn(5, 4), torch.tensor([1, 2]))),
    ("aten::linear", lambda: (torch.randn(2, 4), torch.randn(3, 4))),
    ("aten::matmul", lambda: (torch.randn(2, 4), torch.randn(4, 3))),
    ("aten::bmm", lambda: (torch.randn(2, 2, 4), torch.randn(2, 4, 3))),
    ("aten::addmm", lambda: (torch.randn(3), torch.randn(2, 4), torch.randn(4, 3))),
    ("aten::conv2d", lambda: (torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3), None, [1, 1], [1, 1])),
    ("aten::conv1d", lambda: (torch.randn(1, 2, 5), torch.randn(3, 2, 3))),
    ("aten::adaptive_avg_pool2d", lambda: (torch.randn(1, 2, 4, 4), [1, 1])),
    ("aten::avg_pool2d", lambda: (torch.randn(1, 2, 4, 4), [2, 2])),
    ("aten::max_pool2d", lambda: (torch.randn(1, 2, 4, 4), [2, 2])),
    ("aten::scaled_dot_product_attention", lambda: (torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8))),
    ("aten::mean.dim", lambda: (torch.randn(2, 4), [-1], True)),
    ("aten::sum.dim_IntList", lambda: (torch.randn(2, 4), [0])),
    ("aten::rsqrt", lambda: (torch.rand(8),)),
    ("aten::pow.Tensor_Scalar", lambda: (torch.rand(8), 2)),
    ("aten::cat", lambda: ([torch.randn(2), torch.randn(3)],)),
    ("aten::masked_fill.Scalar", lambda: (torch.randn(4), torch.zeros(4, dtype=torch.bool), -1.5)),
    ("aten::where.self", lambda: (torch.ones(4, dtype=torch.bool), torch.randn(4), torch.randn(4))),
    ("aten::clamp", lambda: (torch.randn(4), 0, None)),
    ("aten::native_layer_norm", lambda: (torch.randn(4, 8), [8], torch.ones(8), torch.zeros(8), 1e-5)),
    ("aten::index.Tensor", lambda: (torch.randn(4, 8), [torch.tensor([1, 2])])),
    ("aten::upsample_nearest2d.vec", lambda: (torch.randn(1, 2, 4, 4), None, [2.0, 2.0])),
    ("aten::div.Tensor_mode", lambda: (torch.randn(4), torch.rand(4) + 1, )),
    ("aten::flip", lambda: (torch.randn(4, 2), [0, 1])),
]  # fmt: skip


@pytest.mark.parametrize(("op", "make"), CALLS, ids=[op for op, _ in CALLS])
def test_words_agree_for_every_hooked_operator(
    op: str, make: Any, declining: Callable[[VariantKey], Installed]
) -> None:
    """Schema defaults, optional tensors, lists, numbers, dtypes: the key's words are the live call's in C++."""
    args = make()
    kwargs = {"rounding_mode": "floor"} if op.endswith("Tensor_mode") else {}
    overload = operator(op)
    key = kit.key_of(op, *args, **kwargs)
    installed = declining(key)
    assert admitted(installed, lambda: overload(*args, **kwargs)), str(installed.report())
    assert decide(row_of(key), op, *args, **kwargs) == ""
