"""Who is to blame. Three words that stay apart everywhere, and a fourth for input.

rejected candidate  a kernel did not pass; the run goes on
harness problem     our own code or protocol failed; the attempt is void
machine problem     the machine can't (no memory, no device, disk full)
user input          what the user gave can't be used; says what to do
"""

from __future__ import annotations

from dataclasses import dataclass


class UserInputError(Exception):
    """Bad input. The message is one line: what is wrong, then what to do. Exit code 2."""


class HarnessProblem(Exception):
    """A fault of forge_tui itself, never held against a candidate. Exit code 70."""


class MachineProblem(Exception):
    """The machine can't do what is needed (memory, disk, device, toolchain). Exit code 71."""


class MachineBusy(MachineProblem):
    """Other processes disturbed a measurement: it does not count, and may be tried again when they are done."""


BUSY = "busy"  # kind of the Problem a MachineBusy turns into
REJECTION_KINDS = (
    "duplicate",  # same normalised source and plan on this card
    "bad reply",  # the proposer's answer held no candidate (see llm reply outcomes)
    "bad plan",  # plan refused by the schema or against the binary
    "static audit",  # forbidden construct in the source or import in the binary
    "compile error",
    "load error",  # the binary does not load or has no entry
    "crash",  # signal, illegal access
    "timeout",
    "declined",  # forge_launch returned > 0
    "launch error",  # forge_launch returned < 0, or the driver refused the launch
    "protocol",  # malformed, early, late or doubled reply of the worker
    "out of bounds",  # a red zone changed
    "changed its inputs",
    "unwritten output",  # poison survived
    "nondeterministic",  # the two poisons gave different outputs
    "non-finite",  # NaN/Inf masks differ from eager's
    "numeric",  # error rule
    "impossible time",  # below the speed-of-light floor, or claims disagree with the outside clock
    "sandbox",  # tried something the sandbox forbids
    "resource limit",  # memory, files, output size
)


@dataclass(frozen=True)
class Problem:
    """A failure as a value.

    blame: "candidate", "harness", "machine" or "user".
    kind:  for candidates one of REJECTION_KINDS, else a short name.
    line:  one line a person can act on, control bytes already stripped.
    detail: longer plain text (compiler log, traceback), capped; may be empty.
    """

    blame: str
    kind: str
    line: str
    detail: str = ""
