"""Triton, tier T2: checked as a syntax tree, compiled ahead of time in the sandbox to a cubin, launched like CUDA.

The plan's kernel steps name the jit functions; their `args` are the run-time parameters in order, `constants` of the plan
fill the `tl.constexpr` parameters by name, and the constants num_warps, num_stages and num_ctas are compile options.
No Triton is needed where the binary runs. The compiled file is a zip of cubins with `report.json`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

from forge_tui.languages import triton_source
from forge_tui.languages.language import Compiled, Toolchain
from forge_tui.records.card import VariantKey
from forge_tui.records.plan import Plan, PlanArg, Step
from forge_tui.records.problem import Problem
from forge_tui.sandbox.child import run_async
from forge_tui.sandbox.confinement import Limits, compile_confinement, interpreter_paths

CHILD = Path(__file__).with_name("triton_child.py")
POINTERS = {
    "float32": "*fp32", "float64": "*fp64", "float16": "*fp16", "bfloat16": "*bf16", "int64": "*i64", "int32": "*i32", "int16": "*i16",
    "int8": "*i8", "uint8": "*u8", "bool": "*i1", "float8_e4m3fn": "*fp8e4nv", "float8_e5m2": "*fp8e5",
}  # fmt: skip
SCALARS = {"f32": "fp32", "f64": "fp64", "f16": "fp16", "bf16": "bf16", "bool": "i1"}
OPTIONS = ("num_warps", "num_stages", "num_ctas")
LIMIT_S = 90.0


class Triton:
    """See the module. Without a GPU it compiles and says "not run: no device"."""

    name = "triton"
    tier = "T2"
    suffix = ".py"

    def probe(self) -> Toolchain | Problem:
        if importlib.util.find_spec("triton") is None:
            return Problem("machine", "no toolchain", "Triton is not installed: pip install 'forge_tui[triton]'")
        arch = os.environ.get("FORGE_CUDA_ARCH", "sm_90")
        device = Path("/dev/nvidiactl").exists()
        return Toolchain(
            "triton",
            sys.executable,
            f"triton {importlib.metadata.version('triton')}",
            arch,
            device,
            "" if device else "not run: no device",
        )

    def header(self, key: VariantKey) -> str:
        """Triton takes no header: sizes come as parameters and constants of the plan."""
        return ""

    def audit(self, source: str, plan: Plan, key: VariantKey) -> Problem | None:
        wrong = triton_source.faults(source)
        if wrong:
            return Problem("candidate", "static audit", wrong[0], "\n".join(wrong))
        known = triton_source.kernels(source)
        for number, step in enumerate(plan.steps):
            if step.kind == "host":
                return Problem(
                    "candidate", "bad plan", f"step {number}: a Triton candidate has kernel and memset steps only"
                )
            if step.kind == "kernel" and step.kernel not in known:
                return Problem(
                    "candidate", "bad plan", f"step {number}: no @triton.jit function is called {step.kernel}"
                )
            if step.kind == "kernel":
                line = _arguments_fit(step, known[step.kernel], plan)
                if line:
                    return Problem("candidate", "bad plan", f"step {number}: {line}")
        return None

    async def compile(
        self, source: str, plan: Plan, key: VariantKey, toolchain: Toolchain, scratch: Path
    ) -> Compiled | Problem:
        started = time.monotonic()
        (scratch / "candidate.py").write_text(source)
        arch = int("".join(c for c in toolchain.target if c.isdigit()) or 90)
        known = triton_source.kernels(source)
        jobs = [_job(step, known[step.kernel], plan, key) for step in plan.steps if step.kind == "kernel"]
        tf32 = any(flag in ("matmul=high", "matmul=medium", "allow_tf32") for flag in key.flags)
        (scratch / "job.json").write_text(json.dumps({"arch": arch, "tf32": tf32, "kernels": jobs}))
        roots = tuple(str(Path(p)) for p in sys.path if p.endswith("site-packages"))
        confinement = compile_confinement(
            scratch, read=(*interpreter_paths(), *roots, str(CHILD)), limits=Limits(cpu_s=120, open_files=1024, processes=64),
            environment={"TRITON_CACHE_DIR": str(scratch / "cache"), "TRITON_HOME": str(scratch)},
        )  # fmt: skip
        done = await run_async(
            [sys.executable, "-P", str(CHILD), str(scratch / "job.json")], confinement, limit_s=LIMIT_S
        )
        report_file = scratch / "report.json"
        if not report_file.exists():
            kind = "timeout" if done.timed_out else "compile error"
            return Problem(
                "candidate", kind, _last_line(done.stderr) or done.ended.line, _shortened(done.stderr, scratch)
            )
        report: dict[str, Any] = json.loads(report_file.read_text())
        target = scratch / "kernels.zip"
        with zipfile.ZipFile(target, "w") as archive:
            for entry in sorted([*(k["file"] for k in report["kernels"]), "report.json"]):
                archive.writestr(zipfile.ZipInfo(entry), (scratch / entry).read_bytes())
        report["digest"] = hashlib.sha256(target.read_bytes()).hexdigest()
        flags = (f"-arch=sm_{arch}", "default_dot_input_precision=" + ("tf32" if tf32 else "ieee"))
        return Compiled(target, flags, time.monotonic() - started, report)


def _arguments_fit(step: Step, parameters: tuple[tuple[str, bool], ...], plan: Plan) -> str:
    run_time = [name for name, constant in parameters if not constant]
    missing = [name for name, constant in parameters if constant and name not in plan.constants]
    if missing:
        return f"{step.kernel} needs a value for the constant {missing[0]} (constants of the plan)"
    if len(run_time) != len(step.args):
        return f"{step.kernel} takes {len(run_time)} run-time parameters ({', '.join(run_time)}), the plan gives {len(step.args)}"
    return ""


def _job(step: Step, parameters: tuple[tuple[str, bool], ...], plan: Plan, key: VariantKey) -> dict[str, Any]:
    signature: dict[str, str] = {}
    divisible: list[str] = []
    arguments = iter(step.args)
    for name, constant in parameters:
        if constant:
            signature[name] = "constexpr"
            continue
        argument = next(arguments)
        signature[name], aligned = _parameter(argument, key)
        if aligned:
            divisible.append(name)
    return {
        "name": step.kernel,
        "signature": signature,
        "constants": {name: plan.constants[name] for name, constant in parameters if constant},
        "divisible": divisible,
        "num_warps": plan.constants.get("num_warps", 4),
        "num_stages": plan.constants.get("num_stages", 3),
        "num_ctas": plan.constants.get("num_ctas", 1),
    }


def _parameter(argument: PlanArg, key: VariantKey) -> tuple[str, bool]:
    """Triton type of a run-time parameter, and whether it is known to be divisible by 16."""
    if argument.kind in ("input", "output"):
        spec = (key.tensors if argument.kind == "input" else key.outputs)[argument.index]
        return POINTERS.get(spec.dtype, "*u8"), argument.kind == "output" or spec.alignment >= 16
    if argument.kind in ("workspace", "prepared"):
        return POINTERS.get(argument.ctype, "*fp32"), argument.offset.isdigit() and int(argument.offset) % 16 == 0
    return SCALARS.get(argument.ctype, argument.ctype), False


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _shortened(text: str, scratch: Path) -> str:
    """The part of a traceback that speaks of the candidate's own lines."""
    lines = text.replace(str(scratch) + "/", "").splitlines()
    own = [i for i, line in enumerate(lines) if "candidate.py" in line or line.startswith(("at ", "triton.", "error"))]
    start = own[0] if own else max(0, len(lines) - 12)
    return "\n".join(lines[start : start + 40])[:4000]
