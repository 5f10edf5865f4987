"""The model process as the engine drives it: real child, real frames, a model that prints, exits and fails."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from forge_tui.engine.processes import Child, ProblemReply, boot_command, child_environment
from forge_tui.records.verdict import Measurement
from forge_tui.records.workload import Captured, Loaded, WorkloadSpec

MODEL = """
import sys, torch, torch.nn as nn
print("noise on stdout", flush=True)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
    def forward(self, x):
        print("a line per forward", file=sys.stderr)
        return torch.softmax(torch.relu(self.linear(x)), -1)
def get_inputs():
    return [torch.randn(32, 64)]
def get_init_inputs():
    return []
"""


@pytest.fixture
async def child(tmp_path: Path) -> AsyncIterator[Child]:
    process = Child("model process")
    command = boot_command(sys.executable, "forge_tui.capture.process")
    await process.start(command, child_environment({"OMP_NUM_THREADS": "1"}), cwd=str(tmp_path))
    yield process
    await process.kill()


def spec_of(folder: Path, text: str = MODEL) -> WorkloadSpec:
    path = folder / "usermodel.py"
    path.write_text(text)
    return WorkloadSpec(str(path), threads=1)


def children_of(pid: int | None) -> list[str]:
    """Process ids of the living children, [] where the kernel doesn't list them."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return listed.read_text().split() if listed.exists() else []


async def test_load_and_capture_through_frames_while_the_model_prints(child: Child, tmp_path: Path) -> None:
    stages: list[dict[str, Any]] = []
    loaded = await child.request("load", spec_of(tmp_path), Loaded, 60)
    assert (loaded.kind, loaded.parameters, loaded.synthetic) == ("kernelbench", 4160, "random weights and inputs")
    blobs = tmp_path / "blobs"
    body = {"blob_dir": str(blobs), "byte_budget": 1 << 24, "runs": 2}
    result = await child.request("capture", body, Captured, 60, stages.append)
    assert result.bit_equal is True and {c.key.base_op for c in result.cards} == {"linear", "relu", "softmax"}
    assert all((blobs / t.blob[:2] / t.blob).is_file() for c in result.cards for s in c.samples for t in s.tensors)
    assert all(c.synthetic for c in result.cards) and next(s["stage"] for s in stages) == "timing the model"
    assert "noise on stdout" in child.last_lines or "a line per forward" in child.last_lines
    assert await child.request("health", {}, dict, 10) == {"ok": True}


async def test_a_bad_model_is_the_users_problem_and_the_process_stays(child: Child, tmp_path: Path) -> None:
    with pytest.raises(ProblemReply) as caught:
        await child.request("capture", {"blob_dir": str(tmp_path)}, Captured, 30)
    assert caught.value.problem.blame == "harness"
    for text, words in (
        (MODEL + "\nsys.exit(2)\n", "stops the program"),
        (MODEL.replace("Linear(64, 64)", "Linear(63, 64)"), "mat1 and mat2"),
        (MODEL.replace("Linear(64, 64)", "Linear(10**9, 10**6)"), "GiB"),
    ):
        with pytest.raises(ProblemReply) as caught:
            await child.request("load", spec_of(tmp_path, text), Loaded, 60)
        problem = caught.value.problem
        assert problem.blame == ("machine" if words == "GiB" else "user") and "\n" not in problem.line
        assert words in problem.line or "TiB" in problem.line, problem.line
    assert (await child.request("load", spec_of(tmp_path), Loaded, 60)).parameters == 4160


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
async def test_torch_compile_is_measured_in_a_process_of_its_own(child: Child, tmp_path: Path) -> None:
    await child.request("load", spec_of(tmp_path), Loaded, 60)
    measured = await child.request("model_compile", {"limit_s": 120}, Measurement, 150)
    if measured.value is None:
        pytest.skip(f"no compile baseline here: {measured.line}")
    assert measured.kind == "model compile" and measured.unit == "ms" and measured.detail is not None
    assert measured.low is not None and measured.low <= measured.value <= (measured.high or 0)
    assert measured.detail["pairs"] >= 10 and measured.detail["worst_difference"] < 1e-4


async def test_the_compile_limit_holds_and_leaves_no_process(child: Child, tmp_path: Path) -> None:
    slow = MODEL.replace(
        'print("noise on stdout", flush=True)',
        "import time, os\nif os.environ.get('TORCHINDUCTOR_COMPILE_THREADS'): time.sleep(60)",
    )
    await child.request("load", spec_of(tmp_path, slow), Loaded, 60)
    start = time.monotonic()
    measured = await child.request("model_compile", {"limit_s": 3}, Measurement, 30)
    assert measured.value is None and measured.line == "torch.compile took longer than 3 s"
    assert time.monotonic() - start < 15
    assert children_of(child.pid) == []


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("import sys,", "import os\nos.environ['CXX'] = '/bin/false'\nimport sys,", "torch.compile failed"),
        ("def forward", "@torch.compiler.disable\n    def forward", "compiled nothing"),
    ],
)
async def test_a_model_that_cannot_be_compiled_says_why_in_one_line(
    child: Child, tmp_path: Path, before: str, after: str, words: str
) -> None:
    await child.request("load", spec_of(tmp_path, MODEL.replace(before, after)), Loaded, 60)
    measured = await child.request("model_compile", {"limit_s": 100}, Measurement, 130)
    assert measured.value is None and words in measured.line and "\n" not in measured.line
