"""CUDA C++ (tier T1): device code only, to a cubin, by nvcc or NVRTC in the compile sandbox.

Invariants: no host code of a candidate is ever compiled or run; the flags are the same for every candidate and every
use; the plan's kernels and arguments are checked against the binary before anything is launched. Compiling needs no
device; without one the toolchain says "not run: no device".
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from forge_tui.languages import nvrtc
from forge_tui.languages.cache import CompileCache, content_key, default_folder
from forge_tui.languages.card_header import device_header
from forge_tui.languages.cpp import toolchain_folders
from forge_tui.languages.cubin import add_compiler_report, check_plan, kernels_of
from forge_tui.languages.cuda_audit import audit_device_source
from forge_tui.languages.cuda_toolchain import DEFAULT_ARCH, Compiler, device_architecture, find_nvcc, find_nvrtc
from forge_tui.languages.diagnostics import compile_error, limit_problem
from forge_tui.languages.elf import ElfError
from forge_tui.languages.language import Compiled, Toolchain
from forge_tui.records.card import VariantKey
from forge_tui.records.plan import Plan, PlanArg, Step
from forge_tui.records.problem import HarnessProblem, MachineProblem, Problem
from forge_tui.sandbox.boot import PACKAGE, isolated_command
from forge_tui.sandbox.child import Finished, run, run_async
from forge_tui.sandbox.confinement import MEBIBYTE, Confinement, Limits, compile_confinement, interpreter_paths

NVCC_FLAGS = ("-cubin", "-std=c++17", "-O3", "-Xptxas=-v", "-Xptxas=-O3", "-w", "--extra-device-vectorization")
LIMITS = Limits(cpu_s=90, memory_bytes=4096 * MEBIBYTE, file_bytes=64 * MEBIBYTE, open_files=256, processes=64)
NO_DEVICE = "not run: no device"
_SCRIPT = f"""
"$1" {shlex.join(NVCC_FLAGS)} "-arch=$2" --keep --keep-dir . source.cu -o candidate.cubin || exit {nvrtc.SOURCE_HAS_ERRORS}
if [ -n "$3" ]; then "$3" -sass candidate.cubin > candidate.sass 2>/dev/null || rm -f candidate.sass; fi
"""
_TRIAL_KEY = VariantKey("forge::trial", (), (), ())
_TRIAL = '#include "card.h"\nextern "C" __global__ void trial(float* x, int n) { x[threadIdx.x] = n; }\n'
_TRIAL_PLAN = Plan(
    1, (Step("kernel", "trial", args=(PlanArg("workspace"), PlanArg("scalar", ctype="i32", value="1"))),)
)
# What the generated code holds, read in PTX and, where a disassembler is there, in SASS.
_PTX = {
    "half": r"\b(?:add|sub|mul|fma|min|max|cvt|ex2|tanh)\.[\w.:]*\bb?f16(?:x2)?\b",
    "tf32": r"\btf32\b",
    "tensor_cores": r"\b(?:mma|wmma|wgmma)\.",
    "atomics": r"\b(?:atom|red)\.",
    "flush_to_zero": r"\.ftz\b",
    "local_memory": r"\b(?:ld|st)\.local\b|\.local\s+\.align",
    "prints": r"\bvprintf\b",
    "allocates": r"\bmalloc\b",
    "traps": r"^\s*trap;",
}
_SASS = {
    "half": r"\b(?:HADD2|HMUL2|HFMA2|F2FP|F2F\.[BF]*16)\b",
    "tf32": r"\bTF32\b",
    "tensor_cores": r"\b(?:HMMA|HGMMA|IMMA|IGMMA|QGMMA|DMMA)\b",
    "atomics": r"\b(?:ATOM|ATOMG|ATOMS|RED|REDG)\b",
    "local_memory": r"\b(?:LDL|STL)\b",
}


@dataclass(frozen=True)
class Cuda:
    """Implements Language. arch "" means the device's, or sm_90 without one. prefer "nvrtc" skips nvcc."""

    name: str = "cuda"
    tier: str = "T1"
    suffix: str = ".cu"
    arch: str = ""
    prefer: str = "nvcc"
    limit_s: float = 60.0
    limits: Limits = LIMITS
    cache: CompileCache | None = field(default_factory=lambda: CompileCache(default_folder()))

    def probe(self) -> Toolchain | Problem:
        """Find nvcc or NVRTC and compile a small kernel with it in the sandbox."""
        compiler = self._compiler()
        if compiler is None:
            line = "no CUDA compiler: neither nvcc nor NVRTC was found; install the CUDA toolkit or set CUDA_HOME"
            return Problem("machine", "toolchain", line)
        device = device_architecture()
        arch = self.arch or device or DEFAULT_ARCH
        toolchain = Toolchain(
            self.name, compiler.path, f"{compiler.kind} {compiler.version}", arch, device is not None,
            "" if device else NO_DEVICE,
        )  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="forge-probe-") as folder:
            scratch = Path(folder)
            try:
                self._write(_TRIAL, _TRIAL_KEY, scratch)
                confinement = self._confinement(toolchain, scratch)
                done = run(self._command(toolchain), confinement, self.limit_s, cwd=folder)
            except (HarnessProblem, MachineProblem, OSError) as error:
                return Problem("machine", "toolchain", f"the compile sandbox could not run {compiler.kind}: {error}")
            found = self._judge(done, scratch, _TRIAL_PLAN, _TRIAL_KEY, arch)
        if isinstance(found, Problem):
            line = f"{compiler.kind} could not build a small kernel for {arch}: {found.line}"
            return Problem("machine", "toolchain", line, found.detail)
        return toolchain

    def header(self, key: VariantKey) -> str:
        return device_header(key)

    def audit(self, source: str, plan: Plan, key: VariantKey) -> Problem | None:
        """Refuse host steps and what a device source does not need, before compiling."""
        if any(s.kind == "host" for s in plan.steps) or not any(s.kind == "kernel" for s in plan.steps):
            return Problem("candidate", "bad plan", "a CUDA candidate's plan has kernel and memset steps, no host step")
        return audit_device_source(source)

    async def compile(
        self, source: str, plan: Plan, key: VariantKey, toolchain: Toolchain, scratch: Path
    ) -> Compiled | Problem:
        """Build `candidate.cubin` in `scratch` and check the plan against it. Never raises for a bad candidate."""
        started = time.monotonic()
        output = scratch / "candidate.cubin"
        flags = self._flags(toolchain)
        digest = content_key(("cuda 1", source, self.header(key), *flags, toolchain.version, toolchain.target))
        stored = await asyncio.to_thread(self.cache.get, digest) if self.cache else None
        if stored is not None:
            data, report = stored
            output.write_bytes(data)
            problem = _fits(data, report["log"], plan, key, toolchain.target)
            return problem or Compiled(output, flags, time.monotonic() - started, report, cached=True)
        try:
            self._write(source, key, scratch)
            confinement = self._confinement(toolchain, scratch)
            done = await run_async(self._command(toolchain), confinement, self.limit_s, cwd=str(scratch))
        except HarnessProblem as error:
            return Problem("harness", "sandbox", str(error))
        except (MachineProblem, OSError) as error:
            return Problem("machine", "compile", f"the compiler could not be run: {error}")
        found = await asyncio.to_thread(self._judge, done, scratch, plan, key, toolchain.target)
        if isinstance(found, Problem):
            return found
        if self.cache:
            await asyncio.to_thread(self.cache.put, digest, output.read_bytes(), found)
        return Compiled(output, flags, time.monotonic() - started, found)

    def _compiler(self) -> Compiler | None:
        home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
        nvcc = None if self.prefer == "nvrtc" else find_nvcc(home)
        return nvcc or find_nvrtc(home)

    def _flags(self, toolchain: Toolchain) -> tuple[str, ...]:
        own = NVCC_FLAGS if toolchain.version.startswith("nvcc") else nvrtc.OPTIONS
        return (f"-arch={toolchain.target}", *own)

    def _command(self, toolchain: Toolchain) -> list[str]:
        if toolchain.version.startswith("nvcc"):
            beside = str(Path(toolchain.path).resolve().parent)
            disassembler = shutil.which("cuobjdump", path=f"{beside}:/usr/local/cuda/bin:/usr/bin") or ""
            return ["/bin/sh", "-c", _SCRIPT, "compile", toolchain.path, toolchain.target, disassembler]
        compiler = find_nvrtc(os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"))
        includes = compiler.includes if compiler else ()
        return isolated_command("forge_tui.languages.nvrtc", toolchain.path, toolchain.target, *includes)

    def _confinement(self, toolchain: Toolchain, scratch: Path) -> Confinement:
        read = toolchain_folders(toolchain.path)
        if not toolchain.version.startswith("nvcc"):
            neighbours = tuple(str(p) for p in Path(toolchain.path).resolve().parent.parent.parent.glob("*/include"))
            read += (*interpreter_paths(sys.executable), PACKAGE, *neighbours)
        return compile_confinement(scratch, read=read, limits=self.limits)

    def _write(self, source: str, key: VariantKey, scratch: Path) -> None:
        (scratch / "source.cu").write_text(source, encoding="utf-8")
        (scratch / "card.h").write_text(self.header(key), encoding="utf-8")

    def _judge(self, done: Finished, scratch: Path, plan: Plan, key: VariantKey, arch: str) -> dict[str, Any] | Problem:
        limit = limit_problem(done, self.limit_s, self.limits)
        if limit is not None:
            return limit
        binary = scratch / "candidate.cubin"
        log = done.stderr + done.stdout
        if done.ended.code == nvrtc.SOURCE_HAS_ERRORS:
            return compile_error(log, "the compiler failed without a message")
        if done.ended.code != 0 or not binary.is_file():
            return Problem("harness", "compile", f"the compile script ended with {done.ended.line}", log[-2000:])
        data = binary.read_bytes()
        ptxas_log = "\n".join(line for line in log.splitlines() if "ptxas" in line or "spill" in line)[:65536]
        problem = _fits(data, ptxas_log, plan, key, arch)
        if problem is not None:
            return problem
        kernels = add_compiler_report(kernels_of(data), ptxas_log)
        return {
            "kernels": {n: asdict(k) | {"parameters": [list(p) for p in k.parameters]} for n, k in kernels.items()},
            "opcodes": _opcodes(scratch),
            "binary_bytes": len(data),
            "log": ptxas_log,
        }


def _fits(data: bytes, log: str, plan: Plan, key: VariantKey, arch: str) -> Problem | None:
    try:
        kernels = add_compiler_report(kernels_of(data), log)
    except ElfError as error:
        return Problem("candidate", "load error", f"the built cubin can't be read: {error}")
    if not kernels:
        return Problem("candidate", "bad plan", 'the source has no kernel: declare it extern "C" __global__')
    return check_plan(plan, key, kernels, arch)


def _opcodes(scratch: Path) -> dict[str, Any]:
    """Flags from the listings the compiler left; "unknown" where there is none. `from` names the listings read."""
    found: dict[str, Any] = {"from": []}
    for file, patterns in (("source.ptx", _PTX), ("candidate.sass", _SASS)):
        listing = scratch / file
        if listing.is_file():
            text = listing.read_text(encoding="utf-8", errors="replace")
            found["from"].append(file.split(".")[1])
            for name, pattern in patterns.items():
                found[name] = bool(re.search(pattern, text, re.MULTILINE)) or found.get(name) is True
    for name in _PTX:
        found.setdefault(name, "unknown")
    return found
