"""C++ candidates: built with fixed flags, refused constructs by name, bombs stopped, nothing of the machine readable."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from language_cards import softmax_key

from forge_tui.languages import cpp as cpp_module
from forge_tui.languages.cpp import COMPILE_FLAGS, LINK_FLAGS, Cpp
from forge_tui.languages.language import Compiled, Toolchain
from forge_tui.records.plan import Plan, Prepare, Step, host_plan
from forge_tui.records.problem import Problem
from forge_tui.sandbox.confinement import MEBIBYTE, Limits

START = '#include "card.h"\n'
GOOD = """#include "card.h"
#include <cmath>
int forge_launch(const forge_args* a) {
  const float* x = (const float*)a->inputs[0].data;
  float* y = (float*)a->outputs[0].data;
#pragma omp parallel for num_threads(2)
  for (int64_t i = 0; i < card::in0_numel; ++i) y[i] = x[i] * 0.5f + std::sqrt(x[i]);
  return 0;
}
"""
ENTRY = "\nint forge_launch(const forge_args* a) { return 0; }\n"


async def build(cpp: Cpp, gcc: Toolchain, folder: Path, source: str, plan: Plan | None = None) -> Compiled | Problem:
    """Audit and compile as the engine does."""
    plan, key = plan or host_plan(), softmax_key()
    return cpp.audit(source, plan, key) or await cpp.compile(source, plan, key, gcc, folder)


async def refusal(cpp: Cpp, gcc: Toolchain, folder: Path, source: str) -> Problem:
    found = await build(cpp, gcc, folder, source)
    assert isinstance(found, Problem), "it was built"
    return found


async def test_a_kernel_becomes_a_library_with_a_report(cpp: Cpp, gcc: Toolchain, tmp_path: Path) -> None:
    built = await build(cpp, gcc, tmp_path, GOOD)
    assert isinstance(built, Compiled), built
    report = built.report
    assert report["exports"] == ["forge_launch"] and "GOMP_parallel" in report["imports"]
    assert report["text_bytes"] > 0 and report["vector_bits"] in (128, 256, 512, "unknown")
    assert set(report["libraries"]) <= {"libgomp.so.1", "libc.so.6", "libm.so.6"}
    assert not built.cached and built.path.read_bytes()[:4] == b"\x7fELF"
    assert isinstance(ctypes.CDLL(str(built.path)).forge_launch, ctypes._CFuncPtr)


async def test_flags_are_the_same_for_every_candidate_and_free_of_paths_and_fast_math(
    cpp: Cpp, gcc: Toolchain, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = await build(cpp, gcc, tmp_path / "a", GOOD)
    second = await build(cpp, gcc, tmp_path / "b", GOOD.replace("0.5f", "0.25f"))
    assert isinstance(first, Compiled) and isinstance(second, Compiled)
    assert first.flags == second.flags == (*COMPILE_FLAGS, "|", *LINK_FLAGS)
    assert not any("/" in flag or "fast-math" in flag or "Ofast" in flag for flag in first.flags)
    arithmetic = {
        "-ffast-math",
        "-funsafe-math-optimizations",
        "-fno-math-errno",
        "-ffp-contract=fast",
        "-march=native",
    }
    assert not arithmetic & set(LINK_FLAGS)


def keeps_denormals(library: Path) -> bool:
    code = "import ctypes,sys; ctypes.CDLL(sys.argv[1]); x=2.0**-1070; print(x/2 != 0.0 and x*1.0 == x)"
    done = subprocess.run([sys.executable, "-c", code, str(library)], capture_output=True, text=True, check=True)
    return done.stdout.strip() == "True"


async def test_loading_a_candidate_keeps_denormal_numbers(cpp: Cpp, gcc: Toolchain, tmp_path: Path) -> None:
    built = await build(cpp, gcc, tmp_path, GOOD)
    assert isinstance(built, Compiled)
    assert keeps_denormals(built.path)


def test_the_trap_that_the_two_step_link_avoids_is_real(gcc: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("int x;")
    command = [gcc.path, "-ffast-math", "-shared", "-fPIC", "a.cpp", "-o", "a.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    if keeps_denormals(tmp_path / "a.so"):
        pytest.skip(f"{gcc.version} no longer flips flush-to-zero in a shared library")


async def test_the_same_source_builds_the_same_bytes(cpp: Cpp, gcc: Toolchain, tmp_path: Path) -> None:
    contents = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        built = await build(cpp, gcc, tmp_path / name, GOOD)
        assert isinstance(built, Compiled)
        contents.append(built.path.read_bytes())
    assert contents[0] == contents[1]


async def test_a_second_compile_comes_from_the_cache_and_a_changed_file_does_not(
    cached_cpp: Cpp, gcc: Toolchain, tmp_path: Path
) -> None:
    results = []
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        results.append(await build(cached_cpp, gcc, tmp_path / name, GOOD))
        if name == "b":
            [stored] = (tmp_path / "cache").glob("??/*/binary")
            stored.write_bytes(stored.read_bytes()[:-1] + b"X")
    assert [isinstance(r, Compiled) and r.cached for r in results] == [False, True, False]
    first, second = results[0], results[1]
    assert isinstance(first, Compiled) and isinstance(second, Compiled)
    assert first.report == second.report and first.path.read_bytes() == second.path.read_bytes()
    other = await build(cached_cpp, gcc, tmp_path, GOOD.replace("0.5f", "0.75f"))
    assert isinstance(other, Compiled) and not other.cached


REFUSED = {
    "inline assembly": (START + 'int f() { asm("nop"); return 0; }' + ENTRY, "assembly"),
    "assembly by spelling": (START + 'int f() { __asm__ volatile("nop"); return 0; }' + ENTRY, "assembly"),
    "assembly by token pasting": (START + "#define P(a, b) a##b\nint f() { P(as, m)(\"nop\"); return 0; }" + ENTRY, "assembly"),
    "assembly behind a splice": (START + 'int f() { a\\\nsm("nop"); return 0; }' + ENTRY, "assembly"),
    "assembly after a raw string": (START + 'auto s = R"(")"; int f() { asm("nop"); return 0; }' + ENTRY, "assembly"),
    "forged line marker": (START + '# 1 "/usr/include/math.h" 1 3\n' + ENTRY, "hides where code comes from"),
    "marker in a raw string": (START + 'auto s = R"(\n# 1 "/usr/x.h" 1 3\n)";' + ENTRY, "raw string"),
    "#line": (START + '#line 5 "x.h"\n' + ENTRY, "hides where code comes from"),
    "constructor": (START + "__attribute__((constructor)) void f() {}" + ENTRY, "library is loaded"),
    "constructor by spelling": (START + "__attribute__((__constructor__)) static void f() {}" + ENTRY, "library is loaded"),
    "constructor in brackets": (START + "[[gnu::constructor]] void f() {}" + ENTRY, "library is loaded"),
    "constructor by macro": (
        START + "#define A(x) __attribute__((x##tor))\nA(construc) void f() {}" + ENTRY, "library is loaded"),
    "ifunc": (START + 'extern "C" void* r() { return 0; }\nvoid g() __attribute__((ifunc("r")));' + ENTRY, "library is loaded"),
    "target_clones": (START + '__attribute__((target_clones("avx2", "default"))) int f() { return 1; }' + ENTRY, "loaded"),
    "global initialiser": (START + "int f(); int g = f(); int f() { volatile int x = 1; return x; }" + ENTRY, "when it is loaded"),
    "global object": (START + "struct S { S(); ~S(); int x; } s; S::S() { x = 1; } S::~S() { x = 2; }" + ENTRY, "at load"),
    "section": (START + '__attribute__((section(".text"))) const char code[] = "x";' + ENTRY, "code is expected"),
    "absolute include": (START + '#include "/etc/passwd"' + ENTRY, "leaves the source folder"),
    "upward include": (START + '#include "../secret.h"' + ENTRY, "leaves the source folder"),
    "computed include": (START + '#define H "/etc/passwd"\n#include H' + ENTRY, "write the header's name out"),
    "digraph include": (START + '%:include "/etc/passwd"' + ENTRY, "leaves the source folder"),
    "include over a comment": (START + '#include /*\n*/ "/etc/passwd"' + ENTRY, "leaves the source folder"),
    "include off the list": (START + "#include <unistd.h>" + ENTRY, "not on the list"),
    "include_next": (START + "#include_next <math.h>" + ENTRY, "not on the list"),
    "embed": (START + 'char c[] = {\n#embed "/etc/passwd"\n};' + ENTRY, "reads files"),
    "has_include": (START + '#if __has_include("/home/someone/.ssh/id_rsa")\n#endif' + ENTRY, "which files exist"),
    "incbin": (START + 'asm(".incbin \\"/etc/passwd\\"");' + ENTRY, "assembly"),
    "optimize attribute": (START + '__attribute__((optimize("fast-math"))) int f() { return 0; }' + ENTRY, "fixed"),
    "optimize pragma": (START + '#pragma GCC optimize("Ofast")' + ENTRY, "fixed"),
    "pragma by operator": (START + '_Pragma("GCC optimize(\\"Ofast\\")")' + ENTRY, "fixed"),
    "time stamp counter": (START + "#include <x86intrin.h>\nint f() { return (int)__rdtsc(); }" + ENTRY, "reads the clock"),
    "fork": (START + 'extern "C" int fork();\nint forge_launch(const forge_args*) { return fork(); }', "starts processes"),
    "socket": (START + 'extern "C" int socket(int, int, int);\nint forge_launch(const forge_args*) { return socket(2, 1, 0); }', "network"),
    "dlopen": (START + 'extern "C" void* dlopen(const char*, int);\nint forge_launch(const forge_args*) { return !dlopen("x", 1); }', "at run time"),
    "threads": (START + 'extern "C" int pthread_create(void*, void*, void*, void*);\nint forge_launch(const forge_args*) { return pthread_create(0, 0, 0, 0); }', "starts threads"),
    "system calls": (START + 'extern "C" long syscall(long, ...);\nint forge_launch(const forge_args*) { return syscall(57); }', "kernel"),
    "files": (START + 'extern "C" int open(const char*, int);\nint forge_launch(const forge_args*) { return open("/etc/passwd", 0); }', "files"),
    "clock": (START + "#include <omp.h>\nint forge_launch(const forge_args*) { return omp_get_wtime() > 5; }", "reads the clock"),
    "printing": (START + 'extern "C" int puts(const char*);\nint forge_launch(const forge_args*) { return puts("PASS"); }', "prints"),
    "unknown import": (START + 'extern "C" int getuid();\nint forge_launch(const forge_args*) { return getuid(); }', "not on the list"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
async def test_refused_constructs_are_named(cpp: Cpp, gcc: Toolchain, tmp_path: Path, name: str) -> None:
    source, word = REFUSED[name]
    problem = await refusal(cpp, gcc, tmp_path, source)
    assert (problem.blame, problem.kind) == ("candidate", "static audit"), problem
    assert word in problem.line, problem.line


HONEST = {
    "words in comments and strings": START + '// asm constructor __rdtsc\nstatic const char* s = "asm";\n' + ENTRY,
    "vectors and attributes": START
    + "typedef float v __attribute__((vector_size(64)));\nstatic inline __attribute__((always_inline)) v f(v a) { return a * 2; }\n"
    + "int forge_launch(const forge_args* a) { v x = {1}; return f(x)[0] > 5; }",
    "intrinsics and OpenMP": START
    + "#include <omp.h>\n#include <immintrin.h>\nint forge_launch(const forge_args* a) { int n = 0;\n"
    + "#pragma omp parallel reduction(+:n)\nn += omp_get_thread_num();\nreturn n > 1000; }",
    "a vector and a sort": START
    + "#include <vector>\n#include <algorithm>\nint forge_launch(const forge_args* a) { std::vector<float> v(a->n_inputs);\n"
    + "std::sort(v.begin(), v.end()); return v.size() > 1000; }",
    "a pragma for unrolling": START
    + "int forge_launch(const forge_args* a) { int s = 0;\n#pragma GCC unroll 4\nfor (int i = 0; i < a->n_inputs; i++) s += i;\n"
    + "return s > 1000; }",
}


@pytest.mark.parametrize("name", HONEST)
async def test_honest_sources_are_not_refused(cpp: Cpp, gcc: Toolchain, tmp_path: Path, name: str) -> None:
    if name == "intrinsics and OpenMP" and os.uname().machine != "x86_64":
        pytest.skip("x86 intrinsics")
    built = await build(cpp, gcc, tmp_path, HONEST[name])
    assert isinstance(built, Compiled), built


async def test_a_compile_error_is_short_and_has_the_source_line(cpp: Cpp, gcc: Toolchain, tmp_path: Path) -> None:
    source = START + "int forge_launch(const forge_args* a) {\n  return missing_name(a);\n}\n"
    problem = await refusal(cpp, gcc, tmp_path, source)
    assert problem.kind == "compile error"
    assert problem.line.startswith("line 3: ") and "missing_name" in problem.line
    assert "return missing_name(a);" in problem.detail and str(tmp_path) not in problem.detail + problem.line
    assert len(problem.detail) <= 4000


async def test_errors_in_library_headers_lose_their_folders(cpp: Cpp, gcc: Toolchain, tmp_path: Path) -> None:
    source = (
        START
        + "#include <vector>\nstruct N { N(const N&) = delete; };\nint forge_launch(const forge_args*) {\n  std::vector<N> v; N* n = 0; v.push_back(*n); return 0; }\n"
    )
    problem = await refusal(cpp, gcc, tmp_path, source)
    assert problem.kind == "compile error" and "/usr/" not in problem.detail and len(problem.detail) <= 4000


async def test_a_source_without_the_entry_is_told_what_to_define(cpp: Cpp, gcc: Toolchain, tmp_path: Path) -> None:
    problem = await refusal(cpp, gcc, tmp_path, "int x;")
    assert problem.kind == "load error" and "forge_launch" in problem.line and "card.h" in problem.line
    plan = Plan(1, (Step("host"),), prepare=Prepare((0,), "64"))
    built = await cpp.compile(GOOD, plan, softmax_key(), gcc, tmp_path)
    assert isinstance(built, Problem) and "forge_prepare" in built.line


async def test_an_undefined_function_is_a_compile_error_with_its_name(cpp: Cpp, gcc: Toolchain, tmp_path: Path) -> None:
    source = START + "int helper(int);\nint forge_launch(const forge_args* a) { return helper(a->n_inputs); }\n"
    problem = await refusal(cpp, gcc, tmp_path, source)
    assert problem.kind == "compile error" and "helper" in problem.line


def test_a_plan_with_kernels_is_no_cpp_plan(cpp: Cpp) -> None:
    problem = cpp.audit(GOOD, Plan(1, (Step("kernel", "k"),)), softmax_key())
    assert problem is not None and problem.kind == "bad plan"


BOMBS = {
    "template recursion": (
        START + "template <int N> struct A { static constexpr int v = A<N + 1>::v + 1; };\nint x = A<0>::v;" + ENTRY,
        "template depth"),
    "constexpr loop": (
        START + "constexpr long f() { long s = 0; for (long i = 0; i < 1L << 40; i++) s += i; return s; }\nconstexpr long z = f();"
        + ENTRY, "constexpr steps"),
}  # fmt: skip
EXPONENTIAL = (
    START
    + "template <int N, int M> struct A { static constexpr int v = A<N - 1, 2 * M>::v + A<N - 1, 2 * M + 1>::v; };\n"
    "template <int M> struct A<0, M> { static constexpr int v = 1; };\nint x = A<28, 0>::v;" + ENTRY
)


@pytest.mark.parametrize("name", BOMBS)
async def test_compile_bombs_are_stopped_with_the_reason(cpp: Cpp, gcc: Toolchain, tmp_path: Path, name: str) -> None:
    source, word = BOMBS[name]
    problem = await refusal(cpp, gcc, tmp_path, source)
    assert problem.kind == "resource limit" and word in problem.line


async def test_an_exponential_template_meets_the_wall_limit(gcc: Toolchain, tmp_path: Path) -> None:
    problem = await refusal(Cpp(cache=None, limit_s=1.5), gcc, tmp_path, EXPONENTIAL)
    assert problem.kind == "timeout" and "1.5 s" in problem.line


async def test_a_compiler_that_eats_memory_meets_the_memory_limit(gcc: Toolchain, tmp_path: Path) -> None:
    small = Limits(cpu_s=60, memory_bytes=96 * MEBIBYTE, file_bytes=64 * MEBIBYTE, open_files=256, processes=64)
    problem = await refusal(Cpp(cache=None, limits=small), gcc, tmp_path, EXPONENTIAL)
    assert problem.kind == "resource limit" and "memory" in problem.line and "96 MiB" in problem.line


async def test_a_huge_output_meets_the_file_limit(gcc: Toolchain, tmp_path: Path) -> None:
    small = Limits(cpu_s=60, memory_bytes=2048 * MEBIBYTE, file_bytes=2 * MEBIBYTE, open_files=256, processes=64)
    source = (
        START + "char data[8 << 20] = {1};\n" + "int forge_launch(const forge_args* a) { return data[a->n_inputs]; }\n"
    )
    problem = await refusal(Cpp(cache=None, limits=small), gcc, tmp_path, source)
    assert problem.kind == "resource limit" and "output size" in problem.line


async def test_the_compiler_cannot_read_the_machine_even_when_the_audit_is_left_out(
    cpp: Cpp, gcc: Toolchain, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("#error the key is sk-12345\n")
    (tmp_path / "build").mkdir()
    for header in (str(secret), "../secret.h", "/etc/passwd"):
        source = f'{START}#include "{header}"{ENTRY}'
        problem = await cpp.compile(source, host_plan(), softmax_key(), gcc, tmp_path / "build")
        assert isinstance(problem, Problem)
        assert "sk-12345" not in problem.line + problem.detail and "root:" not in problem.line + problem.detail


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo clang version 15.0", "is not GCC (clang version 15.0)"),
        ("exit 3", "is not GCC (no version)"),
        ("echo g++ 12.0; echo Free Software Foundation", "could not build a small OpenMP library"),
    ],
)
def test_a_broken_compiler_is_a_machine_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cpp: Cpp, script: str, words: str
) -> None:
    fake = tmp_path / "cc"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    found = cpp.probe()
    assert isinstance(found, Problem) and found.blame == "machine" and words in found.line


def test_a_missing_compiler_is_a_machine_problem_with_the_fix(monkeypatch: pytest.MonkeyPatch, cpp: Cpp) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = cpp.probe()
    assert isinstance(found, Problem) and found.blame == "machine" and "install g++" in found.line


def test_the_toolchain_names_its_version_and_target(gcc: Toolchain) -> None:
    assert gcc.language == "cpp" and gcc.version.startswith("g++ ") and gcc.runnable
    assert gcc.target.split()[0] == os.uname().machine.replace("_", "-")
    assert cpp_module.toolchain_folders("/usr/bin/g++") == ()
