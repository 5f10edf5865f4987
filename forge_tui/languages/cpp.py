"""C++ on the CPU (tier T3): g++ in two steps, preprocessed, audited, compiled, linked and measured in the sandbox.

Invariants: the flags are the same for every candidate and every use; -ffast-math appears nowhere, and the link line
carries no arithmetic flag at all (a g++ link with one switches the whole process to flush-to-zero when the library is
loaded); the library has no start-up code; nothing of the candidate is loaded here.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge_tui.languages.cache import CompileCache, content_key, default_folder
from forge_tui.languages.card_header import host_header
from forge_tui.languages.cpp_audit import audit_preprocessed, audit_source
from forge_tui.languages.diagnostics import compile_error, limit_problem
from forge_tui.languages.imports import audit_imports
from forge_tui.languages.language import Compiled, Toolchain
from forge_tui.records.card import VariantKey
from forge_tui.records.plan import Plan, host_plan
from forge_tui.records.problem import HarnessProblem, MachineProblem, Problem
from forge_tui.sandbox.child import Finished, run, run_async
from forge_tui.sandbox.confinement import MEBIBYTE, Confinement, Limits, compile_confinement

COMPILE_FLAGS = (
    "-O3", "-march=native", "-fopenmp", "-std=c++20", "-fno-math-errno", "-ffp-contract=fast", "-fPIC",
    "-fvisibility=hidden", "-fno-semantic-interposition", "-fno-exceptions", "-fno-rtti", "-fno-stack-protector",
    "-U_FORTIFY_SOURCE", "-frandom-seed=forge", "-w", "-fdiagnostics-color=never", "-fmax-errors=8",
)  # fmt: skip
# -nostartfiles: without the compiler's own start-up objects every start-up routine left is the candidate's, and refused.
LINK_FLAGS = (
    "-shared", "-fopenmp", "-nostartfiles", "-Wl,-z,defs", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack",
    "-Wl,--as-needed", "-Wl,--build-id=none",
)  # fmt: skip
LIMITS = Limits(cpu_s=90, memory_bytes=3072 * MEBIBYTE, file_bytes=64 * MEBIBYTE, open_files=256, processes=64)
# Instruction sets worth naming in a record; the cache key holds all of them.
FEATURES = frozenset(
    [
        "sse4_2",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "bmi2",
        "avx_vnni",
        "avx512f",
        "avx512bw",
        "avx512dq",
        "avx512vl",
        "avx512_bf16",
        "avx512_fp16",
        "avx512_vnni",
        "amx_tile",
        "amx_bf16",
        "amx_int8",
        "asimd",
        "asimdhp",
        "sve",
        "sve2",
        "bf16",
        "i8mm",
    ]
)
_EXIT_PREPROCESS, _EXIT_COMPILE, _EXIT_LINK = 11, 12, 13
_SCRIPT = f"""
"$1" {shlex.join(COMPILE_FLAGS)} -E source.cpp -o source.ii || exit {_EXIT_PREPROCESS}
"$1" {shlex.join(COMPILE_FLAGS)} -c source.ii -o source.o || exit {_EXIT_COMPILE}
"$1" {shlex.join(LINK_FLAGS)} source.o -o candidate.so || exit {_EXIT_LINK}
if [ -n "$2" ]; then "$2" -d --no-show-raw-insn candidate.so > candidate.asm 2>/dev/null || rm -f candidate.asm; fi
"""
_TRIAL = '#include "card.h"\n#include <cmath>\n#include <omp.h>\nint forge_launch(const forge_args* a) {\n  float s = 0;\n#pragma omp parallel for reduction(+:s)\n  for (int i = 0; i < 64; ++i) s += std::sqrt((float)i);\n  return s < 0;\n}\n'
_EMPTY_KEY = VariantKey("forge::trial", (), (), ())
_REGISTER = re.compile(r"%([xyz])mm\d")


@dataclass(frozen=True)
class Cpp:
    """Implements Language. limit_s: wall seconds of one compile. cache None: compile every time."""

    name: str = "cpp"
    tier: str = "T3"
    suffix: str = ".cpp"
    limit_s: float = 60.0
    limits: Limits = LIMITS
    cache: CompileCache | None = field(default_factory=lambda: CompileCache(default_folder()))

    def probe(self) -> Toolchain | Problem:
        """Find g++ (or the GCC that CXX names) and build a small OpenMP library with it in the sandbox."""
        compiler = os.environ.get("CXX", "g++")
        path = shutil.which(compiler)
        if path is None:
            return _machine(
                f"no C++ compiler: {compiler} is not on the path; install g++ (Debian: apt-get install g++)"
            )
        try:
            said = subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return _machine(f"{compiler} could not be run: {error}")
        first = said.stdout.splitlines()[0] if said.stdout else ""
        if said.returncode != 0 or "Free Software Foundation" not in said.stdout:
            return _machine(f"{compiler} is not GCC ({first[:60] or 'no version'}); install g++ or set CXX to one")
        toolchain = Toolchain(self.name, path, f"g++ {first.split()[-1]}", _target())
        with tempfile.TemporaryDirectory(prefix="forge-probe-") as folder:
            scratch = Path(folder)
            try:
                self._write(_TRIAL, _EMPTY_KEY, scratch)
                done = run(_command(toolchain), self._confinement(toolchain, scratch), self.limit_s, cwd=str(scratch))
            except (HarnessProblem, MachineProblem, OSError) as error:
                return _machine(f"the compile sandbox could not run {compiler}: {error}")
            problem = self._judge(done, scratch, host_plan())
        if isinstance(problem, Problem):
            return _machine(f"{compiler} could not build a small OpenMP library: {problem.line}", problem.detail)
        return toolchain

    def header(self, key: VariantKey) -> str:
        return host_header(key)

    def audit(self, source: str, plan: Plan, key: VariantKey) -> Problem | None:
        """Refuse constructs a kernel does not need, before compiling."""
        if [s.kind for s in plan.steps].count("host") != 1 or any(s.kind == "kernel" for s in plan.steps):
            return Problem(
                "candidate", "bad plan", "a C++ candidate's plan has exactly one host step and no kernel step"
            )
        return audit_source(source)

    async def compile(
        self, source: str, plan: Plan, key: VariantKey, toolchain: Toolchain, scratch: Path
    ) -> Compiled | Problem:
        """Build `candidate.so` in `scratch`. Never raises for a bad candidate."""
        started = time.monotonic()
        output = scratch / "candidate.so"
        digest = content_key(
            ("cpp 1", source, self.header(key), *COMPILE_FLAGS, "link", *LINK_FLAGS, toolchain.version, _all_features())
        )
        stored = await asyncio.to_thread(self.cache.get, digest) if self.cache else None
        if stored is not None:
            data, report = stored
            problem = _entries(report["exports"], plan)
            if problem is not None:
                return problem
            output.write_bytes(data)
            return Compiled(output, _flags(), time.monotonic() - started, report, cached=True)
        try:
            self._write(source, key, scratch)
            confinement = self._confinement(toolchain, scratch)
            done = await run_async(_command(toolchain), confinement, self.limit_s, cwd=str(scratch))
        except HarnessProblem as error:
            return Problem("harness", "sandbox", str(error))
        except (MachineProblem, OSError) as error:
            return Problem("machine", "compile", f"the compiler could not be run: {error}")
        found = await asyncio.to_thread(self._judge, done, scratch, plan)
        if isinstance(found, Problem):
            return found
        if self.cache:
            await asyncio.to_thread(self.cache.put, digest, output.read_bytes(), found)
        return Compiled(output, _flags(), time.monotonic() - started, found)

    def _write(self, source: str, key: VariantKey, scratch: Path) -> None:
        (scratch / "source.cpp").write_text(source, encoding="utf-8")
        (scratch / "card.h").write_text(self.header(key), encoding="utf-8")

    def _confinement(self, toolchain: Toolchain, scratch: Path) -> Confinement:
        return compile_confinement(scratch, read=toolchain_folders(toolchain.path), limits=self.limits)

    def _judge(self, done: Finished, scratch: Path, plan: Plan) -> dict[str, Any] | Problem:
        """What came out of the compiler: the first problem, or the resource report."""
        limit = limit_problem(done, self.limit_s, self.limits)
        if limit is not None:
            return limit
        preprocessed = scratch / "source.ii"
        if preprocessed.exists() and done.ended.code != _EXIT_PREPROCESS:
            refused = audit_preprocessed(preprocessed.read_text(encoding="utf-8", errors="replace"), "source.cpp")
            if refused is not None:
                return refused
        if done.ended.code == _EXIT_LINK and "__dso_handle" in done.stderr:
            return Problem(
                "candidate", "static audit", "a global object with a destructor runs code at load and unload"
            )
        if done.ended.code in (_EXIT_PREPROCESS, _EXIT_COMPILE, _EXIT_LINK):
            return compile_error(done.stderr, "the compiler failed without a message")
        library = scratch / "candidate.so"
        if done.ended.code != 0 or not library.is_file():
            return Problem(
                "harness", "compile", f"the compile script ended with {done.ended.line}", done.stderr[-2000:]
            )
        facts = audit_imports(library.read_bytes())
        if isinstance(facts, Problem):
            return facts
        return _entries(facts["exports"], plan) or facts | _vector_use(scratch / "candidate.asm")


def toolchain_folders(path: str) -> tuple[str, ...]:
    """Installation folder of a compiler outside the system's folders (conda, a home directory); none for a system one."""
    real = Path(path).resolve()
    return () if real.is_relative_to("/usr") or real.parent.parent == Path("/") else (str(real.parent.parent),)


def _entries(exports: list[str], plan: Plan) -> Problem | None:
    if plan.prepare is not None and plan.prepare.entry not in exports:
        return Problem(
            "candidate", "load error", f"the plan names {plan.prepare.entry[:60]}, which the library does not have"
        )
    return None


def _command(toolchain: Toolchain) -> list[str]:
    return ["/bin/sh", "-c", _SCRIPT, "compile", toolchain.path, shutil.which("objdump", path="/usr/bin:/bin") or ""]


def _flags() -> tuple[str, ...]:
    return (*COMPILE_FLAGS, "|", *LINK_FLAGS)


def _vector_use(listing: Path) -> dict[str, Any]:
    """How wide the vectors are that the code uses, from the disassembly; "unknown" without one or on other machines."""
    if not listing.is_file() or os.uname().machine != "x86_64":
        return {"vector_bits": "unknown"}
    counts = {"x": 0, "y": 0, "z": 0}
    with listing.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            widest = max(_REGISTER.findall(line), default="")
            if widest:
                counts[widest] += 1
    bits = 512 if counts["z"] else 256 if counts["y"] else 128 if counts["x"] else 0
    return {"vector_bits": bits, "vector_instructions": {"128": counts["x"], "256": counts["y"], "512": counts["z"]}}


def _all_features() -> str:
    """The processor's model and feature line: what -march=native looks at."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown processor"
    first = text.split("\n\n")[0]
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")
    return "\n".join(line for line in first.splitlines() if line.split("\t")[0].strip() in wanted)


def _target() -> str:
    """Machine and the instruction sets a record names: "x86-64 avx avx2 ..."."""
    present = FEATURES & set(re.findall(r"[\w]+", _all_features()))
    return " ".join((os.uname().machine.replace("_", "-"), *sorted(present)))


def _machine(line: str, detail: str = "") -> Problem:
    return Problem("machine", "toolchain", line, detail)
