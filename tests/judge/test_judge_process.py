"""Honest kernels pass every check, and the judge answers the engine's verbs over real frames."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import judge_cards as cards
import judge_kernels
import pytest
import torch
from judge_kernels import GELU

from forge_tui.engine.processes import Child, ProblemReply, boot_command, child_environment
from forge_tui.judge.buffers import Buffers
from forge_tui.judge.floor import Rates
from forge_tui.judge.timing import Pairs, Sample, bootstrap, half_width, timing_record
from forge_tui.records import opclass
from forge_tui.records.boot import PACKAGE
from forge_tui.records.card import Arg
from forge_tui.records.judging import CardReady, CompileJob, JudgeHello, JudgeSettings
from forge_tui.records.plan import Plan, Prepare, Step, Workspace, host_plan
from forge_tui.records.verdict import CHECKS, Measurement, Verdict

LAUNCH = 'extern "C" int forge_launch(const forge_args* a) {'


def outcomes(verdict: Verdict) -> dict[str, str]:
    return {c.name: c.outcome for c in verdict.checks}


def test_a_correct_kernel_passes_all_checks(judge: Any, session: Any, blob_dir: Path) -> None:
    verdict = judge(cards.gelu(blob_dir, 64, 256), GELU, fast=True)
    assert (verdict.outcome, verdict.stage) == ("correct", "timed"), verdict.problem
    found = outcomes(verdict)
    assert list(found) == list(CHECKS)
    expected = {"plan", "load", "launch", "protocol", "guard", "hash", "poison", "meta", "nonfinite", "error", "determinism",
                "recheck", "wall", "floor"}  # fmt: skip
    assert {name for name in expected if found[name] != "passed"} == set()
    assert "failed" not in found.values()
    assert verdict.timing is not None and len(verdict.timing.samples) == verdict.timing.pairs
    assert verdict.seed == "", "the search's trials serve more candidates"


def test_a_confirmation_uses_fresh_seeds_and_times_the_installed_call(judge: Any, blob_dir: Path) -> None:
    verdict = judge(cards.gelu(blob_dir, 64, 256), GELU, fast=True, confirm=True)
    assert (verdict.outcome, verdict.stage) == ("correct", "confirmed"), verdict.problem
    assert verdict.confirmation and len(verdict.seed) == 32
    installed = next(c for c in verdict.checks if c.name == "installed")
    assert installed.outcome == "passed" and verdict.installed is not None, installed.line
    assert verdict.installed.call == "installed"


def test_an_operator_that_writes_its_input_is_judged_on_restored_inputs(judge: Any, blob_dir: Path) -> None:
    source = f"{LAUNCH} float* x = (float*)X(0); for (long i = 0; i < N; i++) x[i] = x[i] < 0 ? 0 : x[i]; return 0; }}"
    verdict = judge(cards.relu_(blob_dir), source)
    assert verdict.outcome == "correct", verdict.problem  # NaN stays NaN: the comparison is false
    source = (
        f"{LAUNCH} float* x = (float*)X(0); for (long i = 0; i < N - 1; i++) x[i] = x[i] < 0 ? 0 : x[i]; return 0; }}"
    )
    assert judge(cards.relu_(blob_dir), source).outcome == "rejected"


def test_a_number_in_a_tensors_place_arrives_as_a_scalar(judge: Any, blob_dir: Path) -> None:
    source = f"{LAUNCH} float b = a->scalars[0].v.i; for (long i = 0; i < N; i++) Y(0)[i] = X(0)[i] + b; return 0; }}"
    verdict = judge(cards.add_one(blob_dir), source)
    assert verdict.outcome == "correct", verdict.problem


def test_inputs_come_with_the_strides_of_the_capture(judge: Any, blob_dir: Path) -> None:
    base = cards.values(48, 96)
    x = base.t()
    card = cards.card(blob_dir, "aten::relu", (Arg("self", "tensor", 0),), {"self": x}, (torch.relu(x),), opclass.EXACT)
    source = f"""{LAUNCH} auto& t = a->inputs[0]; auto& o = a->outputs[0];
      for (long i = 0; i < t.sizes[0]; i++) for (long j = 0; j < t.sizes[1]; j++) {{
        float v = X(0)[i * t.strides[0] + j * t.strides[1]]; Y(0)[i * o.strides[0] + j * o.strides[1]] = v < 0 ? 0 : v; }}
      return 0; }}"""
    verdict = judge(card, source)
    assert verdict.outcome == "correct", verdict.problem
    flat = f"{LAUNCH} for (long i = 0; i < N; i++) Y(0)[i] = X(0)[(i % 96) * 48 + i / 96] < 0 ? 0 : X(0)[(i % 96) * 48 + i / 96]; return 0; }}"
    assert judge(card, flat).outcome == "rejected"


def test_a_sum_whose_last_bit_varies_is_labelled_and_accepted(judge: Any, blob_dir: Path) -> None:
    source = f"""{LAUNCH} long n = a->inputs[0].sizes[1];
      for (long r = 0; r < a->inputs[0].sizes[0]; r++) {{ double s = 0;
        #pragma omp parallel for schedule(dynamic, 16) reduction(+ : s)
        for (long i = 0; i < n; i++) s += X(0)[r * n + i];
        Y(0)[r] = (float)s * (rand() % 2 ? 1.0f : 1.0f + 6e-8f); }} return 0; }}"""
    verdict = judge(cards.total(blob_dir), source)
    assert verdict.outcome == "correct", verdict.problem
    assert "vary from run to run" in next(c.line for c in verdict.checks if c.name == "determinism")


def test_a_zeroed_workspace_is_zero_and_prepare_runs_on_new_weights(judge: Any, blob_dir: Path) -> None:
    x, weight = cards.values(32, 64), cards.values(64, seed=5).abs() + 0.5
    args = (Arg("self", "tensor", 0), Arg("other", "tensor", 1))
    card = cards.card(
        blob_dir, "aten::mul.Tensor", args, {"self": x, "other": weight}, (x * weight,), opclass.ONE_ROUNDING,
        parameters=("other",),
    )  # fmt: skip
    source = """extern "C" int forge_prepare(const forge_args* a, void* p) { memcpy(p, X(1), 256); return 0; }
    extern "C" int forge_launch(const forge_args* a) { const float* w = (const float*)a->prepared; float* z = (float*)a->workspace;
      for (long i = 0; i < N; i++) Y(0)[i] = X(0)[i] * w[i % 64] + z[i % 16]; z[3] = 7; return 0; }"""
    plan = Plan(1, (Step("host"),), Workspace("64", zeroed=True), Prepare((1,), "in1_numel * 4"))
    verdict = judge(card, source, plan=plan)
    assert verdict.outcome == "correct", verdict.problem
    assert verdict.timing is not None and "prepare" in verdict.timing.method


def test_buffers_have_exactly_the_promised_alignment_and_no_worker_can_write_inputs(blob_dir: Path) -> None:
    buffers = Buffers(cards.gelu(blob_dir, 16, 16, alignment=16).key, placement=5, workspace_bytes=100)
    try:
        assert buffers.sealed
        assert all(p.offset % 32 == 16 for places in buffers.input_at for p in places)
        assert all(p.offset % 128 == 64 for places in buffers.slot_at for p in places)
        with pytest.raises(PermissionError):
            import mmap

            mmap.mmap(buffers.inputs.fd, buffers.inputs.size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        assert buffers.broken_zone() == ""
        buffers.outputs.bytes[buffers.slot_at[0][0].offset - 1] = 0
        assert "before the first output" in buffers.broken_zone()
    finally:
        buffers.close()


def test_the_interval_of_a_steady_two_times_speed_up_is_near_two() -> None:
    slow = tuple(Sample(10, 20_000 + k % 3, 21_000) for k in range(40))
    fast = tuple(Sample(10, 10_000 + k % 2, 11_000) for k in range(40))
    low, ratio, high = bootstrap(slow, fast, 1, 2000)
    assert 1.99 < low <= ratio <= high < 2.01
    timing = timing_record(Pairs(10, slow, fast, (low, ratio, high)), "batch", 0.01, 2)
    assert timing.verdict == "faster" and timing.candidate_us == pytest.approx(1.0, rel=0.01)
    assert half_width(Pairs(10, slow, slow, bootstrap(slow, slow, 1, 100))) < 0.001


def test_the_floor_takes_the_slower_of_memory_and_arithmetic(blob_dir: Path) -> None:
    rates = Rates(((1 << 16, 100.0), (1 << 20, 50.0), (1 << 26, 20.0)), {"float32": 200.0})
    small, large = cards.gelu(blob_dir, 8, 64), cards.gelu(blob_dir, 1024, 1024)
    assert rates.floor_us(small) == pytest.approx(small.bytes_moved / 100e3)
    assert rates.floor_us(large) == pytest.approx(large.bytes_moved / 20e3)


async def test_the_process_answers_the_engines_verbs(tmp_path: Path, blob_dir: Path) -> None:
    child = Child("judge")
    await child.start(
        boot_command(sys.executable, "forge_tui.judge.process"), child_environment({"OMP_NUM_THREADS": "2"})
    )
    card = cards.softmax(blob_dir)
    source = f"""{LAUNCH} long n = a->inputs[0].sizes[1];
      #pragma omp parallel for
      for (long r = 0; r < a->inputs[0].sizes[0]; r++) {{ const float* x = X(0) + r * n; float* y = Y(0) + r * n;
        float m = -INFINITY; double s = 0; for (long i = 0; i < n; i++) m = x[i] > m || x[i] != x[i] ? x[i] : m;
        for (long i = 0; i < n; i++) s += exp((double)x[i] - m); for (long i = 0; i < n; i++) y[i] = exp((double)x[i] - m) / s; }} return 0; }}"""
    settings = JudgeSettings(
        str(blob_dir),
        str(tmp_path),
        sys.executable,
        str(PACKAGE),
        search_pairs=5,
        machine_lock=str(tmp_path / "lock"),
        other_cores=None,
    )
    try:
        with pytest.raises(ProblemReply, match="hello"):
            await child.request("open_card", card, CardReady, 60)
        hello = await child.request("hello", settings, JudgeHello, 180)
        assert hello.torch == torch.__version__ and hello.profile["layers"]
        ready = await child.request("open_card", card, CardReady, 120)
        assert ready.usable and ready.eager_us and ready.nulls
        assert {m.kind for m in ready.measurements} >= {"eager", "aa", "copy bandwidth", "matmul rate"}
        steps: list[Any] = []
        verdict = await child.request("judge", judge_kernels.job(card, source, blob_dir), Verdict, 120, steps.append)
        assert verdict.outcome == "correct", verdict.problem
        assert [s["step"] for s in steps] == ["trials", "timing"]
        assert await child.request("health", {}, dict, 10) == {"ok": True}
        compiled = await child.request("compile_baseline", CompileJob(card.card_id), Measurement, 180)
        assert compiled.kind == "compile" and (compiled.value is not None or compiled.line)
    finally:
        await child.close()


def test_unknown_plan_steps_are_a_bad_plan(judge: Any, blob_dir: Path) -> None:
    plan = Plan(1, (Step("kernel", "k"),), host_plan().workspace)
    verdict = judge(cards.gelu(blob_dir, 64, 256), GELU, plan=plan)
    assert verdict.problem is not None and verdict.problem.kind == "bad plan"
