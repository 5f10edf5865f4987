"""Trials, references and nulls: what is drawn, what stays fixed, and cards that can't tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numeric_cards import card_of

from forge_tui.judge import nulls, reference
from forge_tui.judge.pool import FRESH, KEPT, TrialPool
from forge_tui.judge.reference import OperatorRefused, call_operator
from forge_tui.judge.samples import like, load_samples
from forge_tui.records import opclass
from forge_tui.records.card import Arg, CapturedCall, TensorBlob
from forge_tui.records.problem import HarnessProblem, MachineProblem


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors: a pool of threads would only wait for cores that other tests use."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def draw(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def trial(pool: TrialPool, name: str):
    return next(t for t in pool.trials if t.name == name)


# Samples.


@pytest.mark.parametrize(
    "tensor",
    [
        draw(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        draw(5, 6).t(),
        draw(8, 8)[:, ::2],
        draw(7, 1).expand(7, 9),
    ],
    ids=["channels_last", "transposed", "strided", "expanded"],
)
def test_captured_tensors_come_back_with_their_strides(tmp_path, tensor):
    card = card_of(tmp_path, "aten::relu", tensor, op_class=opclass.EXACT)
    pool = TrialPool(card, tmp_path, "s")
    for one in pool.trials:
        assert one.tensors[0].stride() == tensor.stride() and one.tensors[0].shape == tensor.shape
    assert torch.equal(pool.trials[0].tensors[0], tensor)


def test_damaged_or_missing_captures_are_a_harness_problem(tmp_path):
    card = card_of(tmp_path, "aten::relu", draw(10), op_class=opclass.EXACT)
    digest = card.samples[0].tensors[0].blob
    path = tmp_path / digest[:2] / digest
    path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(HarnessProblem, match="damaged"):
        TrialPool(card, tmp_path, "s")
    path.unlink()
    with pytest.raises(HarnessProblem, match="can't be read"):
        TrialPool(card, tmp_path, "s")


def test_values_made_from_statistics_are_named_synthetic(tmp_path):
    card = card_of(tmp_path, "aten::relu", draw(1000), op_class=opclass.EXACT)
    blob = TensorBlob("", (1000,), (1,), "float32", 4000, stats=(5.0, 2.0, 0.0, 9.0))
    card = replace(card, samples=(CapturedCall(0, (blob,)),))
    pool = TrialPool(card, tmp_path, "s")
    values = pool.trials[0].tensors[0]
    assert pool.synthetic == ("self",) and any("synthetic" in n for n in pool.notes)
    assert 4.5 < values.mean() < 5.5 and values.min() >= 0.0 and values.max() <= 9.0


def test_inputs_that_share_memory_share_it_in_every_trial(tmp_path):
    x = draw(12, 12)
    card = card_of(tmp_path, "aten::mm", x, x.t(), op_class=opclass.MATMUL)
    shared = replace(card.key.tensors[1], shares=0)
    card = replace(card, key=replace(card.key, tensors=(card.key.tensors[0], shared)))
    for one in TrialPool(card, tmp_path, "s").trials:
        a, b = one.tensors
        assert torch.equal(a.t().nan_to_num(), b.nan_to_num()) and a.data_ptr() == b.data_ptr()


# Trials.


def test_the_same_seed_draws_the_same_trials_and_another_seed_others(tmp_path):
    card = card_of(tmp_path, "aten::gelu", draw(20, 80), op_class=opclass.TRANSCENDENTAL)
    one, same, other = (TrialPool(card, tmp_path, s) for s in ("a", "a", "b"))
    for a, b, c in zip(one.trials, same.trials, other.trials, strict=True):
        assert torch.equal(a.tensors[0].nan_to_num(), b.tensors[0].nan_to_num())
        assert a.name == "captured" or not torch.equal(a.tensors[0].nan_to_num(), c.tensors[0].nan_to_num())
    assert one.schedule() == same.schedule()


def test_every_trial_says_which_threat_it_is_for(tmp_path):
    card = card_of(tmp_path, "aten::softmax.int", draw(20, 80), -1, op_class=opclass.SOFTMAX)
    pool = TrialPool(card, tmp_path, "s")
    assert all(t.threat for t in pool.trials)
    assert {"captured", "redrawn", "block-scaled", "signs flipped", "special values", "shifted"} <= {
        t.name for t in pool.trials
    }


@given(st.integers(0, 1000), st.integers(1, 300), st.integers(2, 50))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_indices_stay_inside_their_captured_range(tmp_path, seed, count, rows):
    indices = torch.randint(rows, (count,), generator=torch.Generator().manual_seed(seed))
    card = card_of(tmp_path, "aten::embedding", draw(rows, 8), indices, op_class=opclass.EXACT, parameters=(0,))
    for one in TrialPool(card, tmp_path, str(seed)).trials:
        assert indices.min() <= one.tensors[1].min() and one.tensors[1].max() <= indices.max()


def test_sorted_boundaries_stay_sorted_and_offsets_stay_put(tmp_path):
    card = card_of(
        tmp_path,
        "aten::bucketize.Tensor",
        draw(500),
        torch.linspace(-2, 2, 20),
        op_class=opclass.INTEGER,
        parameters=(1,),
    )
    for one in TrialPool(card, tmp_path, "s").trials:
        assert (one.tensors[1].diff() >= 0).all()
    offsets = torch.arange(0, 64, 8)
    bag = card_of(
        tmp_path, "aten::embedding_bag", draw(50, 16), torch.randint(50, (64,)), offsets, op_class=opclass.POOL_AVERAGE
    )
    for one in TrialPool(bag, tmp_path, "s").trials:
        assert torch.equal(one.tensors[2], offsets)


def test_a_zero_bias_and_a_unit_weight_change_in_the_trials(tmp_path):
    x, w, b = draw(20, 64), torch.ones(64), torch.zeros(64)
    card = card_of(tmp_path, "aten::layer_norm", x, [64], w, b, op_class=opclass.REDUCTION_NORM, parameters=(1, 2))
    changed = trial(TrialPool(card, tmp_path, "s"), "parameters changed").tensors
    assert changed[1].std() > 0.1 and changed[2].std() > 0.1 and torch.equal(changed[0], x)


def test_a_running_variance_stays_positive(tmp_path):
    x, c = draw(2, 8, 6, 6), torch.ones(8)
    card = card_of(
        tmp_path, "aten::batch_norm", x, c, c * 0, c * 0, c * 0.01, False, 0.1, 1e-5, False,
        op_class=opclass.REDUCTION_NORM, parameters=(1, 2, 3, 4),
    )  # fmt: skip
    for one in TrialPool(card, tmp_path, "s").trials:
        assert (one.tensors[4] > 0).all()


def test_the_schedule_runs_every_trial_and_pairs_that_show_a_cache(tmp_path):
    card = card_of(tmp_path, "aten::gelu", draw(20, 80), op_class=opclass.TRANSCENDENTAL)
    pool = TrialPool(card, tmp_path, "s")
    slots = pool.schedule()
    assert {s.trial for s in slots} == set(range(len(pool.trials)))
    assert slots[0].placement == FRESH
    *_, kept, fresh, last = slots
    assert kept.placement == KEPT and fresh.placement == FRESH and kept.trial == fresh.trial != last.trial


def test_little_memory_gives_the_same_answers(tmp_path):
    card = card_of(tmp_path, "aten::softmax.int", draw(30, 200), -1, op_class=opclass.SOFTMAX)
    roomy, tight = TrialPool(card, tmp_path, "s"), TrialPool(card, tmp_path, "s", memory_limit=1)
    for i in (0, 3, 1, 3):
        assert torch.equal(*(p.expect(i)[0][0].nan_to_num() for p in (roomy, tight)))
        assert tight.check(i, roomy.expect(i)[0]).passed
    assert len(tight._kept) == 1 and tight.made(2).trial.name == roomy.trials[2].name


def test_large_cards_get_fewer_trials(tmp_path):
    card = card_of(tmp_path, "aten::gelu", draw(20, 80), op_class=opclass.TRANSCENDENTAL)
    large = replace(card, bytes_moved=128 << 20)
    assert len(TrialPool(large, tmp_path, "s").trials) < len(TrialPool(card, tmp_path, "s").trials)


def test_a_range_card_is_tried_at_each_recorded_size(tmp_path):
    short = card_of(tmp_path, "aten::softmax.int", draw(8, 32), -1, op_class=opclass.SOFTMAX)
    long = card_of(tmp_path, "aten::softmax.int", draw(8, 96), -1, op_class=opclass.SOFTMAX)
    card = replace(short, samples=(*short.samples, *long.samples))
    pool = TrialPool(card, tmp_path, "s")
    assert {t.tensors[0].shape[-1] for t in pool.trials} == {32, 96}
    for i in range(len(pool.trials)):
        assert pool.check(i, pool.expect(i)[0]).passed


# References.


def test_the_reference_is_float64_and_leaves_indices_alone(tmp_path):
    card = card_of(
        tmp_path,
        "aten::embedding_bag",
        draw(50, 16),
        torch.arange(40),
        torch.tensor([0, 10]),
        op_class=opclass.POOL_AVERAGE,
    )
    found = reference.reference(card.key, load_samples(card, tmp_path, "s")[0].tensors)
    assert not found.reduced and found.results[0].dtype == torch.float64 and found.results[1].dtype == torch.int64


def test_an_in_place_operator_leaves_the_judges_inputs_alone_and_its_result_is_the_written_input(tmp_path):
    x = draw(20, 80)
    card = card_of(tmp_path, "aten::relu_", x, op_class=opclass.EXACT, mutates=(0,))
    pool = TrialPool(card, tmp_path, "s")
    eager, _ = pool.expect(0)
    assert torch.equal(pool.trials[0].tensors[0], x) and torch.equal(eager[0], x.relu())
    assert pool.result_names == ("input 0 (written in place)",)
    assert not pool.check(0, [x]).passed


def test_scalars_reach_the_operator_as_it_was_called(tmp_path):
    card = card_of(tmp_path, "aten::add.Tensor", torch.arange(5, dtype=torch.int8), 3)
    assert call_operator(card.key, (torch.arange(5, dtype=torch.int8),))[0][0].dtype == torch.int8
    masked = card_of(tmp_path, "aten::masked_fill.Scalar", draw(4), torch.tensor([True, False, True, False]), 1.0)
    infinite = Arg("value", "float", "-inf")
    key = replace(masked.key, args=(*masked.key.args[:2], infinite))
    assert torch.isneginf(call_operator(key, (draw(4), torch.tensor([True, False, True, False])))[0][0]).sum() == 2


def test_operators_that_refuse_or_do_not_exist_are_told_apart(tmp_path):
    card = card_of(tmp_path, "aten::mm", draw(4, 4), draw(4, 4), op_class=opclass.MATMUL)
    with pytest.raises(OperatorRefused):
        call_operator(card.key, (draw(4, 4), draw(5, 4)))
    with pytest.raises(HarnessProblem, match="no operator"):
        call_operator(replace(card.key, op="aten::no_such_thing"), (draw(4, 4), draw(4, 4)))


def test_running_out_of_memory_is_the_machines_fault_not_the_candidates(tmp_path):
    card = card_of(tmp_path, "aten::repeat", draw(4), [2], op_class=opclass.EXACT)
    key = replace(card.key, args=(card.key.args[0], Arg("repeats", "int_list", [1 << 50])))
    with pytest.raises(MachineProblem, match="out of memory"):
        call_operator(key, (draw(4),))


def test_numerics_flags_are_put_back(tmp_path):
    card = card_of(
        tmp_path, "aten::mm", draw(4, 4), draw(4, 4), op_class=opclass.MATMUL, flags=("matmul=high", "deterministic")
    )
    before = (
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
    )
    TrialPool(card, tmp_path, "s")
    after = (
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
    )
    assert before == after


def test_autocast_is_part_of_what_eager_does(tmp_path):
    card = card_of(tmp_path, "aten::mm", draw(16, 64), draw(64, 16), op_class=opclass.MATMUL)
    rough = replace(card, key=replace(card.key, autocast="bfloat16"))
    x = load_samples(rough, tmp_path, "s")[0].tensors
    assert reference.eager(rough.key, x)[0].dtype == torch.bfloat16
    assert not TrialPool(rough, tmp_path, "s").ill_conditioned


# Nulls.


@pytest.mark.parametrize("name", sorted(nulls.NULLS))
def test_each_null_is_rejected_by_an_ordinary_card(tmp_path, name):
    x, w, b = draw(24, 128), torch.ones(128), torch.zeros(128)
    card = card_of(tmp_path, "aten::layer_norm", x, [128], w, b, op_class=opclass.REDUCTION_NORM, parameters=(1, 2))
    found = TrialPool(card, tmp_path, "s").nulls()
    assert found.usable
    assert [c.outcome for c in found.checks if c.line.startswith(name + ":")] == ["passed"]


def test_relu_on_positive_data_is_told_from_the_identity_by_the_trials(tmp_path):
    card = card_of(tmp_path, "aten::relu", draw(24, 128).abs() + 0.1, op_class=opclass.EXACT)
    found = TrialPool(card, tmp_path, "s").nulls()
    assert found.usable and any(
        c.line.startswith("first input: rejected by trial 'signs flipped'") for c in found.checks
    )


def test_a_card_whose_answer_is_always_zero_is_undiscriminating(tmp_path):
    card = card_of(tmp_path, "aten::mul.Tensor", draw(24, 128), 0.0, op_class=opclass.ONE_ROUNDING)
    found = TrialPool(card, tmp_path, "s").nulls()
    checks, usable, line = found
    assert not usable and "undiscriminating" in line
    assert any(c.outcome == "failed" for c in checks)


def test_a_null_that_does_not_apply_is_unknown_never_passed(tmp_path):
    card = card_of(tmp_path, "aten::argmax", draw(24, 128), -1, op_class=opclass.SELECTION)
    found = TrialPool(card, tmp_path, "s").nulls()
    assert found.usable
    assert {c.line.split(":")[0] for c in found.checks if c.outcome == "unknown"} >= {
        "lower precision",
        "mean constant",
    }


def test_copying_the_input_is_no_null_for_an_operator_that_copies(tmp_path):
    card = card_of(tmp_path, "aten::clone", draw(24, 128), op_class=opclass.EXACT)
    found = TrialPool(card, tmp_path, "s").nulls()
    assert found.usable and any("copying its first input" in c.line for c in found.checks)


def test_fresh_memory_of_the_same_layout_holds_the_given_values():
    template = draw(3, 4).t()
    made = like(template, template * 2)
    assert (
        made.stride() == template.stride()
        and torch.equal(made, template * 2)
        and made.data_ptr() != template.data_ptr()
    )
