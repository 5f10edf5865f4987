"""CUDA candidates: device code to a cubin, what the binary says about itself, and plans that do not fit it."""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from language_cards import softmax_key, tensor

from forge_tui.languages import cuda_toolchain
from forge_tui.languages.cache import CompileCache
from forge_tui.languages.cubin import check_plan, kernels_of
from forge_tui.languages.cuda import Cuda
from forge_tui.languages.language import Compiled, Toolchain
from forge_tui.records.plan import Plan, PlanArg, Prepare, Step, host_plan
from forge_tui.records.problem import Problem
from forge_tui.sandbox.confinement import MEBIBYTE, Limits

KEY = softmax_key(tensor(128, 1024, dtype="bfloat16"))
SOURCE = """#include "card.h"
extern "C" __global__ void scale(const card::in0_t* x, card::out0_t* y, long long n, float s, bool on, short shift) {
  __shared__ float buffer[64];
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  buffer[threadIdx.x & 63] = s;
  __syncthreads();
  if (i < n && on) y[i] = __float2bfloat16(__bfloat162float(x[i]) * buffer[(i + shift) & 63]);
}
"""
ARGS = (
    PlanArg("input", 0), PlanArg("output", 0), PlanArg("scalar", ctype="i64", value="in0_numel"),
    PlanArg("scalar", ctype="f32", value="0.5"), PlanArg("scalar", ctype="bool", value="1"),
    PlanArg("scalar", ctype="i16", value="3"),
)  # fmt: skip
STEP = Step("kernel", "scale", ("ceildiv(in0_numel, 256)", "1", "1"), ("256", "1", "1"), args=ARGS)
PLAN = Plan(1, (STEP,))


async def build(cuda: Cuda, nvcc: Toolchain, folder: Path, source: str, plan: Plan = PLAN) -> Compiled | Problem:
    return cuda.audit(source, plan, KEY) or await cuda.compile(source, plan, KEY, nvcc, folder)


@pytest.fixture(scope="session")
def cubin(nvcc: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    import asyncio

    built = asyncio.run(build(Cuda(cache=None), nvcc, tmp_path_factory.mktemp("cubin"), SOURCE))
    assert isinstance(built, Compiled), built
    return built.path.read_bytes()


async def test_a_kernel_becomes_a_cubin_with_a_report(cuda: Cuda, nvcc: Toolchain, tmp_path: Path) -> None:
    built = await build(cuda, nvcc, tmp_path, SOURCE)
    assert isinstance(built, Compiled), built
    kernel = built.report["kernels"]["scale"]
    assert [size for _, size in kernel["parameters"]] == [8, 8, 8, 4, 1, 2]
    assert 0 < kernel["registers"] <= 255 and kernel["shared_bytes"] == 256
    assert kernel["spill_store_bytes"] == kernel["spill_load_bytes"] == kernel["stack_bytes"] == 0
    assert built.report["opcodes"]["tensor_cores"] is False and "ptx" in built.report["opcodes"]["from"]
    assert built.flags[0] == "-arch=sm_90" and not any("fast" in flag for flag in built.flags)


async def test_what_the_code_does_shows_in_the_opcode_flags(cuda: Cuda, nvcc: Toolchain, tmp_path: Path) -> None:
    source = """#include "card.h"
#include <mma.h>
extern "C" __global__ void k(float* w, const float* v, int n) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 8, precision::tf32, row_major> a;
  fragment<matrix_b, 16, 16, 8, precision::tf32, col_major> b;
  fragment<accumulator, 16, 16, 8, float> c;
  fill_fragment(c, 0.f); load_matrix_sync(a, v, 8); load_matrix_sync(b, v, 8); mma_sync(c, a, b, c);
  store_matrix_sync(w, c, 16, mem_row_major);
  double local[300];
  for (int i = 0; i < 300; i++) local[i] = v[i] * n;
  atomicAdd(w, (float)local[n % 300]);
}
"""
    args = (PlanArg("workspace"), PlanArg("workspace"), PlanArg("scalar", ctype="i32", value="7"))
    built = await build(cuda, nvcc, tmp_path, source, Plan(1, (replace(STEP, kernel="k", args=args),)))
    assert isinstance(built, Compiled), built
    opcodes = built.report["opcodes"]
    assert opcodes["tensor_cores"] and opcodes["tf32"] and opcodes["atomics"] and opcodes["local_memory"]
    assert built.report["kernels"]["k"]["stack_bytes"] >= 2400


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kernel": "other"}, ("kernel other is not in the binary", "scale")),
        ({"args": ARGS[:3]}, ("takes 6 parameters", "passes 3")),
        (
            {"args": (*ARGS[:2], PlanArg("scalar", ctype="i32", value="1"), *ARGS[3:])},
            ("parameter 2", "8 bytes", "i32 with 4"),
        ),
        ({"args": (PlanArg("tensor_map", 0, value="in", box=(8, 8)), *ARGS[1:])}, ("parameter 0", "with 128")),
        ({"block": ("1025", "1", "1")}, ("block of 1025x1x1", "1024")),
        ({"block": ("0", "1", "1")}, ("block of 0x1x1",)),
        ({"grid": ("1", "65536", "1")}, ("grid of 1x65536x1",)),
        ({"grid": ("in0_numel - in0_numel", "1", "1")}, ("grid of 0x1x1",)),
        ({"shared_bytes": "256 * 1024"}, ("dynamic shared memory", "227 KiB")),
        ({"block": ("1 / 0", "1", "1")}, ("division by zero",)),
    ],
)
def test_a_plan_that_does_not_fit_the_binary_is_named(
    cubin: bytes, change: dict[str, object], words: tuple[str, ...]
) -> None:
    plan = Plan(1, (Step("memset", bytes="16"), replace(STEP, **change)))  # type: ignore[arg-type]
    problem = check_plan(plan, KEY, kernels_of(cubin), "sm_90")
    assert problem is not None and problem.kind == "bad plan"
    assert all(word in problem.line for word in ("step 1", *words)), problem.line


def test_a_fitting_plan_has_no_problem(cubin: bytes) -> None:
    assert check_plan(PLAN, KEY, kernels_of(cubin), "sm_90") is None
    prepared = replace(PLAN, prepare=Prepare((), "64", "scale"))
    assert check_plan(prepared, KEY, kernels_of(cubin), "sm_90") is None
    missing = check_plan(replace(PLAN, prepare=Prepare((), "64")), KEY, kernels_of(cubin), "sm_90")
    assert missing is not None and "forge_prepare" in missing.line


async def test_launch_bounds_and_required_blocks_bind_the_plan(cuda: Cuda, nvcc: Toolchain, tmp_path: Path) -> None:
    bounded = SOURCE.replace("void scale", "void __launch_bounds__(128) scale")
    problem = await build(cuda, nvcc, tmp_path, bounded)
    assert isinstance(problem, Problem) and "allows 1 to 128" in problem.line


async def test_a_mangled_kernel_is_told_to_be_extern_c(cuda: Cuda, nvcc: Toolchain, tmp_path: Path) -> None:
    problem = await build(cuda, nvcc, tmp_path, SOURCE.replace('extern "C" ', ""))
    assert isinstance(problem, Problem) and problem.kind == "bad plan" and 'extern "C"' in problem.line


async def test_a_compile_error_is_short_and_has_the_source_line(cuda: Cuda, nvcc: Toolchain, tmp_path: Path) -> None:
    problem = await build(cuda, nvcc, tmp_path, SOURCE.replace("buffer[(i", "missing[(i"))
    assert isinstance(problem, Problem) and problem.kind == "compile error"
    assert problem.line.startswith("line 7: ") and "missing" in problem.line
    assert str(tmp_path) not in problem.detail and "/usr/" not in problem.detail


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("void f(float* x) { scale<<<1, 1>>>(x); }", "belongs in the plan"),
        ("int main() { return 0; }", "host code"),
        ("void f() { cudaMalloc(0, 1); }", "workspace"),
        ('#include "/etc/passwd"', "not on the list"),
        ("#include <torch/extension.h>", "not on the list"),
        ("#include <cuda/../../secret>", "not on the list"),
        ('#if __has_include("/etc/passwd")\n#endif', "which files exist"),
        ('const char c[] = {\n#embed "/etc/passwd"\n};', "reads files"),
    ],
)
def test_host_code_and_file_reads_are_refused_before_compiling(cuda: Cuda, text: str, word: str) -> None:
    problem = cuda.audit(SOURCE + text + "\n", PLAN, KEY)
    assert problem is not None and problem.kind == "static audit" and word in problem.line


def test_plans_of_other_tiers_and_sources_without_kernels_are_refused(cuda: Cuda) -> None:
    problem = cuda.audit(SOURCE, host_plan(), KEY)
    assert problem is not None and problem.kind == "bad plan"
    problem = cuda.audit("int x;", PLAN, KEY)
    assert problem is not None and "__global__" in problem.line


async def test_bombs_are_stopped_with_the_reason(nvcc: Toolchain, tmp_path: Path) -> None:
    deep = (
        SOURCE + "template <int N> struct A { static constexpr int v = A<N + 1>::v; };\n__device__ int x = A<0>::v;\n"
    )
    problem = await build(Cuda(cache=None), nvcc, tmp_path, deep)
    assert isinstance(problem, Problem) and problem.kind in ("resource limit", "compile error")
    slow = SOURCE + (
        "template <int N, int M> struct B { static constexpr int v = B<N - 1, 2 * M>::v + B<N - 1, 2 * M + 1>::v; };\n"
        "template <int M> struct B<0, M> { static constexpr int v = 1; };\n__device__ int y = B<28, 0>::v;\n"
    )
    problem = await build(Cuda(cache=None, limit_s=2.0), nvcc, tmp_path, slow)
    assert isinstance(problem, Problem) and problem.kind == "timeout"
    small = Limits(cpu_s=60, memory_bytes=128 * MEBIBYTE, file_bytes=64 * MEBIBYTE, open_files=256, processes=64)
    problem = await build(Cuda(cache=None, limits=small), nvcc, tmp_path, slow)
    assert isinstance(problem, Problem) and problem.kind == "resource limit"


async def test_a_cached_cubin_is_still_checked_against_the_plan(nvcc: Toolchain, tmp_path: Path) -> None:
    cuda = Cuda(cache=CompileCache(tmp_path / "cache"))
    first = await build(cuda, nvcc, tmp_path, SOURCE)
    second = await build(cuda, nvcc, tmp_path, SOURCE)
    assert isinstance(first, Compiled) and isinstance(second, Compiled)
    assert (first.cached, second.cached) == (False, True) and first.report == second.report
    wrong = await build(cuda, nvcc, tmp_path, SOURCE, Plan(1, (replace(STEP, args=ARGS[:2]),)))
    assert isinstance(wrong, Problem) and wrong.kind == "bad plan"


def test_without_a_device_the_toolchain_says_that_nothing_runs(nvcc: Toolchain) -> None:
    if cuda_toolchain.device_architecture() is not None:
        assert nvcc.runnable and not nvcc.line
    else:
        assert not nvcc.runnable and nvcc.line == "not run: no device"
    assert nvcc.target == "sm_90" and nvcc.version.split()[0] in ("nvcc", "nvrtc")


async def test_nvrtc_gives_the_same_parameters_and_errors_of_the_same_shape(tmp_path: Path) -> None:
    cuda = Cuda(cache=None, arch="sm_90", prefer="nvrtc")
    found = cuda.probe()
    if isinstance(found, Problem):
        pytest.skip(found.line)
    built = await build(cuda, found, tmp_path, SOURCE)
    assert isinstance(built, Compiled), built
    assert [size for _, size in built.report["kernels"]["scale"]["parameters"]] == [8, 8, 8, 4, 1, 2]
    problem = await build(cuda, found, tmp_path, SOURCE.replace("buffer[(i", "missing[(i"))
    assert isinstance(problem, Problem) and problem.line.startswith("line 7: ")


def test_parameters_are_unknown_rather_than_wrong_when_the_section_is_cut(cubin: bytes) -> None:
    """Damage in the attribute section must read as an error or as fewer facts, never as another parameter list."""
    good = kernels_of(cubin)["scale"]
    at = cubin.find(struct.pack("<BBH", 4, 0x17, 12))
    assert at > 0 and len(good.parameters) == 6
    damaged = cubin[: at + 1] + b"\xee" + cubin[at + 2 :]
    assert len(kernels_of(damaged)["scale"].parameters) == 5


class FakeNvml:
    """NVML of a machine with one device of compute capability 8.6."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return 8, 6


def test_with_a_device_its_architecture_is_the_target(nvcc: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    found = Cuda(cache=None).probe()
    assert isinstance(found, Toolchain), found
    assert found.runnable and found.target == "sm_86" and found.line == ""
