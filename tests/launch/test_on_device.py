"""What only a device can show. Everything here is marked gpu and skips, with the reason, where there is none."""

from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from launch_cards import key, plan, scalar, spec

from forge_tui.languages import triton_child
from forge_tui.launch.device import Device
from forge_tui.launch.graph import Graph, capture
from forge_tui.launch.program import Call, Program, load_program
from forge_tui.records.card import VariantKey
from forge_tui.records.plan import Plan, PlanArg, Step, Workspace
from forge_tui.records.problem import Problem

pytestmark = pytest.mark.gpu
Build = Callable[[str], bytes]
SOURCE = """
#include <cooperative_groups.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
namespace cg = cooperative_groups;
extern "C" __global__ void add(const float* x, float* y, float a) { y[threadIdx.x] = x[threadIdx.x] + a; }
extern "C" __global__ void types(double* out, signed char a, unsigned char b, short c, unsigned short d, int e, unsigned f,
    long long g, unsigned long long h, __half i, __nv_bfloat16 j, float k, double l, bool m) {
  const double all[] = {(double)a, (double)b, (double)c, (double)d, (double)e, (double)f, (double)g, (double)h,
    (double)__half2float(i), (double)__bfloat162float(j), (double)k, l, (double)m};
  for (int n = 0; n < 13; ++n) out[n] = all[n];
}
extern "C" __global__ void count(unsigned* workspace, float* y) {
  const unsigned before = atomicAdd(workspace, 1u);
  if (before == gridDim.x - 1) y[0] = workspace[1];
}
extern "C" __global__ void far_shared(float* y) {
  extern __shared__ float room[];
  room[25000 + threadIdx.x] = threadIdx.x;
  __syncthreads();
  y[threadIdx.x] = room[25000 + 31 - threadIdx.x];
}
extern "C" __global__ void neighbours(float* y) {
  __shared__ float mine;
  cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x == 0) mine = cluster.block_rank();
  cluster.sync();
  if (threadIdx.x == 0) y[blockIdx.x] = *cluster.map_shared_rank(&mine, (cluster.block_rank() + 1) % cluster.num_blocks());
  cluster.sync();
}
extern "C" __global__ void whole_grid(unsigned* workspace, float* y) {
  atomicAdd(workspace, 1u);
  cg::this_grid().sync();
  if (threadIdx.x == 0) y[blockIdx.x] = *(volatile unsigned*)workspace;
}
extern "C" __global__ void first(float* y) { y[threadIdx.x] = 3; asm volatile("griddepcontrol.launch_dependents;"); }
extern "C" __global__ void second(float* y) { asm volatile("griddepcontrol.wait;" ::: "memory"); y[threadIdx.x] *= 2; }
extern "C" __global__ void wild(float* y) { y[1ll << 40] = 1; }
"""
TILE = """
#include <cuda.h>
extern "C" __global__ void tile(const __grid_constant__ CUtensorMap map, float* y) {
  __shared__ alignas(128) float room[8 * 16];
  __shared__ alignas(8) unsigned long long arrived;
  const unsigned bar = (unsigned)__cvta_generic_to_shared(&arrived), to = (unsigned)__cvta_generic_to_shared(room);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(8 * 16 * 4));
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(&map), "r"(16), "r"(8), "r"(bar) : "memory");
    unsigned done = 0;
    while (!done)
      asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(bar) : "memory");
    for (int i = 0; i < 8 * 16; ++i) y[i] = room[i];
  }
}
"""
TRITON = """
import triton
import triton.language as tl


@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(x + o, mask=o < n) * 2, mask=o < n)
"""


@pytest.fixture(scope="module")
def cubin(build: Build, device: Device) -> bytes:
    return build(SOURCE)


class Bench:
    """Buffers of one card on the device; inputs hold 0, 1, 2, ..."""

    def __init__(self, device: Device, card: VariantKey, program: Program) -> None:
        self.device, self.program = device, program
        self.stream = device.stream()
        self.inputs = [self.buffer(t.numel) for t in card.tensors]
        self.outputs = [self.buffer(t.numel, -1.0) for t in card.outputs]
        self.counts = [t.numel for t in card.outputs]
        self.workspace = device.allocate(program.workspace_bytes)
        device.fill(self.workspace, 0xA5, program.workspace_bytes)
        device.wait()

    def buffer(self, count: int, value: float | None = None) -> int:
        pointer = self.device.allocate(4 * count)
        numbers = [float(k) if value is None else value for k in range(count)]
        self.device.write(pointer, struct.pack(f"<{count}f", *numbers))
        return pointer

    def call(self) -> Call:
        call = self.program.bind(self.inputs, self.outputs, self.workspace)
        assert isinstance(call, Call), call
        return call

    def output(self, index: int = 0) -> list[float]:
        self.device.wait(self.stream)
        count = self.counts[index]
        return list(struct.unpack(f"<{count}f", self.device.read(self.outputs[index], 4 * count)))


def ready(device: Device, data: bytes, card: VariantKey, given: Plan) -> Bench:
    program = load_program(device, data, given, card)
    assert isinstance(program, Program), program
    return Bench(device, card, program)


def launched(device: Device, data: bytes, card: VariantKey, given: Plan) -> list[float]:
    bench = ready(device, data, card, given)
    assert bench.call().launch(bench.stream) is None
    return bench.output()


def test_every_scalar_type_arrives_with_its_value(device: Device, cubin: bytes) -> None:
    values = [("i8", "0 - 5"), ("u8", "250"), ("i16", "0 - 30000"), ("u16", "60000"), ("i32", "0 - 7"), ("u32", "4000000000"),
              ("i64", "0 - 1099511627776"), ("u64", "1099511627776"), ("f16", "0.5"), ("bf16", "-1.5"), ("f32", "0.1"), ("f64", "1e-300"),
              ("bool", "1")]  # fmt: skip
    step = Step("kernel", "types", args=(PlanArg("output"), *(scalar(c, v) for c, v in values)))
    bench = ready(device, cubin, key(outputs=(spec(26),)), plan(step))
    assert bench.call().launch(bench.stream) is None
    device.wait(bench.stream)
    got = struct.unpack("<13d", device.read(bench.outputs[0], 13 * 8))
    single = struct.unpack("<f", struct.pack("<f", 0.1))[0]
    assert got == (-5, 250, -30000, 60000, -7, 4e9, -(2.0**40), 2.0**40, 0.5, -1.5, single, 1e-300, 1)


def test_the_workspace_is_filled_as_the_plan_says_before_every_call(device: Device, cubin: bytes) -> None:
    step = Step("kernel", "count", ("5", "1", "1"), args=(PlanArg("workspace"), PlanArg("output")))
    given = plan(Step("memset", offset="4", bytes="1", value=9), step, workspace=Workspace("8", zeroed=True))
    bench = ready(device, cubin, key(outputs=(spec(1),)), given)
    call = bench.call()
    for _ in range(3):
        device.fill(bench.outputs[0], 0, 4, bench.stream)
        assert call.launch(bench.stream) is None
        assert bench.output() == [9.0]


def test_shared_memory_beyond_48_kib_is_granted(device: Device, cubin: bytes) -> None:
    step = Step("kernel", "far_shared", block=("32", "1", "1"), shared_bytes="100200", args=(PlanArg("output"),))
    assert launched(device, cubin, key(outputs=(spec(32),)), plan(step)) == [float(k) for k in reversed(range(32))]


@pytest.mark.parametrize("blocks", [4, 16])
def test_blocks_of_a_cluster_see_each_other(device: Device, cubin: bytes, blocks: int) -> None:
    step = Step(
        "kernel",
        "neighbours",
        (str(2 * blocks), "1", "1"),
        ("32", "1", "1"),
        (str(blocks), "1", "1"),
        args=(PlanArg("output"),),
    )
    found = launched(device, cubin, key(outputs=(spec(2 * blocks),)), plan(step))
    assert found == [float((k + 1) % blocks) for k in range(blocks)] * 2


def test_a_cooperative_grid_waits_for_all_its_blocks(device: Device, cubin: bytes) -> None:
    args = (PlanArg("workspace"), PlanArg("output"))
    step = Step("kernel", "whole_grid", ("40", "1", "1"), ("1", "1", "1"), cooperative=True, args=args)
    given = plan(step, workspace=Workspace("4", zeroed=True))
    assert launched(device, cubin, key(outputs=(spec(40),)), given) == [40.0] * 40


def test_more_cooperative_blocks_than_the_device_holds_are_a_launch_error(device: Device, cubin: bytes) -> None:
    args = (PlanArg("workspace"), PlanArg("output"))
    step = Step("kernel", "whole_grid", ("1000000", "1", "1"), ("1", "1", "1"), cooperative=True, args=args)
    bench = ready(device, cubin, key(outputs=(spec(4),)), plan(step, workspace=Workspace("4", zeroed=True)))
    problem = bench.call().launch(bench.stream)
    assert problem is not None and (problem.blame, problem.kind) == ("candidate", "launch error")
    assert "at once" in problem.line


def test_a_dependent_launch_sees_what_the_kernel_before_it_wrote(device: Device, cubin: bytes) -> None:
    block = ("32", "1", "1")
    steps = (
        Step("kernel", "first", block=block, args=(PlanArg("output"),)),
        Step("kernel", "second", block=block, dependent_launch=True, args=(PlanArg("output"),)),
    )
    assert launched(device, cubin, key(outputs=(spec(32),)), plan(*steps)) == [6.0] * 32


@pytest.mark.parametrize(("args", "words"), [((PlanArg("input"),), "takes 3 parameters, the plan passes 1"),
                                             ((PlanArg("input"), PlanArg("output"), scalar("f64", "1")), "has 4 bytes, the plan passes 8")])  # fmt: skip
def test_the_drivers_own_parameter_list_decides(
    device: Device, cubin: bytes, args: tuple[PlanArg, ...], words: str
) -> None:
    problem = load_program(device, cubin, plan(Step("kernel", "add", args=args)), key(spec(8), outputs=(spec(8),)))
    assert isinstance(problem, Problem) and problem.kind == "bad plan" and words in problem.line


def test_bytes_that_are_no_cubin_do_not_load(device: Device) -> None:
    problem = load_program(device, b"\x7fELF" + bytes(200), plan(Step("kernel", "k")), key())
    assert isinstance(problem, Problem) and problem.kind == "load error"


def test_a_graph_makes_one_call_on_each_buffer_set(device: Device, cubin: bytes) -> None:
    args = (PlanArg("input"), PlanArg("output"), scalar("f32", "10"))
    given = plan(Step("kernel", "add", block=("8", "1", "1"), args=args))
    card = key(spec(8), outputs=(spec(8),))
    benches = [ready(device, cubin, card, given) for _ in range(3)]
    graph = capture(device, [b.call() for b in benches], benches[0].stream)
    assert isinstance(graph, Graph), graph
    assert [b.output() for b in benches] == [[-1.0] * 8] * 3, "capturing runs nothing"
    device.write(benches[1].inputs[0], struct.pack("<8f", *[5.0] * 8))
    for _ in range(2):
        assert graph.launch(benches[0].stream) is None
    device.wait(benches[0].stream)
    assert benches[0].output() == benches[2].output() == [10.0 + k for k in range(8)]
    assert benches[1].output() == [15.0] * 8
    graph.destroy()


def test_work_stays_on_the_stream_that_was_named(device: Device, cubin: bytes) -> None:
    args = (PlanArg("input"), PlanArg("output"), scalar("f32", "1"))
    bench = ready(
        device, cubin, key(spec(8), outputs=(spec(8),)), plan(Step("kernel", "add", block=("8", "1", "1"), args=args))
    )
    other = device.stream()
    graph = capture(device, [bench.call()], other)
    assert isinstance(graph, Graph), (
        "a launch that strays from the captured stream would break the capture or leave it empty"
    )
    assert graph.launch(other) is None
    device.wait(other)
    assert bench.output() == [1.0 + k for k in range(8)]


def test_a_tensor_map_brings_in_the_tile_that_was_asked_for(device: Device, build: Build) -> None:
    card = key(spec(32, 64), outputs=(spec(128),))
    step = Step("kernel", "tile", args=(PlanArg("tensor_map", 0, value="in", box=(8, 16)), PlanArg("output")))
    assert launched(device, build(TILE), card, plan(step)) == [
        float((8 + r) * 64 + 16 + c) for r in range(8) for c in range(16)
    ]


def test_a_triton_archive_is_launched_without_triton(device: Device, tmp_path: Path) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    (tmp_path / "candidate.py").write_text(TRITON)
    kernel = {"name": "scale", "signature": {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}, "constants": {"BLOCK": 128},
              "divisible": ["x", "y"], "num_warps": 4, "num_stages": 3, "num_ctas": 1}  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps({"arch": 90, "tf32": False, "kernels": [kernel]}))
    assert triton_child.__file__ is not None
    command = [sys.executable, "-P", triton_child.__file__, str(tmp_path / "job.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    with zipfile.ZipFile(tmp_path / "kernels.zip", "w") as archive:
        for name in ("0.cubin", "report.json"):
            archive.write(tmp_path / name, name)
    args = (PlanArg("input"), PlanArg("output"), scalar("i32", "in0_numel"))
    given = plan(Step("kernel", "scale", ("ceildiv(in0_numel, BLOCK)", "1", "1"), args=args), constants={"BLOCK": 128})
    found = launched(device, (tmp_path / "kernels.zip").read_bytes(), key(spec(300), outputs=(spec(300),)), given)
    assert found == [2.0 * k for k in range(300)]


def test_an_illegal_address_is_a_crash_of_the_candidate(device: Device, cubin: bytes, tmp_path: Path) -> None:
    """In a process of its own: the context is lost afterwards."""
    (tmp_path / "wild.cubin").write_bytes(cubin)
    code = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parents[2]), str(Path(__file__).parent)]!r}
from pathlib import Path
from launch_cards import key, plan, spec
from forge_tui.launch import driver
from forge_tui.launch.device import Device
from forge_tui.launch.program import load_program
from forge_tui.records.plan import PlanArg, Step
device = Device.open(driver.load())
given = plan(Step("kernel", "wild", args=(PlanArg("output"),)))
program = load_program(device, Path({str(tmp_path / "wild.cubin")!r}).read_bytes(), given, key(outputs=(spec(4),)))
stream = device.stream()
assert program.bind([], [device.allocate(16)]).launch(stream) is None
try:
    device.wait(stream)
except driver.DriverError as error:
    problem = error.problem()
    print(problem.blame, problem.kind, problem.line, sep="|")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("candidate|crash|the launch: illegal address")
