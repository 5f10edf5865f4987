"""CUDA recipes against eager on the device: device time alone, checked against fp64 before it counts.

Run on a machine with an NVIDIA GPU and nvcc: python tests/bench/gpu_recipes.py [name part ...] [--rounds N] [--beam N]
[--seconds N]. Round 0 measures every recipe's openings; each further round the single changes of the best points so far.
Both sides run as CUDA graphs over the same rotating buffers (at least twice the second-level cache), taking turns in
random order; the figure is the median. Prints one table and, where OUT names a folder, writes gpu_recipes.json there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "proposers")]

from cuda_calls import compile_cubin, cuda_key, meta  # noqa: E402
from recipe_calls import overload  # noqa: E402

from forge_tui.languages.cubin import check_plan as check_binary  # noqa: E402
from forge_tui.languages.cubin import kernels_of  # noqa: E402
from forge_tui.launch import driver  # noqa: E402
from forge_tui.launch.device import Device  # noqa: E402
from forge_tui.launch.graph import capture  # noqa: E402
from forge_tui.launch.program import load_program  # noqa: E402
from forge_tui.proposers.recipes import registry  # noqa: E402
from forge_tui.proposers.recipes.recipe import Point, Recipe  # noqa: E402
from forge_tui.records.card import VariantKey  # noqa: E402
from forge_tui.records.dtype import EPS  # noqa: E402
from forge_tui.records.problem import Problem  # noqa: E402

Tensors = dict[str, torch.Tensor]


@dataclass
class Case:
    """One operator call. shapes: argument -> (sizes, dtype); others: the call's other arguments."""

    name: str
    op: str
    shapes: dict[str, tuple[tuple[int, ...], str]]
    others: dict[str, Any]
    target_us: float | None = None
    low: int = 0  # integers are drawn from 0..low-1
    nhwc: bool = False  # the first tensor is channels-last
    key: VariantKey = field(init=False)

    def __post_init__(self) -> None:
        given = {n: self._laid(n, meta(*sizes, dtype=dtype)) for n, (sizes, dtype) in self.shapes.items()}
        self.key = cuda_key(self.op, **given, **self.others)

    def _laid(self, name: str, t: torch.Tensor) -> torch.Tensor:
        first = name == next(iter(self.shapes))
        return t.to(memory_format=torch.channels_last) if self.nhwc and first else t

    def fresh(self, generator: torch.Generator) -> Tensors:
        made = {}
        for name, (sizes, dtype) in self.shapes.items():
            kind = getattr(torch, dtype)
            if kind.is_floating_point:
                made[name] = self._laid(name, torch.randn(sizes, device="cuda", generator=generator).to(kind))
                if name == "weight" and self.op == "aten::linear":
                    made[name] = (made[name].float() / math.sqrt(sizes[1])).to(kind)
            else:
                made[name] = torch.randint(0, self.low, sizes, device="cuda", generator=generator, dtype=kind)
        return made

    def eager(self, tensors: Tensors) -> torch.Tensor:
        result: torch.Tensor = overload(self.op)(**tensors, **self.others)
        return result

    @property
    def bytes_moved(self) -> int:
        written = sum(t.touched_bytes for t in self.key.outputs) or self.key.tensors[0].touched_bytes
        read = sum(t.touched_bytes for t in self.key.tensors)
        if self.op == "aten::embedding":
            read = written + self.key.tensors[1].touched_bytes
        return read + written


def cases() -> list[Case]:
    """Named targets first, then shapes and dtypes that nobody named."""
    made: list[Case] = []
    b, f, h = "bfloat16", "float32", "float16"

    def norm(c: int, w: int, target: float | None = None, n: int = 1, dtype: str = b) -> None:
        shapes = {"input": ((n, c, w, w), dtype), "weight": ((c,), dtype), "bias": ((c,), dtype)}
        made.append(
            Case(
                f"group_norm {n}x{c}x{w}x{w} {dtype}",
                "aten::group_norm",
                shapes,
                {"num_groups": 32, "eps": 1e-6},
                target,
            )
        )

    def soft(rows: int, n: int, target: float | None = None, dtype: str = b) -> None:
        made.append(
            Case(f"softmax {rows}x{n} {dtype}", "aten::softmax.int", {"self": ((rows, n), dtype)}, {"dim": -1}, target)
        )

    def lin(m: int, k: int, n: int, target: float | None = None, bias: bool = False, dtype: str = b) -> None:
        shapes = {"input": ((m, k), dtype), "weight": ((n, k), dtype), **({"bias": ((n,), dtype)} if bias else {})}
        made.append(Case(f"linear {m}x{k}->{n} {dtype}", "aten::linear", shapes, {}, target))

    def layer(rows: int, n: int, target: float | None = None, dtype: str = b) -> None:
        shapes = {"input": ((rows, n), dtype), "weight": ((n,), dtype), "bias": ((n,), dtype)}
        made.append(
            Case(f"layer_norm {rows}x{n} {dtype}", "aten::layer_norm", shapes, {"normalized_shape": [n]}, target)
        )

    def unary(op: str, sizes: tuple[int, ...], dtype: str = b, **others: Any) -> None:
        word = others.get("approximate", "")
        made.append(
            Case(f"{op} {word} {'x'.join(map(str, sizes))} {dtype}", f"aten::{op}", {"self": (sizes, dtype)}, others)
        )

    norm(256, 512, 105)
    norm(512, 128, 18)
    norm(128, 1024, 200)
    made.append(
        Case(
            "adaptive_avg_pool2d 32x2048x7x7",
            "aten::adaptive_avg_pool2d",
            {"self": ((32, 2048, 7, 7), f)},
            {"output_size": [1, 1]},
            6,
        )
    )
    soft(32, 262144, 16)
    soft(16384, 2048, 42)
    lin(1, 2048, 8192, 12)
    layer(4096, 1536, 16)
    norm(512, 256)
    norm(320, 64, n=2, dtype=h)
    norm(128, 256, dtype=f)
    for c, w in ((256, 256), (320, 64)):
        shapes = {"input": ((2, c, w, w), b), "weight": ((c,), b), "bias": ((c,), b)}
        made.append(
            Case(
                f"group_norm nhwc 2x{c}x{w}x{w} bf16",
                "aten::group_norm",
                shapes,
                {"num_groups": 32, "eps": 1e-6},
                nhwc=True,
            )
        )
    soft(8192, 1024)
    soft(4096, 77, dtype=h)
    soft(64, 100_000, dtype=f)
    lin(4, 4096, 4096, bias=True)
    lin(8, 2304, 9216)
    lin(1, 4096, 1024, dtype=f)
    layer(512, 2304)
    layer(4096, 1000, dtype=f)
    made.append(
        Case(
            "rms_norm 4096x2048",
            "aten::rms_norm",
            {"input": ((4096, 2048), b), "weight": ((2048,), b)},
            {"normalized_shape": [2048], "eps": 1e-6},
        )
    )
    made.append(
        Case("mean 64x200000 bf16", "aten::mean.dim", {"self": ((64, 200_000), b)}, {"dim": [-1], "keepdim": True})
    )
    made.append(
        Case("mean 4096x2304 f32", "aten::mean.dim", {"self": ((4096, 2304), f)}, {"dim": [-1], "keepdim": True})
    )
    made.append(
        Case(
            "adaptive_avg_pool2d 32x1280x8x8 bf16",
            "aten::adaptive_avg_pool2d",
            {"self": ((32, 1280, 8, 8), b)},
            {"output_size": [1, 1]},
        )
    )
    made.append(
        Case(
            "embedding 512 of 2304",
            "aten::embedding",
            {"weight": ((50_000, 2304), b), "indices": ((1, 512), "int64")},
            {},
            low=50_000,
        )
    )
    unary("gelu", (4096, 8192))
    unary("gelu", (4096, 8192), approximate="tanh")
    unary("silu", (1, 512, 256, 256))
    unary("relu_", (32, 256, 56, 56), f)
    unary("tanh", (4096, 2048), h)
    unary("sigmoid", (512, 2304))
    made.append(Case("mul 4096x8192", "aten::mul.Tensor", {"self": ((4096, 8192), b), "other": ((4096, 8192), b)}, {}))
    made.append(Case("add row 512x2304", "aten::add.Tensor", {"self": ((512, 2304), h), "other": ((2304,), h)}, {}))
    return made


@dataclass
class Trial:
    recipe: Recipe
    point: Point
    problem: str = ""
    us: float | None = None
    error: float | None = None
    report: str = ""


class Rig:
    """The device, shared with torch through the primary context."""

    def __init__(self) -> None:
        torch.cuda.init()
        self.driver = driver.load()
        self.device = Device.open(self.driver, 0)
        self.stream = self.device.stream()
        self.events = (self.device.event(), self.device.event())

    def time(self, enqueue: Callable[[], Any], calls: int) -> float:
        self.device.record(self.events[0], self.stream)
        found = enqueue()
        self.device.record(self.events[1], self.stream)
        if isinstance(found, Problem):
            raise RuntimeError(found.line)
        return self.device.elapsed_us(*self.events) / calls


class Bench:
    """One case: buffers, reference, eager's graph."""

    def __init__(self, rig: Rig, case: Case) -> None:
        self.rig, self.case = rig, case
        generator = torch.Generator("cuda").manual_seed(7)
        wanted = math.ceil(2 * rig.device.l2_bytes / case.bytes_moved)
        self.sets = [case.fresh(generator) for _ in range(min(400, max(2, wanted)))]
        self.inplace = bool(case.key.mutates)
        first = self.sets[0]
        wide = {n: t.double() if t.is_floating_point() else t for n, t in first.items()}
        self.reference = case.eager(wide).clone()
        self.eager_out = case.eager({n: t.clone() for n, t in first.items()})
        self.special = self._special()
        self.special_out = case.eager({n: t.clone() for n, t in self.special.items()})
        self.outputs = [self._output() for _ in self.sets]
        self.graph = torch.cuda.CUDAGraph()
        kept = []
        with torch.cuda.graph(self.graph):
            for tensors in self.sets:
                kept.append(case.eager(tensors))
        self.kept = kept
        torch.cuda.synchronize()
        self.eager_us: list[float] = []

    def _output(self) -> torch.Tensor | None:
        if self.inplace:
            return None
        spec = self.case.key.outputs[0]
        return torch.empty_strided(spec.sizes, spec.strides, dtype=getattr(torch, spec.dtype), device="cuda")

    def _special(self) -> Tensors:
        """The first set with NaN, infinities, a negative zero and rows of -inf in places."""
        made = {n: t.clone() for n, t in self.sets[0].items()}
        name = next(iter(made))
        if not made[name].is_floating_point():
            return made
        flat = made[name].as_strided((made[name].numel(),), (1,))
        count = flat.numel()
        row = self.case.key.tensors[0].sizes[-1]
        for at, value in ((0, -0.0), (count // 3, math.nan), (count // 2, math.inf), (count - 1, -math.inf)):
            flat[at] = value
        flat[row : 2 * row] = -math.inf
        return made

    def errors(self, out: torch.Tensor) -> tuple[float, float, float]:
        """(rms of eager's error, rms of the candidate's, rms of the reference)."""
        r = self.reference

        def rms(t: torch.Tensor) -> float:
            return float(t.double().square().mean().sqrt())

        return rms(self.eager_out.double() - r), rms(out.double() - r), rms(r)

    def check(self, run: Callable[[Tensors, torch.Tensor | None], None]) -> tuple[str, float]:
        """("" or what is wrong, error relative to eager's)."""
        outs = []
        for poison in (-1234.0, math.nan):
            tensors = {n: t.clone() for n, t in self.sets[0].items()}
            out = self._output()
            if out is not None:
                out.fill_(poison)
            run(tensors, out)
            outs.append(out if out is not None else next(iter(tensors.values())))
        if not torch.equal(outs[0], outs[1]):
            return "two runs differ, or an output was not written", math.nan
        eager, own, size = self.errors(outs[0])
        limit = 2 * eager + EPS[self.case.key.tensors[0].dtype] * size / 8
        ratio = own / eager if eager else (0.0 if own == 0 else math.inf)
        if not own <= limit:
            return f"rms error {own:.3g}, eager's {eager:.3g}", ratio
        out = self._output()
        tensors = {n: t.clone() for n, t in self.special.items()}
        run(tensors, out)
        got = out if out is not None else next(iter(tensors.values()))
        want = self.special_out
        for name, mask in (("NaN", torch.isnan), ("Inf", torch.isposinf), ("-Inf", torch.isneginf)):
            if not torch.equal(mask(got), mask(want)):
                return f"{name} in other places than eager's", ratio
        return "", ratio


def prepare(rig: Rig, bench: Bench, trial: Trial, cubin: bytes | str) -> Any:
    """A graph of the candidate over all buffer sets, after its checks; None with the trial's problem set."""
    case = bench.case
    if isinstance(cubin, str):
        trial.problem = cubin
        return None
    draft = trial.recipe.render(case.key, trial.point)
    wrong = check_binary(draft.plan, case.key, kernels_of(cubin), "sm_90")
    program = load_program(rig.device, cubin, draft.plan, case.key)
    if wrong is not None or isinstance(program, Problem):
        trial.problem = wrong.line if wrong is not None else program.line
        return None
    trial.report = " ".join(f"{f.name}:{f.registers}r{f.local_bytes}l" for f in program.functions)
    space = torch.empty(max(1, program.workspace_bytes), dtype=torch.uint8, device="cuda").fill_(0xA5)

    def bind(tensors: Tensors, out: torch.Tensor | None) -> Any:
        outputs = [] if out is None else [out.data_ptr()]
        call = program.bind([t.data_ptr() for t in tensors.values()], outputs, space.data_ptr())
        if isinstance(call, Problem):
            raise RuntimeError(call.line)
        return call

    def run(tensors: Tensors, out: torch.Tensor | None) -> None:
        torch.cuda.synchronize()
        problem = bind(tensors, out).launch(rig.stream)
        if problem is not None:
            raise RuntimeError(problem.line)
        rig.device.wait(rig.stream)

    try:
        trial.problem, trial.error = bench.check(run)
        if trial.problem:
            return None
        calls = [bind(t, o) for t, o in zip(bench.sets, bench.outputs, strict=True)]
        graph = capture(rig.device, calls, rig.stream)
    except RuntimeError as error:
        trial.problem = str(error)
        return None
    if isinstance(graph, Problem):
        trial.problem = graph.line
        return None
    graph.kept = (space, program)  # type: ignore[attr-defined]
    return graph


def measure(rig: Rig, bench: Bench, trials: list[Trial], cubins: list[bytes | str], repeats: int) -> None:
    ready = [(t, g) for t, c in zip(trials, cubins, strict=True) if (g := prepare(rig, bench, t, c)) is not None]
    count = len(bench.sets)
    outside = torch.cuda.ExternalStream(rig.stream)

    def eager() -> None:
        with torch.cuda.stream(outside):
            bench.graph.replay()

    samples: dict[int, list[float]] = {k: [] for k in range(-1, len(ready))}
    for round_ in range(repeats + 2):
        turns = list(samples)
        random.shuffle(turns)
        for k in turns:
            enqueue = eager if k < 0 else lambda g=ready[k][1]: g.launch(rig.stream)
            us = rig.time(enqueue, count)
            if round_ >= 2:
                samples[k].append(us)
    bench.eager_us += samples[-1]
    for k, (trial, graph) in enumerate(ready):
        trial.us = statistics.median(samples[k])
        graph.destroy()
        graph.kept[1].unload()


def copy_bandwidth() -> float:
    """Bytes per microsecond, read plus written, of a large copy."""
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    c = torch.empty_like(a)
    times = []
    for _ in range(12):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        c.copy_(a)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return 2 * a.numel() / statistics.median(times[2:])


def identity(trial: Trial) -> str:
    return trial.recipe.name + str(sorted(trial.point.items()))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("names", nargs="*")
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--beam", type=int, default=2)
    options.add_argument("--repeats", type=int, default=8)
    options.add_argument("--seconds", type=float, default=420)
    given = options.parse_args()
    started = time.monotonic()
    rig = Rig()
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {bandwidth / 1e6:.2f} TB/s", flush=True)
    chosen = [c for c in cases() if not given.names or any(n in c.name for n in given.names)]
    every: dict[str, list[Trial]] = {c.name: [] for c in chosen}
    eager: dict[str, float] = {}
    for number in range(given.rounds + 1):
        work: list[tuple[Case, Trial]] = []
        for case in chosen:
            known = {identity(t) for t in every[case.name]}
            for recipe in registry.recipes_for(case.key):
                if number == 0:
                    points = recipe.first_points(case.key, 1)
                else:
                    best = sorted(
                        (t for t in every[case.name] if t.us is not None and t.recipe is recipe),
                        key=lambda t: t.us or 0,
                    )
                    points = [n for t in best[: given.beam] for n in recipe.neighbours(case.key, t.point, 1)]
                for point in points:
                    trial = Trial(recipe, point)
                    if identity(trial) not in known:
                        known.add(identity(trial))
                        every[case.name].append(trial)
                        work.append((case, trial))
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count() or 4) as pool:

            def build(job: tuple[int, tuple[Case, Trial]], folder: str = folder) -> bytes | str:
                index, (case, trial) = job
                try:
                    source = trial.recipe.render(case.key, trial.point).source
                    return compile_cubin(source, case.key, Path(folder) / str(index))[0]
                except AssertionError as error:
                    return str(error)[:300]

            cubins = list(pool.map(build, enumerate(work)))
        print(f"round {number}: {len(work)} built after {time.monotonic() - started:.0f} s", flush=True)
        for case in chosen:
            mine = [i for i, (c, _) in enumerate(work) if c is case]
            if not mine or time.monotonic() - started > given.seconds:
                continue
            try:
                bench = Bench(rig, case)
                measure(rig, bench, [work[i][1] for i in mine], [cubins[i] for i in mine], given.repeats)
            except (RuntimeError, driver.DriverError) as error:
                print(f"{case.name}: the device is lost: {error}", flush=True)
                report(chosen, every, eager, bandwidth)
                raise SystemExit(1) from error
            eager[case.name] = statistics.median(bench.eager_us)
            best = min((t.us for t in every[case.name] if t.us is not None), default=math.nan)
            print(f"  {case.name}: {best:.2f} of {eager[case.name]:.2f} us", flush=True)
            del bench
            torch.cuda.empty_cache()
        print(f"round {number}: measured after {time.monotonic() - started:.0f} s", flush=True)
    report(chosen, every, eager, bandwidth)


def report(chosen: list[Case], every: dict[str, list[Trial]], eager: dict[str, float], bandwidth: float) -> None:
    rows = []
    print(f"{'card':44} {'best':>8} {'eager':>8} {'x':>6} {'floor':>7} {'/floor':>6} {'target':>6} {'error':>5}  point")
    for case in chosen:
        done = sorted((t for t in every[case.name] if t.us is not None), key=lambda t: t.us or 0)
        floor = case.bytes_moved / bandwidth
        base = eager.get(case.name, math.nan)
        target = "" if case.target_us is None else f"{case.target_us:g}"
        for place, t in enumerate(done[:3]):
            us = t.us or math.nan
            label = case.name if place == 0 else ""
            print(
                f"{label:44} {us:8.2f} {base:8.2f} {base / us:6.2f} {floor:7.2f} {us / floor:6.2f} {target:>6} "
                f"{t.error or 0:5.2f}  {t.point} {t.report}"
            )
        wrong: dict[str, int] = {}
        for t in every[case.name]:
            if t.problem:
                wrong[t.problem] = wrong.get(t.problem, 0) + 1
        for words, count in sorted(wrong.items(), key=lambda w: -w[1])[:3]:
            print(f"{case.name if not done else '':44} {count} refused: {words[:160]}")
        rows.append(
            {
                "card": case.name, "eager_us": base, "floor_us": floor, "target_us": case.target_us,
                "trials": [
                    {"recipe": t.recipe.name, "point": t.point, "us": t.us, "error_ratio": t.error, "problem": t.problem, "kernels": t.report}
                    for t in (*done, *(t for t in every[case.name] if t.us is None))
                ],
            }
        )  # fmt: skip
    folder = os.environ.get("OUT")
    if folder:
        (Path(folder) / "gpu_recipes.json").write_text(json.dumps(rows, default=str))


if __name__ == "__main__":
    main()
