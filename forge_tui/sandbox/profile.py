"""Which layers this machine can give, found by trying each one in a process that is thrown away.

A profile is a fact about kernel, user and container, not a wish: "full" needs namespaces (or dropped capabilities and
another user id) plus Landlock plus seccomp; "no-userns" lacks the namespaces only; anything less is "minimal".
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass

from forge_tui.records.problem import MachineProblem
from forge_tui.sandbox.boot import isolated_command

LAYERS = (
    "rlimits", "no_new_privs", "user_ns", "net_ns", "ipc_ns", "pid_ns", "mount_ns", "landlock", "seccomp", "capabilities",
    "other_uid", "pdeathsig", "subreaper", "pidfd",
)  # fmt: skip


@dataclass(frozen=True)
class Profile:
    """name: "full", "no-userns" or "minimal". layers: name -> "on", or why it is off. line: one line for people."""

    name: str
    layers: dict[str, str]
    line: str

    def has(self, layer: str) -> bool:
        return self.layers.get(layer) == "on"

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Namespaces to enter, in the launcher's words; empty where user namespaces are refused."""
        if not self.has("user_ns"):
            return ()
        kinds = ("user", "net", "ipc", "pid", "mount") if self.has("pid_ns") else ("user", "net", "ipc")
        return tuple(n for n in kinds if self.has(f"{n}_ns"))


@functools.cache
def detect() -> Profile:
    """The profile of this machine for this user; found once per process. Raises MachineProblem when the trial won't run."""
    if not sys.platform.startswith("linux"):
        reason = f"{sys.platform} has no such layer"
        return profile_of({name: reason for name in LAYERS} | {"rlimits": "on"})
    try:
        done = subprocess.run(
            isolated_command("forge_tui.sandbox.trial"),
            capture_output=True,
            timeout=30,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise MachineProblem(f"the sandbox could not be tried out: {error}") from None
    return profile_of({name: str(found.get(name, "not tried")) for name in LAYERS})


def profile_of(layers: dict[str, str]) -> Profile:
    """Name and describe a set of layers."""
    on = {name for name, state in layers.items() if state == "on"}
    apart = {"user_ns", "net_ns", "ipc_ns"} <= on
    other = {"capabilities", "other_uid"} <= on
    if {"landlock", "seccomp", "no_new_privs", "rlimits"} <= on:
        name = "full" if apart or other else "no-userns"
    else:
        name = "minimal"
    off = [f"{layer} ({state})" for layer, state in layers.items() if state != "on" and _matters(layer, on)]
    line = f"{name}: {len(on)} of {len(layers)} layers" + (f"; off: {', '.join(off)}" if off else "")
    return Profile(name, layers, line)


def _matters(layer: str, on: set[str]) -> bool:
    """Another user id is only wanted where there are no user namespaces."""
    return layer != "other_uid" or "user_ns" not in on
