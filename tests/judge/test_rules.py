"""The error rule: what must never pass, and what an honest kernel may do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numeric_cards import card_of

from forge_tui.judge.pool import TrialPool
from forge_tui.judge.rules import Conditions, bounds, rule_for, slice_means, ulp_distance
from forge_tui.records import opclass
from forge_tui.records.card import Card


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors: a pool of threads would only wait for cores that other tests use."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def draw(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear_card(folder: Path, dtype: torch.dtype = torch.float32) -> Card:
    tensors = [t.to(dtype) for t in (draw(32, 512), draw(96, 512) * 0.05, draw(96))]
    return card_of(folder, "aten::linear", *tensors, op_class=opclass.MATMUL, parameters=(1, 2))


def norm_card(folder: Path, dtype: torch.dtype = torch.float32) -> Card:
    x, w, b = (t.to(dtype) for t in (draw(48, 384), torch.ones(384), torch.zeros(384)))
    return card_of(folder, "aten::layer_norm", x, [384], w, b, op_class=opclass.REDUCTION_NORM, parameters=(1, 2))


def softmax_card(folder: Path) -> Card:
    return card_of(folder, "aten::softmax.int", draw(48, 300), -1, op_class=opclass.SOFTMAX)


def failures(card: Card, folder: Path, kernel, seed: str = "secret") -> dict[str, str]:
    """Trial name -> line, for every trial that rejects `kernel` (a function of the inputs)."""
    pool = TrialPool(card, folder, seed)
    found = {}
    for i, trial in enumerate(pool.trials):
        with torch.no_grad():
            result = kernel(*trial.tensors)
        outcome = pool.check(i, [result] if isinstance(result, torch.Tensor) else result)
        if not outcome.passed:
            assert outcome.problem.blame == "candidate"
            found[trial.name] = outcome.problem.line
    return found


def lanes(x: torch.Tensor, width: int = 16) -> torch.Tensor:
    """Sum of the last dimension in `width` running float32 sums, as a plain vectorised loop does it."""
    x = F.pad(x, (0, -x.shape[-1] % width)).unflatten(-1, (-1, width))
    total = torch.zeros_like(x[..., 0, :])
    for step in range(x.shape[-2]):
        total = total + x[..., step, :]
    result = total[..., 0]
    for lane in range(1, width):
        result = result + total[..., lane]
    return result


def norm(x, w, b, eps=1e-5, total=lanes):
    n = x.shape[-1]
    centred = x - (total(x) / n)[..., None]
    return centred * torch.rsqrt(total(centred * centred) / n + eps)[..., None] * w + b


def to_tf32(t: torch.Tensor) -> torch.Tensor:
    return ((t.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


# What must never pass.


def test_zeros_never_pass_a_wide_softmax(tmp_path):
    card = card_of(tmp_path, "aten::softmax.int", draw(1, 200_000).bfloat16(), -1, op_class=opclass.SOFTMAX)
    assert failures(card, tmp_path, torch.zeros_like)["captured"]


@pytest.mark.parametrize(
    "lower", [to_tf32, lambda t: t.half().float(), lambda t: t.bfloat16().float()], ids=["tf32", "half", "bfloat16"]
)
def test_lower_precision_inputs_never_pass_a_float32_matmul(tmp_path, lower):
    wrong = failures(linear_card(tmp_path), tmp_path, lambda x, w, b: F.linear(lower(x), lower(w), b))
    assert {"captured", "integer probe"} <= set(wrong)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_accumulation_never_passes_where_eager_accumulates_in_32(tmp_path, dtype):
    def kernel(x, w, b):
        total = torch.zeros(x.shape[0], w.shape[0], dtype=dtype)
        for k in range(x.shape[1]):
            total = total + x[:, k : k + 1] * w[:, k]
        return total + b

    assert "captured" in failures(linear_card(tmp_path, dtype), tmp_path, kernel)


def test_half_of_a_mean_never_passes(tmp_path):
    card = card_of(tmp_path, "aten::mean.dim", draw(40, 1000), [-1], op_class=opclass.REDUCTION_NORM)
    assert "captured" in failures(card, tmp_path, lambda x: x[:, :500].mean(-1))


def test_a_missing_tile_fails_the_slices_even_where_the_whole_is_within_the_bound(tmp_path):
    def kernel(x, w, b):
        y = F.layer_norm(x, (384,), w, b)
        y[3, 64:128] += 3e-5
        return y

    line = failures(norm_card(tmp_path), tmp_path, kernel)["captured"]
    assert "block 1" in line and "row [3]" in line


def test_a_constant_block_is_called_never_written(tmp_path):
    def kernel(x):
        y = torch.softmax(x, -1)
        y.view(-1)[12 * 64 : 13 * 64] = 0.25
        return y

    line = failures(softmax_card(tmp_path), tmp_path, kernel)["captured"]
    assert "64 of 14400 outputs" in line and "[2, 168]" in line and "never written" in line


def test_a_constant_or_the_input_never_passes(tmp_path):
    card = norm_card(tmp_path)
    assert failures(card, tmp_path, lambda x, w, b: torch.full_like(x, 0.1))
    assert failures(card, tmp_path, lambda x, w, b: x)


def test_a_relu_that_swallows_nan_never_passes(tmp_path):
    card = card_of(tmp_path, "aten::relu", draw(40, 70), op_class=opclass.EXACT)
    wrong = failures(card, tmp_path, lambda x: torch.where(x > 0, x, 0.0))
    assert set(wrong) == {"special values"} and "eager nan" in wrong["special values"]


def test_rounding_to_bfloat16_never_passes_a_float32_card(tmp_path):
    card = card_of(tmp_path, "aten::gelu", draw(40, 70), op_class=opclass.TRANSCENDENTAL)
    assert "captured" in failures(card, tmp_path, lambda x: F.gelu(x).bfloat16().float())
    plus = card_of(tmp_path, "aten::add.Tensor", draw(40, 70), draw(40, 70, seed=2), op_class=opclass.ONE_ROUNDING)
    assert "captured" in failures(plus, tmp_path, lambda x, y: (x + y).bfloat16().float())


def test_softmax_without_its_maximum_never_passes(tmp_path):
    wrong = failures(softmax_card(tmp_path), tmp_path, lambda x: torch.exp(x) / torch.exp(x).sum(-1, keepdim=True))
    assert "shifted" in wrong and "NaN where eager is finite" in wrong["shifted"]


def test_variance_by_mean_of_squares_never_passes(tmp_path):
    def kernel(x, w, b):
        mean = x.mean(-1, keepdim=True)
        return (x - mean) * torch.rsqrt((x * x).mean(-1, keepdim=True) - mean * mean + 1e-5) * w + b

    assert "large offset" in failures(norm_card(tmp_path), tmp_path, kernel)


def test_a_norm_without_epsilon_weight_or_bias_never_passes(tmp_path):
    card = norm_card(tmp_path)
    assert "constant rows" in failures(card, tmp_path, lambda x, w, b: norm(x, w, b, eps=0.0))
    assert "parameters changed" in failures(card, tmp_path, lambda x, w, b: F.layer_norm(x, (384,)))


def test_the_tanh_approximation_never_passes_for_exact_gelu(tmp_path):
    card = card_of(tmp_path, "aten::gelu", draw(40, 70), op_class=opclass.TRANSCENDENTAL)
    assert "captured" in failures(card, tmp_path, lambda x: F.gelu(x, approximate="tanh"))


def test_one_wrong_integer_never_passes(tmp_path):
    def kernel(x):
        y = x.argmax(-1)
        y[7] = (y[7] + 1) % 70
        return y

    card = card_of(tmp_path, "aten::argmax", draw(40, 70), -1, op_class=opclass.SELECTION)
    assert "captured" in failures(card, tmp_path, kernel)


# What an honest kernel may do.


def test_another_summation_order_passes(tmp_path):
    def by_columns(x, w, b):
        total = torch.zeros(x.shape[0], w.shape[0])
        for k in range(x.shape[1]):
            total = total + x[:, k : k + 1] * w[:, k]
        return total + b

    assert failures(linear_card(tmp_path), tmp_path, by_columns) == {}


def test_an_honest_float32_norm_in_16_lanes_passes(tmp_path):
    for seed in ("one", "two", "three"):
        assert failures(norm_card(tmp_path), tmp_path, norm, seed) == {}


def test_an_honest_float32_softmax_passes(tmp_path):
    def kernel(x):
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e / lanes(e)[:, None]

    for seed in ("one", "two", "three"):
        assert failures(softmax_card(tmp_path), tmp_path, kernel, seed) == {}


def test_an_honest_norm_of_a_single_row_passes_though_eager_may_be_lucky_there(tmp_path):
    x, w, b = draw(1, 384), torch.ones(384), torch.zeros(384)
    card = card_of(tmp_path, "aten::layer_norm", x, [384], w, b, op_class=opclass.REDUCTION_NORM, parameters=(1, 2))
    for seed in ("one", "two", "three"):
        assert failures(card, tmp_path, norm, seed) == {}


def test_32_bit_accumulation_passes_a_16_bit_matmul(tmp_path):
    card = linear_card(tmp_path, torch.bfloat16)
    assert failures(card, tmp_path, lambda x, w, b: F.linear(x.float(), w.float(), b.float()).bfloat16()) == {}


def test_a_more_exact_result_than_eagers_passes(tmp_path):
    card = norm_card(tmp_path)
    assert (
        failures(card, tmp_path, lambda x, w, b: F.layer_norm(x.double(), (384,), w.double(), b.double()).float()) == {}
    )


def test_convolution_by_unfolding_passes(tmp_path):
    x, w, b = draw(2, 8, 14, 14), draw(16, 8, 3, 3) * 0.1, draw(16)
    card = card_of(tmp_path, "aten::conv2d", x, w, b, op_class=opclass.CONV, parameters=(1, 2))

    def kernel(x, w, b):
        columns = F.unfold(x, 3).transpose(1, 2)
        return (columns @ w.reshape(16, -1).T + b).transpose(1, 2).reshape(2, 16, 12, 12)

    assert failures(card, tmp_path, kernel) == {}


def test_ties_of_a_selection_are_free_and_the_sign_of_zero_is(tmp_path):
    x = draw(40, 64).round()

    def last_maximum(x):
        return 63 - x.flip(-1).argmax(-1)

    card = card_of(tmp_path, "aten::argmax", x, -1, op_class=opclass.SELECTION)
    assert failures(card, tmp_path, last_maximum) == {}
    relu = card_of(tmp_path, "aten::relu", draw(40, 70), op_class=opclass.EXACT)
    assert failures(relu, tmp_path, lambda x: torch.where(x <= 0, -0.0, x)) == {}


# Eager against itself.

OPERATORS = {
    "relu": ("aten::relu", opclass.EXACT), "gelu": ("aten::gelu", opclass.TRANSCENDENTAL), "silu": ("aten::silu", ""),
    "softmax": ("aten::softmax.int", opclass.SOFTMAX), "mean": ("aten::mean.dim", opclass.REDUCTION_NORM),
    "add": ("aten::add.Tensor", opclass.ONE_ROUNDING), "linear": ("aten::linear", opclass.MATMUL),
    "exp": ("aten::exp", opclass.TRANSCENDENTAL), "topk": ("aten::topk", opclass.SELECTION),
    "log_softmax": ("aten::log_softmax.int", opclass.SOFTMAX), "avg": ("aten::adaptive_avg_pool2d", opclass.POOL_AVERAGE),
    "sum": ("aten::sum.dim_IntList", opclass.REDUCTION_NORM), "mul": ("aten::mul.Tensor", opclass.ONE_ROUNDING),
}  # fmt: skip


@given(
    st.sampled_from(sorted(OPERATORS)),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 40), st.integers(2, 90)),
    st.integers(0, 2),
    st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_eager_against_itself_always_passes(tmp_path, name, dtype, shape, layout, seed):
    op, op_class = OPERATORS[name]
    x = (draw(*shape, seed=seed) * 3).to(dtype)
    if layout == 1:
        x = x.contiguous(memory_format=torch.channels_last)
    elif layout == 2:
        x = x.transpose(1, 2)
    rest = {
        "softmax": [-1], "log_softmax": [1], "mean": [[-1]], "sum": [[2, 3]], "add": [0.1], "topk": [2, -1], "avg": [[1, 1]],
        "linear": [(draw(7, shape[-1]) * 0.1).to(dtype)], "mul": [x],
    }.get(name, [])  # fmt: skip
    card = card_of(tmp_path, op, x, *rest, op_class=op_class)
    pool = TrialPool(card, tmp_path, f"seed {seed}")
    for i in range(len(pool.trials)):
        outcome = pool.check(i, pool.expect(i)[0])
        assert outcome.passed, outcome.problem.line


# Labels and limits.


def test_a_card_without_a_class_is_weak_and_says_so(tmp_path):
    pool = TrialPool(card_of(tmp_path, "aten::silu", draw(40, 70)), tmp_path, "s")
    assert pool.weak and any(note.startswith("weak") for note in pool.notes)
    assert not TrialPool(softmax_card(tmp_path), tmp_path, "s").weak
    assert failures(pool.card, tmp_path, lambda x: torch.zeros_like(x))
    assert failures(pool.card, tmp_path, F.silu) == {}


def test_a_reference_no_wider_than_the_card_makes_it_weak():
    x = draw(1000)
    limits = bounds(rule_for(opclass.TRANSCENDENTAL), x.exp(), x.exp(), None, Conditions())
    assert limits.kind == "weak"


def test_an_eager_worse_than_rounding_explains_is_ill_conditioned_and_licenses_less():
    exact = draw(4096).double()
    rough = (exact * (1 + 1e-3 * draw(4096, seed=2))).float()
    limits = bounds(rule_for(opclass.MATMUL), rough, exact, None, Conditions(reduction=64))
    assert limits.ill and limits.m == 1.25
    fine = bounds(rule_for(opclass.MATMUL), exact.float(), exact, None, Conditions(reduction=64))
    assert not fine.ill and fine.m == 2.0


def test_shape_and_dtype_come_before_any_number(tmp_path):
    pool = TrialPool(softmax_card(tmp_path), tmp_path, "s")
    eager = pool.expect(0)[0][0]
    for wrong in (eager[:1], eager.half()):
        outcome = pool.check(0, [wrong])
        assert [c.name for c in outcome.checks if c.outcome == "failed"] == ["meta"]
    assert pool.check(0, []).problem.blame == "harness"


def test_a_failing_line_names_index_values_and_trial(tmp_path):
    def kernel(x):
        y = torch.softmax(x, -1)
        y[17, 3] *= 2
        return y

    line = failures(softmax_card(tmp_path), tmp_path, kernel)["captured"]
    assert "1 of 14400 outputs" in line and "[17, 3]: got" in line
    assert "expected" in line and "eager" in line and "'captured'" in line


def test_checking_leaves_the_candidates_outputs_as_they_are(tmp_path):
    for dtype in (torch.float32, torch.float64):
        pool = TrialPool(norm_card(tmp_path, dtype), tmp_path, "s")
        output = pool.expect(0)[0][0].clone()
        before = output.clone()
        pool.check(0, [output])
        assert torch.equal(before, output) and torch.equal(pool.expect(0)[0][0], before)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_ulp_distance_counts_representable_numbers(values):
    x = torch.tensor(values)
    up = torch.nextafter(x, torch.full_like(x, torch.inf))
    finite = torch.isfinite(up)
    assert (ulp_distance(x, up)[finite] == 1).all()
    assert (ulp_distance(x, x) == 0).all()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 100))
def test_slices_cover_every_element_and_none_is_small(shape, seed):
    scale = [*shape[:-1], shape[-1] * 16]
    squares = torch.ones(*scale, dtype=torch.float64).view(-1)
    clean = slice_means(squares, tuple(scale))
    squares[seed % squares.numel()] = 1000.0
    if squares.numel() >= 128:
        assert (slice_means(squares, tuple(scale))["block"] > clean["block"]).any()
    for mean in clean.values():
        assert torch.allclose(mean, torch.ones_like(mean))
