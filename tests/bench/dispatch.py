"""What an installed cast costs per call, as ratios to plain aten in the same process.

    python tests/bench/dispatch.py [--tier python] [--rounds 40] [--model resnet18-like]

Tiny tensors and kernels that do nothing, so that a call is dispatch, guard and allocation; one thread; blocks with
the cast on and off alternate, the smallest block of each side counts. The last part runs a whole model whose
operators are hooked and never match, in random order, with an A/A row beside it.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1] / "cast")]

import castkit as kit  # noqa: E402
import torch  # noqa: E402

from forge_tui import cast  # noqa: E402
from forge_tui.cast.installed import Installed  # noqa: E402

NULL = kit.HEAD + 'extern "C" int forge_launch(const forge_args*) { return 0; }'
F = torch.nn.functional
X, Y, ACC, ACC_Y = torch.randn(2, 8), torch.randn(3, 8), torch.zeros(2, 8), torch.zeros(3, 8)
W, B = torch.randn(8, 8), torch.randn(8)

CALLS: dict[str, Callable[[], Any]] = {
    "softmax matched": lambda: F.softmax(X, -1),
    "softmax unmatched": lambda: F.softmax(Y, -1),
    "relu matched": lambda: torch.relu(X),
    "relu unmatched": lambda: torch.relu(Y),
    "add_ matched": lambda: ACC.add_(X),
    "add_ unmatched": lambda: ACC_Y.add_(Y),
    "linear matched": lambda: F.linear(X, W, B),
    "linear unmatched": lambda: F.linear(Y, W, B),
    "erf matched (generic hook)": lambda: torch.erf(X),
    "erf unmatched (generic hook)": lambda: torch.erf(Y),
    "sigmoid (no hook)": lambda: torch.sigmoid(X),
}


def block(call: Callable[[], Any], count: int) -> float:
    """Nanoseconds per call."""
    r = range(count)
    start = time.perf_counter_ns()
    for _ in r:
        call()
    return (time.perf_counter_ns() - start) / count


def micro(installed: Installed, rounds: int) -> list[tuple[str, float, float]]:
    """(name, plain ns, ns with the cast on), loop cost taken off."""
    empty = min(block(lambda: None, 3000) for _ in range(20))
    rows = []
    for name, call in CALLS.items():
        block(call, 300)
        off, on = [], []
        for _ in range(rounds):
            off.append(block(call, 1000))
            with installed.active():
                on.append(block(call, 1000))
        rows.append((name, min(off) - empty, min(on) - empty))
    return rows


class Net(torch.nn.Module):
    """A small residual network: the kinds of calls that a cast hooks, none with a matching shape."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(torch.nn.Conv2d(width, width, 3, padding=1) for _ in range(6))
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(width) for _ in range(6))
        self.head = torch.nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + torch.relu(norm(conv(x)))
        return F.softmax(self.head(x.mean((2, 3))), -1)


def whole_model(path: str, rounds: int) -> tuple[float, float, float, float]:
    """Ratio with/without an installed cast whose operators never match, its spread, and the same for A/A."""
    model, x = Net().eval(), torch.randn(1, 32, 28, 28)
    installed = cast.load(path, accept_host_code=True).install(model, quiet=True)
    samples: dict[str, list[float]] = {"a": [], "b": [], "cast": []}
    with torch.no_grad():
        for _ in range(20):
            model(x)
        gc.disable()
        for _ in range(rounds):
            for side in random.sample(list(samples), 3):
                if side == "cast":
                    samples[side].append(block(lambda: model(x), 3))
                else:
                    with installed.paused():
                        samples[side].append(block(lambda: model(x), 3))
        gc.enable()
    print(f"   model calls seen and not matched: {installed.report().missed}, served {installed.report().hits}")
    installed.uninstall()

    def ratio(one: str, other: str) -> tuple[float, float]:
        ratios = [a / b for a, b in zip(samples[one], samples[other], strict=True)]
        return statistics.median(ratios), 1.25 * statistics.stdev(ratios) / len(ratios) ** 0.5

    return *ratio("cast", "a"), *ratio("b", "a")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tier", default="")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    if options.tier:
        os.environ["FORGE_CAST_TIER"] = options.tier
    torch.set_num_threads(1)
    image = torch.randn(1, 3, 8, 8)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        key_of, entry_of = kit.key_of, kit.entry_of
        matched = kit.cast_file(
            Path(folder) / "matched.cast",
            entry_of("softmax", key_of("aten::softmax.int", X, -1), NULL),
            entry_of("relu", key_of("aten::relu", X), NULL),
            entry_of("add_", key_of("aten::add_.Tensor", ACC, X), NULL),
            entry_of("linear", key_of("aten::linear", X, W, B), NULL),
            entry_of("erf", key_of("aten::erf", X), NULL),
        )
        unmatched = kit.cast_file(
            Path(folder) / "unmatched.cast",
            entry_of("softmax", key_of("aten::softmax.int", X, -1), NULL),
            entry_of("relu", key_of("aten::relu", X), NULL),
            entry_of("add", key_of("aten::add.Tensor", X, X.clone()), NULL),
            entry_of("conv", key_of("aten::conv2d", image, torch.randn(4, 3, 3, 3), None, [1, 1], [1, 1]), NULL),
            entry_of(
                "norm",
                key_of("aten::batch_norm", image, None, None, torch.zeros(3), torch.ones(3), False, 0.1, 1e-5, True),
                NULL,
            ),
            entry_of("mean", key_of("aten::mean.dim", image, [2, 3]), NULL),
        )
        installed = cast.load(matched, accept_host_code=True).install(None)
        print(f"tier {installed.tier}, torch {torch.__version__}")
        print(f"{'call':32s} {'plain ns':>9s} {'cast ns':>9s} {'ratio':>7s} {'delta':>8s}")
        for name, plain, on in micro(installed, options.rounds):
            print(f"{name:32s} {plain:9.0f} {on:9.0f} {on / plain:7.3f} {on - plain:+8.0f}")
        installed.uninstall()
        ratio, spread, control, control_spread = whole_model(unmatched, options.rounds * 10)
        print(f"whole model, nothing matches: {ratio:.4f} +- {spread:.4f} (A/A {control:.4f} +- {control_spread:.4f})")


if __name__ == "__main__":
    main()
