"""CUDA recipes on the device: every kind of kernel against fp64 and eager, special values, offsets, odd sizes."""

from __future__ import annotations

import math
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_calls import compile_cubin, cuda_key, meta
from recipe_calls import overload

from forge_tui.launch import driver
from forge_tui.launch.device import Device
from forge_tui.launch.program import Call, Program, load_program
from forge_tui.proposers.recipes import registry
from forge_tui.records.candidate import Draft
from forge_tui.records.card import VariantKey
from forge_tui.records.dtype import EPS
from forge_tui.records.problem import MachineProblem

pytestmark = pytest.mark.gpu
B, F, H = "bfloat16", "float32", "float16"


@dataclass(frozen=True)
class Case:
    op: str
    shapes: dict[str, tuple[tuple[int, ...], str]]
    others: dict[str, Any]
    nhwc: bool = False  # the first tensor is channels-last

    def key(self) -> VariantKey:
        tensors = {n: meta(*s, dtype=d) for n, (s, d) in self.shapes.items()}
        if self.nhwc:
            first = next(iter(tensors))
            tensors[first] = tensors[first].to(memory_format=torch.channels_last)
        return cuda_key(self.op, **tensors, **self.others)

    def tensors(self, kind: str) -> dict[str, torch.Tensor]:
        """kind: "normal", "offset" (+1000), "wide" (1e-3 to 1e3), "constant" or "special" (NaN, infinities, -0)."""
        generator = torch.Generator("cuda").manual_seed(11)
        made = {}
        for position, (name, (sizes, dtype)) in enumerate(self.shapes.items()):
            if dtype == "int64":
                made[name] = torch.randint(0, 90, sizes, device="cuda", generator=generator)
                continue
            values = torch.randn(sizes, device="cuda", generator=generator)
            if position == 0 and kind == "offset":
                values += 1000
            if position == 0 and kind == "wide":
                values *= 10 ** (torch.rand(sizes, device="cuda", generator=generator) * 6 - 3)
            if position == 0 and kind == "constant":
                values = torch.full(sizes, 0.3, device="cuda")
            made[name] = values.to(getattr(torch, dtype))
            if position == 0 and kind == "special":
                flat, last = made[name].view(-1), sizes[-1]
                flat[: min(2 * last, flat.numel() // 2)] = -math.inf
                for at, value in (
                    (0, -0.0),
                    (flat.numel() // 2, math.nan),
                    (flat.numel() * 2 // 3, math.inf),
                    (-1, -math.inf),
                ):
                    flat[at] = value
            if position == 0 and self.nhwc:
                made[name] = made[name].to(memory_format=torch.channels_last)
        return made


def norm(op: str, sizes: tuple[int, ...], dtype: str, **others: Any) -> Case:
    count = sizes[1] if op == "aten::group_norm" else sizes[-1]
    shapes = {"input": (sizes, dtype), "weight": ((count,), dtype)}
    if op != "aten::rms_norm":
        shapes["bias"] = ((count,), dtype)
    return Case(op, shapes, others)


CASES: dict[str, Case] = {
    **{f"softmax {r}x{n} {d}": Case("aten::softmax.int", {"self": ((r, n), d)}, {"dim": -1})
       for r, n, d in ((3, 5, B), (64, 77, H), (7, 1024, B), (33, 2000, F), (5, 20_001, F), (16, 65_536, B), (4, 262_144, H))},
    "softmax to float32": Case("aten::softmax.int", {"self": ((9, 1024), B)}, {"dim": 1, "dtype": torch.float32}),
    **{f"layer_norm {r}x{n} {d}": norm("aten::layer_norm", (r, n), d, normalized_shape=[n])
       for r, n, d in ((5, 768, B), (64, 1000, F), (3, 333, H), (2, 40_000, B), (300, 64, F))},
    **{f"rms_norm {r}x{n} {d}": norm("aten::rms_norm", (r, n), d, normalized_shape=[n], eps=1e-6)
       for r, n, d in ((17, 2304, B), (5, 100, F), (2, 50_000, H))},
    **{f"group_norm {s} {d}": norm("aten::group_norm", s, d, num_groups=g)
       for s, g, d in (((2, 12, 5, 5), 4, B), ((1, 64, 128, 128), 2, H), ((3, 32, 7, 9), 8, F), ((1, 32, 256, 256), 8, B),
                       ((1, 33, 100, 101), 3, F), ((2, 64, 56, 56), 32, B), ((1, 64, 512, 512), 8, B))},
    "rms_norm without eps": Case("aten::rms_norm", {"input": ((9, 64), B)}, {"normalized_shape": [64]}),
    **{f"group_norm nhwc {s} {d}": Case("aten::group_norm", {"input": (s, d), "weight": ((s[1],), d), "bias": ((s[1],), d)}, {"num_groups": g}, True)
       for s, g, d in (((2, 64, 9, 7), 8, B), ((1, 320, 32, 32), 32, H), ((1, 128, 64, 50), 32, F), ((3, 16, 5, 5), 4, B))},
    "group_norm plain": Case("aten::group_norm", {"input": ((2, 8, 64, 64), B)}, {"num_groups": 2}),
    **{f"pool {s} {d}": Case("aten::adaptive_avg_pool2d", {"self": (s, d)}, {"output_size": [1, 1]})
       for s, d in (((4, 33, 7, 7), F), ((2, 40, 8, 8), B), ((1, 3, 56, 56), H), ((32, 256, 7, 7), B))},
    **{f"mean {s} {d}": Case("aten::mean.dim", {"self": (s, d)}, {"dim": [-1]})
       for s, d in (((3, 100_000), B), ((65, 20), F), ((512, 2304), F), ((4, 4097), H))},
    "sum of all": Case("aten::sum", {"self": ((30, 41), F)}, {}),
    **{f"linear {m}x{k}->{n} {d}": Case("aten::linear", {"input": ((m, k), d), "weight": ((n, k), d), "bias": ((n,), d)}, {})
       for m, k, n, d in ((1, 2048, 500, B), (8, 576, 100, H), (3, 70, 33, F), (4, 4096, 1000, B), (2, 96, 7, F), (5, 32, 17, B))},
    "embedding": Case("aten::embedding", {"weight": ((100, 130), B), "indices": ((3, 7), "int64")}, {}),
    **{f"{op} {d}": Case(f"aten::{op}", {"self": ((5, 3333), d)}, {})
       for op in ("gelu", "silu", "sigmoid", "tanh", "relu", "relu_", "silu_") for d in (B, F, H)},
    "gelu tanh": Case("aten::gelu", {"self": ((5, 3333), B)}, {"approximate": "tanh"}),
    "gelu tanh float32": Case("aten::gelu", {"self": ((5, 3333), F)}, {"approximate": "tanh"}),
    "mul column": Case("aten::mul.Tensor", {"self": ((2, 16, 100), B), "other": ((16, 1), B)}, {}),
    "add row": Case("aten::add.Tensor", {"self": ((2, 16, 101), H), "other": ((101,), H)}, {"alpha": 0.5}),
    "add_": Case("aten::add_.Tensor", {"self": ((7, 1000), F), "other": ((7, 1000), F)}, {}),
    "sub one": Case("aten::sub.Tensor", {"self": ((7, 1000), B), "other": ((1,), B)}, {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def device() -> Device:
    try:
        found = Device.open(driver.load(), 0)
    except MachineProblem as problem:
        pytest.skip(str(problem))
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the path")
    return found


@pytest.fixture(scope="module")
def binaries(device: Device, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Draft, bytes]]]:
    """Cubins of every case's openings and of some single changes of them."""
    folder: Path = tmp_path_factory.mktemp("recipes")
    jobs = []
    for name, case in CASES.items():
        key = case.key()
        for recipe in registry.recipes_for(key):
            points = recipe.first_points(key, 1)
            near = [n for p in points[:1] for n in recipe.neighbours(key, p, 1)]
            points += [p for p in near if p not in points][::3]
            jobs += [(name, key, recipe.render(key, p)) for p in points]

    def build(job: tuple[int, tuple[str, VariantKey, Draft]]) -> bytes:
        index, (_, key, draft) = job
        return compile_cubin(draft.source, key, folder / str(index))[0]

    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        built = list(pool.map(build, enumerate(jobs)))
    made: dict[str, list[tuple[Draft, bytes]]] = {}
    for (name, _, draft), cubin in zip(jobs, built, strict=True):
        made.setdefault(name, []).append((draft, cubin))
    return made


def run(
    device: Device, draft: Draft, cubin: bytes, key: VariantKey, given: dict[str, torch.Tensor], poison: float
) -> torch.Tensor:
    program = load_program(device, cubin, draft.plan, key)
    assert isinstance(program, Program), (draft.plan.tunables, program)
    tensors = [t.clone() for t in given.values()]
    outputs = [torch.full(o.sizes, poison, dtype=getattr(torch, o.dtype), device="cuda") for o in key.outputs]
    space = torch.full((max(1, program.workspace_bytes),), 0xA5, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    call = program.bind([t.data_ptr() for t in tensors], [o.data_ptr() for o in outputs], space.data_ptr())
    assert isinstance(call, Call), call
    stream = device.stream()
    assert call.launch(stream) is None
    device.wait(stream)
    program.unload()
    for before, after in zip(list(given.values())[len(key.mutates) :], tensors[len(key.mutates) :], strict=True):
        same = torch.equal(before.flatten().view(torch.uint8), after.flatten().view(torch.uint8))
        assert same, "an input was changed"
    return outputs[0] if outputs else tensors[0]


def eager(case: Case, given: dict[str, torch.Tensor], wide: bool = False) -> torch.Tensor:
    copies = {n: t.double() if wide and t.is_floating_point() else t.clone() for n, t in given.items()}
    others = {n: torch.float64 if wide and isinstance(v, torch.dtype) else v for n, v in case.others.items()}
    result: torch.Tensor = overload(case.op)(**copies, **others)
    return result


def judge(case: Case, kind: str, got: torch.Tensor, given: dict[str, torch.Tensor], what: object) -> None:
    """Rule: rms error at most twice eager's plus an eighth of a rounding; NaN and infinities where eager has them."""
    want = eager(case, given)
    for mask in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(mask(got), mask(want)), (kind, what, mask.__name__)
    if case.op.startswith("aten::relu"):
        assert torch.equal(torch.signbit(got), torch.signbit(want)), (kind, what, "sign of zero")
    if kind == "special":
        return
    exact = eager(case, given, wide=True)
    own, base = ((t.double() - exact).square().mean().sqrt().item() for t in (got, want))
    size = exact.square().mean().sqrt().item()
    assert own <= 2 * base + EPS[str(want.dtype).removeprefix("torch.")] * size / 8, (kind, what, own, base, size)


@pytest.mark.parametrize("name", CASES)
def test_results_are_as_good_as_eagers_on_every_kind_of_input(
    name: str, device: Device, binaries: dict[str, list[tuple[Draft, bytes]]]
) -> None:
    case = CASES[name]
    key = case.key()
    for draft, cubin in binaries[name]:
        for kind in ("normal", "offset", "wide", "constant", "special"):
            given = case.tensors(kind)
            got = [run(device, draft, cubin, key, given, poison) for poison in (-1234.0, math.nan)]
            bits = [t.reshape(-1).view(torch.uint8) for t in got]
            assert torch.equal(*bits), (kind, draft.plan.tunables, "two runs differ, or an output was not written")
            judge(case, kind, got[0], given, draft.plan.tunables)
