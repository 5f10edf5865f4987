"""Recipes against eager on this machine: equal allocation, equal threads, interleaved, medians of many rounds.

Run: python tests/bench/recipes.py [name part ...] [--cold] [--all]. --cold turns through enough copies of the parameters
that they come from beyond the second-level cache, as inside a model; --all measures every point within one change of
the first ones.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "proposers")]

from recipe_calls import Args, Call, call, compile_all, kind_of, pack  # noqa: E402

from forge_tui.cast.torch_build import cached_library  # noqa: E402
from forge_tui.proposers.recipes import registry  # noqa: E402

KINDS = {"none": 0, "tensor": 1, "int": 2, "float": 3, "bool": 4, "str": 5, "int_list": 6}


class Value(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("count", ctypes.c_int32), ("tensor", ctypes.c_void_p),
                ("i", ctypes.c_int64), ("d", ctypes.c_double), ("list", ctypes.c_void_p)]  # fmt: skip


def value(v: Any, keep: list[Any]) -> Value:
    kind = kind_of(v)
    keep.append(v)
    if kind == "tensor":
        return Value(1, 0, v._cdata, 0, 0.0, None)
    if kind == "int_list":
        array = (ctypes.c_int64 * len(v))(*v)
        keep.append(array)
        return Value(6, len(v), None, 0, 0.0, ctypes.addressof(array))
    if kind == "str":
        text = ctypes.create_string_buffer(v.encode())
        keep.append(text)
        return Value(5, len(v), None, 0, 0.0, ctypes.addressof(text))
    if kind in ("int", "bool"):
        return Value(KINDS[kind], 0, None, int(v), 0.0, None)
    return Value(3, 0, None, 0, v, None) if kind == "float" else Value()


class Bench:
    """One call: eager and any number of kernels, `sets` copies of the tensors in turn."""

    def __init__(self, library: ctypes.CDLL, made: Call, threads: int, cold: bool) -> None:
        self.library, self.made, self.keep = library, made, []
        nbytes = sum(t.numel() * t.element_size() for t in made.tensors)
        self.sets = max(1, min(256, 48_000_000 // max(1, nbytes))) if cold else 1
        copies = [
            {n: (v.clone() if isinstance(v, torch.Tensor) else v) for n, v in made.arguments.items()}
            for _ in range(self.sets)
        ]
        self.keep += copies
        values = [value(v, self.keep) for c in copies for v in c.values()]
        self.count = len(made.arguments)
        self.values = (Value * len(values))(*values)
        self.args, self.bytes = [], (ctypes.c_int64 * 4)()
        outputs = [torch.empty_strided(o.sizes, o.strides, dtype=getattr(torch, o.dtype)) for o in made.key.outputs]
        for k, out in enumerate(outputs):
            self.bytes[k] = out.untyped_storage().nbytes()
        for c in copies:
            packed, alive = pack([v for v in c.values() if isinstance(v, torch.Tensor)], outputs, threads)
            self.keep += alive
            self.args.append(packed)
        self.pointers = (ctypes.POINTER(Args) * self.sets)(*[ctypes.pointer(a) for a in self.args])

    def eager(self, calls: int) -> float:
        name, _, overload = self.made.op.partition(".")
        us = self.library.eager_us(
            name.encode(), overload.encode(), self.values, self.count, self.sets, ctypes.c_long(calls)
        )
        return us / calls

    def kernel(self, kernel: ctypes.CDLL, calls: int) -> float:
        us = self.library.kernel_us(kernel.forge_launch, self.pointers, self.bytes, self.sets, ctypes.c_long(calls))
        if us < 0:
            raise RuntimeError(f"the kernel refused the call ({us})")
        return us / calls


def calls_here() -> dict[str, Call]:
    """Shapes that the shipped examples use."""
    r = torch.randn
    made: dict[str, Call] = {}

    def add(name: str, op: str, **given: Any) -> None:
        made[name] = call(op, **given)

    for rows in (16, 64):
        add(f"gelu {rows}x1536", "aten::gelu", self=r(1, rows, 1536))
        add(
            f"layer_norm {rows}x384",
            "aten::layer_norm",
            input=r(1, rows, 384),
            normalized_shape=[384],
            weight=r(384),
            bias=r(384),
        )
        add(f"add {rows}x384", "aten::add.Tensor", self=r(1, rows, 384), other=r(1, rows, 384))
    add("gelu 1500x1536", "aten::gelu", self=r(1, 1500, 1536))
    add(
        "layer_norm 1500x384",
        "aten::layer_norm",
        input=r(1, 1500, 384),
        normalized_shape=[384],
        weight=r(384),
        bias=r(384),
    )
    add("gelu tanh 128x1536", "aten::gelu", self=r(1, 128, 1536), approximate="tanh")
    add("silu 8x1536", "aten::silu", self=r(1, 8, 1536))
    add("silu 64x1536", "aten::silu", self=r(1, 64, 1536))
    add("mul 64x1536", "aten::mul.Tensor", self=r(1, 64, 1536), other=r(1, 64, 1536))
    add("silu 1x128x64x64", "aten::silu", self=r(1, 128, 64, 64))
    add("pow 64x576", "aten::pow.Tensor_Scalar", self=r(1, 64, 576), exponent=2)
    add("mul row 64x576", "aten::mul.Tensor", self=r(576), other=r(1, 64, 576))
    add("mul column 64x576", "aten::mul.Tensor", self=r(1, 64, 576), other=r(1, 64, 1))
    add("rms_norm 64x576", "aten::rms_norm", input=r(1, 64, 576), normalized_shape=[576], weight=r(576), eps=1e-5)
    add("softmax 9x64x64", "aten::softmax.int", self=r(1, 9, 64, 64), dim=-1)
    add("softmax 12x128x128", "aten::softmax.int", self=r(1, 12, 128, 128), dim=-1)
    add("softmax 6x1500x1500", "aten::softmax.int", self=r(1, 6, 1500, 1500), dim=-1)
    add("softmax 1x49152", "aten::softmax.int", self=r(1, 49152), dim=-1)
    add("relu_ 1x256x56x56", "aten::relu_", self=r(1, 256, 56, 56))
    add("relu_ 1x512x7x7", "aten::relu_", self=r(1, 512, 7, 7))
    add("add_ 1x256x56x56", "aten::add_.Tensor", self=r(1, 256, 56, 56), other=r(1, 256, 56, 56))
    add("add 1x2048x7x7", "aten::add.Tensor", self=r(1, 2048, 7, 7), other=r(1, 2048, 7, 7))
    more(add, r)
    return made


def more(add: Any, r: Any) -> None:
    """Families with their own kernels."""
    add(
        "max_pool2d 1x64x112x112",
        "aten::max_pool2d",
        self=r(1, 64, 112, 112),
        kernel_size=[3, 3],
        stride=[2, 2],
        padding=[1, 1],
    )
    for c, w in ((64, 112), (256, 56), (128, 28), (512, 7), (2048, 7)):
        vectors = {"weight": r(c), "bias": r(c), "running_mean": r(c), "running_var": r(c).abs()}
        add(
            f"batch_norm {c}x{w}x{w}",
            "aten::batch_norm",
            input=r(1, c, w, w),
            **vectors,
            training=False,
            momentum=0.1,
            eps=1e-5,
            cudnn_enabled=True,
        )
    for c, w in ((128, 64), (512, 32)):
        add(f"group_norm {c}x{w}x{w}", "aten::group_norm", input=r(1, c, w, w), num_groups=32, weight=r(c), bias=r(c))
    add("adaptive_avg_pool2d 2048x7x7", "aten::adaptive_avg_pool2d", self=r(1, 2048, 7, 7), output_size=[1, 1])
    add("mean 64x576", "aten::mean.dim", self=r(1, 64, 576), dim=[-1], keepdim=True)
    add("mean 1x576", "aten::mean.dim", self=r(1, 1, 576), dim=[-1], keepdim=True)
    add("rsqrt 64x1", "aten::rsqrt", self=r(1, 64, 1).abs())
    add("embedding 128 of 384", "aten::embedding", weight=r(30522, 384), indices=torch.randint(0, 30522, (1, 128)))
    add("embedding 16 of 384", "aten::embedding", weight=r(30522, 384), indices=torch.randint(0, 30522, (1, 16)))
    for h, t, keys, d in (
        (12, 8, 8, 32),
        (12, 16, 16, 32),
        (12, 64, 64, 32),
        (12, 128, 128, 32),
        (9, 1, 64, 64),
        (9, 16, 16, 64),
        (9, 64, 64, 64),
    ):
        q, k, v = (r(1, n, h, d).transpose(1, 2) for n in (t, keys, keys))
        add(
            f"attention {h}x{t}x{keys}x{d}",
            "aten::scaled_dot_product_attention",
            query=q,
            key=k,
            value=v,
            is_causal=h == 9 and t > 1,
        )
    for m, k, n in (
        (1, 576, 1536),
        (1, 1536, 576),
        (1, 576, 576),
        (1, 576, 192),
        (8, 384, 384),
        (8, 384, 1536),
        (8, 1536, 384),
        (16, 384, 384),
        (16, 384, 1536),
        (16, 1536, 384),
        (32, 384, 1536),
        (64, 384, 384),
        (68, 384, 384),
        (68, 384, 1536),
        (68, 1536, 384),
        (256, 384, 384),
        (16, 576, 1536),
        (128, 384, 1536),
        (1, 2048, 1000),
    ):
        add(f"linear {m}x{k}->{n}", "aten::linear", input=r(1, m, k), weight=r(n, k), bias=r(n) if k != 576 else None)


def measure(bench: Bench, kernels: list[ctypes.CDLL], rounds: int = 15) -> tuple[float, list[float], list[float]]:
    """Median eager us, median kernel us, median paired ratio; all take turns in every round."""
    once = bench.eager(3)
    calls = max(bench.sets, min(2000, int(4000 / max(once, 1.0)) + 1))
    for k in kernels:
        bench.kernel(k, max(3, calls // 4))
    eager, ours = [], [[] for _ in kernels]
    for _ in range(rounds):
        eager.append(bench.eager(calls))
        for times, k in zip(ours, kernels, strict=True):
            times.append(bench.kernel(k, calls))
    ratios = [statistics.median(e / t for e, t in zip(eager, times, strict=True)) for times in ours]
    pick = min if "--min" in sys.argv else statistics.median
    return pick(eager), [pick(t) for t in ours], ratios


def main() -> None:
    wanted = [a for a in sys.argv[1:] if not a.startswith("--")]
    cold, everything = "--cold" in sys.argv, "--all" in sys.argv
    threads = torch.get_num_threads()
    built = cached_library(
        (Path(__file__).with_name("eager_loop.cpp"),), "bench_eager", Path(tempfile.gettempdir()) / "forge-bench"
    )
    if isinstance(built, str):
        raise SystemExit(built)
    library = ctypes.CDLL(str(built))
    library.eager_us.restype = library.kernel_us.restype = ctypes.c_double
    for name, made in calls_here().items():
        if wanted and not any(w in name for w in wanted):
            continue
        points = [(r, p) for r in registry.recipes_for(made.key) for p in r.first_points(made.key, threads)]
        if everything:
            points += [(r, n) for r, p in list(points) for n in r.neighbours(made.key, p, threads)]
        unique = {str(sorted(p.items())) + r.name: (r, p) for r, p in points}
        if not unique:
            print(f"{name:26} no recipe: {registry.refusals(made.key)}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            kernels = compile_all([r.render(made.key, p).source for r, p in unique.values()], Path(folder))
            eager, ours, ratios = measure(Bench(library, made, threads, cold), kernels, 7 if everything else 15)
        order = sorted(range(len(kernels)), key=lambda k: ours[k])
        print(f"{name:26} eager {eager:8.1f} us")
        for k in order[: 6 if everything else 4]:
            print(f"{'':10} {ours[k]:8.1f} us  {ratios[k]:5.2f}x  {list(unique.values())[k][1]}")


if __name__ == "__main__":
    main()
