"""The judge on a device. Marked gpu where a device is needed; the rest runs anywhere."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import judge_cards
import pytest
import torch

from forge_tui.judge.gpu.buffers import alignment_given, set_count, unsuited
from forge_tui.judge.gpu.judgement import GpuJudgement
from forge_tui.judge.gpu.memory import CPU, Window
from forge_tui.judge.gpu.session import GpuSession, device_number
from forge_tui.judge.gpu.zones import Zones, fill
from forge_tui.languages.cuda import NVCC_FLAGS
from forge_tui.records.boot import PACKAGE
from forge_tui.records.candidate import Binary, Candidate
from forge_tui.records.card import Card, TensorSpec, VariantKey
from forge_tui.records.judging import JudgeJob, JudgeSettings
from forge_tui.records.plan import Plan, PlanArg, Step
from forge_tui.records.problem import UserInputError
from forge_tui.records.verdict import Verdict

PATTERN = b"\xc5\xff"
ROWS, COLUMNS = 2048, 1024
Judge = Callable[..., Verdict]


# Without a device.


def test_a_window_looks_at_foreign_memory_and_owns_nothing() -> None:
    memory = bytearray(range(64))
    pointer = ctypes.addressof((ctypes.c_char * 64).from_buffer(memory))
    window = Window(pointer, 64, CPU, 0)
    window.bytes[3] = 200
    assert memory[3] == 200
    assert window.bytes.view(torch.int32).numel() == 16


@pytest.mark.parametrize(("start", "stop"), [(0, 16), (1, 3), (2, 15), (5, 6), (4, 4)])
def test_fill_keeps_the_phase_and_the_neighbours(start: int, stop: int) -> None:
    memory = torch.zeros(32, dtype=torch.uint8)
    fill(memory, start, stop, b"\x01\x02\x03\x84")
    wanted = [(1, 2, 3, 132)[i % 4] if start <= i < stop else 0 for i in range(32)]
    assert memory.tolist() == wanted


@pytest.mark.parametrize("place", [0, 1, 7, 8, 20, 21, 63, 90, 101])
def test_a_changed_byte_of_a_zone_is_found_and_named(place: int) -> None:
    memory = torch.zeros(128, dtype=torch.uint8)
    memory.view(torch.int16).fill_(int.from_bytes(PATTERN, "little", signed=True))
    areas = [(0, 22), (61, 64), (90, 102)]
    zones = Zones(memory, areas, PATTERN)
    memory[30] = 1  # between the zones
    assert zones.broken() == -1
    memory[place] ^= 1
    assert zones.broken() == next(i for i, (a, b) in enumerate(areas) if a <= place < b)


def test_sets_reach_beyond_the_cache_but_not_beyond_the_memory() -> None:
    assert set_count(1 << 20, 60 << 20, 100 << 30, 3) == 120
    assert set_count(1 << 10, 60 << 20, 100 << 30, 3) == 128
    assert set_count(1 << 30, 60 << 20, 100 << 30, 3) == 2
    assert set_count(40 << 20, 60 << 20, 100 << 20, 3) == 2
    assert set_count(1 << 20, 60 << 20, 100 << 30, 100) == 10


@pytest.mark.parametrize("name", ["cuda:x", "gpu", "cuda:-1", "cuda:²"])
def test_a_device_no_judge_serves_is_the_users_mistake(name: str) -> None:
    with pytest.raises(UserInputError, match="use cpu, cuda or cuda:N"):
        device_number(name)


def test_a_card_that_writes_its_inputs_says_why_it_is_not_judged(tmp_path: Path) -> None:
    assert "in-place" in unsuited(judge_cards.relu_(tmp_path, 64).key)
    assert "not on the GPU" in unsuited(judge_cards.softmax(tmp_path).key)
    assert unsuited(on_gpu(judge_cards.softmax(tmp_path)).key) == ""


def test_a_buffer_is_aligned_as_the_card_saw(tmp_path: Path) -> None:
    spec = judge_cards.softmax(tmp_path).key.tensors[0]
    assert alignment_given(spec) == 256
    assert alignment_given(replace(spec, alignment=2)) == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_judge_says_so_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="sees no GPU for cuda:0: use device cpu"):
        GpuSession(settings(tmp_path))


# On a device.

HEAD = "#define N (2048*1024)\n#define I (blockIdx.x * blockDim.x + threadIdx.x)\n"
GELU = (
    HEAD
    + """
__device__ float one(float v) { return 0.5f * v * (1.f + tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v))); }
extern "C" __global__ void k(const float* x, float* y) { float v = x[I]; y[I] = one(v); BODY }
"""
)


def settings(tmp: Path) -> JudgeSettings:
    return JudgeSettings(
        str(tmp / "blobs"), str(tmp / "judge"), sys.executable, str(PACKAGE), "cuda:0", search_pairs=10,
        confirm_pairs=30, confirm_seconds=3.0, time_limit_s=8.0, machine_lock=str(tmp / "lock"), other_cores=None,
    )  # fmt: skip


def on_gpu(card: Card) -> Card:
    def moved(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(replace(s, device="cuda:0") for s in specs)

    key: VariantKey = replace(card.key, tensors=moved(card.key.tensors), outputs=moved(card.key.outputs))
    return replace(card, card_id=key.digest(), key=key)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuSession]:
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} sees no GPU")
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the path")
    made = GpuSession(settings(tmp_path_factory.mktemp("gpu")))
    made.hello()
    yield made
    made.close()


@pytest.fixture(scope="module")
def card(gpu: GpuSession) -> Card:
    gpu.blobs.mkdir(exist_ok=True)
    return on_gpu(judge_cards.gelu(gpu.blobs, ROWS, COLUMNS))


@pytest.fixture
def judge(gpu: GpuSession, card: Card, tmp_path: Path) -> Judge:
    def run(source: str, blocks: int = ROWS * COLUMNS // 256, confirm: bool = False, **step: object) -> Verdict:
        ready = gpu.open_card(card)
        assert ready.usable, ready.line
        (tmp_path / "k.cu").write_text(source)
        command = ["nvcc", *NVCC_FLAGS, f"-arch={gpu.device.target}", "k.cu", "-o", "k.cubin"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        raw = (tmp_path / "k.cubin").read_bytes()
        digest = hashlib.sha256(raw).hexdigest()
        path = gpu.blobs / digest[:2] / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
        args = (PlanArg("input", 0), PlanArg("output", 0))
        fields: dict[str, object] = {"block": ("256", "1", "1"), "args": args} | step
        plan = Plan(1, (Step("kernel", "k", (str(blocks), "1", "1"), **fields),))  # type: ignore[arg-type]
        candidate = Candidate("n1", card.card_id, "cuda", "T1", source, plan, "recipe")
        binary = Binary("cuda", digest, digest, (), "nvcc", gpu.device.target, 0.1, {"audit": "passed"})
        return GpuJudgement(gpu, JudgeJob(candidate, binary, confirm), lambda **_: None).run()

    return run


def outcome(verdict: Verdict, name: str) -> str:
    return next(c.outcome for c in verdict.checks if c.name == name)


def told(verdict: Verdict) -> str:
    return f"{verdict.outcome} {verdict.stage} {verdict.problem} {[c for c in verdict.checks if c.outcome != 'passed']}"


@pytest.mark.gpu
def test_an_honest_kernel_is_correct_and_timed_but_does_not_ship_yet(judge: Judge) -> None:
    verdict = judge(GELU.replace("BODY", ""), confirm=True)
    print(verdict.timing, verdict.floor_us, verdict.seconds, verdict.profile, told(verdict))
    assert verdict.outcome == "correct" and verdict.stage == "confirmed", told(verdict)
    for name in ("plan", "load", "launch", "guard", "hash", "poison", "error", "recheck", "wall", "floor"):
        assert outcome(verdict, name) == "passed", told(verdict)
    assert outcome(verdict, "installed") == "unknown"
    assert verdict.timing is not None and verdict.timing.samples
    assert not verdict.champion_worthy


CHEATS = {
    "illegal access": ("if (I == 0) y[1ll << 40] = 1;", "crash", "launch"),
    "an infinite loop": ("if (I == 0) while (((volatile float*)y)[0] < 1e30f) {}", "timeout", "launch"),
    "index overflow": ("y[(long long)(int)(I + 2147483647u)] = v;", "crash", "launch"),
    "a trap": ('if (I == 5) asm("trap;");', "crash", "launch"),
    "one past the end": ("if (I == 0) y[N] = v;", "out of bounds", "guard"),
    "one before the start": ("if (I == 0) y[-1] = v;", "out of bounds", "guard"),
    "written inputs": ("if (I == 7) ((float*)x)[7] = v + 1.f;", "changed its inputs", "hash"),
    "wrong values": ("if (I % 64 == 0) y[I] = v;", "numeric", "error"),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(CHEATS))
def test_each_fault_falls_under_its_own_name(judge: Judge, name: str) -> None:
    body, kind, check = CHEATS[name]
    verdict = judge(GELU.replace("BODY", body))
    assert verdict.problem is not None and verdict.problem.kind == kind, told(verdict)
    assert outcome(verdict, check) == "failed", told(verdict)


@pytest.mark.gpu
def test_an_unwritten_tail_is_seen_under_two_poisons(judge: Judge) -> None:
    verdict = judge(GELU.replace("BODY", ""), blocks=ROWS * COLUMNS // 256 - 1)
    assert verdict.problem is not None and verdict.problem.kind == "unwritten output", told(verdict)


@pytest.mark.gpu
def test_a_launch_the_driver_refuses_is_a_launch_error(judge: Judge) -> None:
    verdict = judge(GELU.replace("BODY", ""), blocks=1 << 16, cooperative=True)
    assert verdict.problem is not None and verdict.problem.kind == "launch error", told(verdict)


@pytest.mark.gpu
def test_a_plan_that_does_not_fit_the_binary_is_refused_before_launch(judge: Judge) -> None:
    verdict = judge(GELU.replace("BODY", ""), args=(PlanArg("input", 0),))
    assert verdict.problem is not None and verdict.problem.kind == "bad plan", told(verdict)
    assert outcome(verdict, "launch") == "unknown"


@pytest.mark.gpu
def test_skipping_work_on_contents_seen_before_is_caught_while_timed(judge: Judge) -> None:
    cheat = (
        HEAD
        + """
__device__ int seen[1 << 20]; __device__ float was[1 << 20];
__device__ float one(float v) { return 0.5f * v * (1.f + tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v))); }
extern "C" __global__ void k(const float* x, float* y) {
  const int at = (((unsigned long long)x >> 8) * 31 + blockIdx.x) & 0xfffff; const float v = x[I];
  __shared__ bool skip;
  if (threadIdx.x == 0) { skip = seen[at] >= 4 && was[at] == v; seen[at] = was[at] == v ? seen[at] + 1 : 1; was[at] = v; }
  __syncthreads();
  if (!skip) y[I] = one(v);
}
"""
    )
    verdict = judge(cheat)
    assert verdict.outcome == "rejected" and outcome(verdict, "recheck") == "failed", told(verdict)


@pytest.mark.gpu
def test_after_a_crash_the_next_candidate_is_judged_normally(judge: Judge) -> None:
    assert judge(GELU.replace("BODY", CHEATS["illegal access"][0])).outcome == "rejected"
    began = time.monotonic()
    verdict = judge(GELU.replace("BODY", ""))
    print(f"next verdict {time.monotonic() - began:.2f} s, compile included; {verdict.seconds:.2f} s judged")
    assert verdict.outcome == "correct", told(verdict)


@pytest.mark.gpu
def test_a_kernel_slowed_by_a_loop_is_slower_than_itself(judge: Judge) -> None:
    fast = judge(GELU.replace("BODY", ""))
    slow = judge(GELU.replace("BODY", "for (int i = 0; i < 40; i++) v = one(v); if (v == 77.f) y[I] = v;"))
    assert fast.timing is not None and slow.timing is not None, told(slow)
    assert slow.timing.candidate_us > fast.timing.candidate_us
