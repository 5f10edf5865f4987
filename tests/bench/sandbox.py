"""What the sandbox costs: `python tests/bench/sandbox.py [ROUNDS]`. Prints medians in milliseconds, interleaved rounds."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from forge_tui.sandbox import child
from forge_tui.sandbox.boot import isolated_command
from forge_tui.sandbox.confinement import run_confinement
from forge_tui.sandbox.profile import detect, profile_of

NOTHING = [sys.executable, "-I", "-S", "-c", "pass"]


def bare() -> None:
    subprocess.run(NOTHING, check=True)


def confined() -> None:
    child.run(NOTHING, run_confinement(()), 20)


def without_namespaces() -> None:
    layers = dict(detect().layers)
    layers.update({k: "left out" for k in layers if k.endswith("_ns") or k == "other_uid"})
    child.run(NOTHING, run_confinement(()), 20, profile=profile_of(layers))


def launcher_alone() -> None:
    """The launcher's own interpreter and imports, without any layer."""
    subprocess.run(
        isolated_command("forge_tui.sandbox.stage1", "0", "0"),
        stdin=subprocess.DEVNULL,
        check=False,
        capture_output=True,
    )


def locked_with_canaries() -> None:
    child.run(isolated_command("forge_tui.sandbox.probe"), run_confinement(()), 20)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    started = time.perf_counter()
    line = detect().line
    print(f"detect: {1e3 * (time.perf_counter() - started):.1f} ms once per process; {line}")
    cases: tuple[Callable[[], None], ...] = (bare, launcher_alone, confined, without_namespaces, locked_with_canaries)
    samples: dict[str, list[float]] = {case.__name__: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            started = time.perf_counter()
            case()
            samples[case.__name__].append(1e3 * (time.perf_counter() - started))
    medians = {name: statistics.median(times) for name, times in samples.items()}
    for name, value in medians.items():
        print(f"{name:22s} {value:7.1f} ms  (min {min(samples[name]):.1f}, max {max(samples[name]):.1f})")
    layers = medians["confined"] - medians["launcher_alone"] - medians["bare"]
    print(f"the layers themselves, keeper and reports included: {layers:.1f} ms (confined - launcher_alone - bare)")


if __name__ == "__main__":
    main()
