"""Open a cast and install it: the public way in. `forge_tui.cast.load(path).install(model)`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from forge_tui.cast import trust
from forge_tui.cast.backend import EntrySpec
from forge_tui.cast.guards import guard_row
from forge_tui.cast.installed import Installed
from forge_tui.cast.kernels import Kernel, load_kernel
from forge_tui.cast.keys import operator, schema_of
from forge_tui.cast.owner import owner
from forge_tui.cast.package import Package, open_cast
from forge_tui.cast.words import CannotGuard
from forge_tui.records.manifest import CastEntry, CastManifest
from forge_tui.records.problem import UserInputError

OFF = "FORGE_CAST_OFF"


def load(path: str | os.PathLike[str], accept_host_code: bool | None = None, rebuild: bool = False) -> Cast:
    """Check a cast and load its kernels into this process.

    accept_host_code: consent to native code (see `trust`); None asks the environment and the list of own casts.
    rebuild: compile the sources with the local g++ when no binary fits this CPU.
    With FORGE_CAST_OFF=1 nothing is loaded and `install` changes nothing. Raises UserInputError, MachineProblem.
    """
    package = open_cast(path)
    if os.environ.get(OFF) == "1":
        return Cast(package, {}, {}, (f"off: {OFF}=1",), True)
    manifest = package.manifest
    notes = []
    declined: dict[str, str] = {}
    host = [e for e in manifest.entries if e.tier == "T3"]
    if host:
        notes.append("host code " + trust.require(package.path, package.digest, accept_host_code))
    here, made = _minor(torch.__version__), _minor(manifest.torch)
    if here != made:
        notes.append(
            f"evidence is from torch {made}, this is {here}: kernels use the C ABI and run, speed-ups may differ"
        )
    kernels: dict[str, Kernel] = {}
    for entry in manifest.entries:
        reason = _cannot_run(entry)
        if reason:
            declined[entry.card_id] = reason
            continue
        kernels[entry.card_id] = load_kernel(package, entry, rebuild)
        if kernels[entry.card_id].note:
            notes.append(f"{entry.card_id} {kernels[entry.card_id].note}")
    return Cast(package, kernels, declined, tuple(notes), False)


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _cannot_run(entry: CastEntry) -> str:
    """Why an entry can't go through the eager hooks on a CPU; "" when it can."""
    if entry.tier != "T3" or any(step.kind == "kernel" for step in entry.plan.steps):
        return "a device kernel: this way in runs kernels on the CPU"
    if any(not t.device.startswith("cpu") for t in (*entry.key.tensors, *entry.key.outputs)):
        return "tensors are not on the CPU"
    if [step.kind for step in entry.plan.steps].count("host") != 1 or entry.plan.steps[-1].kind != "host":
        return "the plan is not one call of forge_launch at its end"
    return ""


@dataclass(frozen=True)
class Cast:
    """A checked cast with its kernels loaded. declined: card -> reason. notes: what a user should know. off: kill switch."""

    package: Package
    kernels: Mapping[str, Kernel]
    declined: Mapping[str, str]
    notes: tuple[str, ...]
    off: bool

    @property
    def manifest(self) -> CastManifest:
        return self.package.manifest

    def install(
        self,
        target: torch.nn.Module | Mapping[str, torch.nn.Module] | None = None,
        strict: bool = False,
        quiet: bool = False,
    ) -> Installed:
        """Put the cast into a model, into named modules, or (None) into nothing: then use `Installed.active()`.

        strict: the first forward raises UserInputError when no call was served. quiet: no summary line.
        """
        if target is None:
            modules: dict[str, torch.nn.Module] = {}
        elif isinstance(target, torch.nn.Module):
            modules = {"": target}
        elif isinstance(target, Mapping) and all(isinstance(m, torch.nn.Module) for m in target.values()):
            modules = dict(target)
        else:
            raise UserInputError("install takes a torch.nn.Module, a mapping of names to modules, or nothing")
        declined = dict(self.declined)
        specs: list[EntrySpec] = []
        if not self.off:
            for entry in self.manifest.entries:
                if entry.card_id in self.kernels:
                    try:
                        specs.append(self._spec(entry))
                    except CannotGuard as error:
                        declined[entry.card_id] = str(error)
        pays = {e.card_id: e.evidence.baseline_us - e.evidence.candidate_us for e in self.manifest.entries}
        attachment = owner().attach(specs, pays) if specs else None
        return Installed(self.manifest, attachment, declined, self.notes, modules, strict, quiet)

    @contextlib.contextmanager
    def active(self) -> Iterator[Installed]:
        """Installed for the block, on in this thread for every call in it: for `run()` callables and single operators."""
        installed = self.install(None, quiet=True)
        try:
            with installed.active():
                yield installed
        finally:
            installed.uninstall()

    def _spec(self, entry: CastEntry) -> EntrySpec:
        overload = operator(entry.key.op)
        if overload is None:
            raise CannotGuard(f"torch {torch.__version__} has no operator {entry.key.op}")
        schema, returns = schema_of(overload)
        kernel = self.kernels[entry.card_id]
        row = guard_row(entry.key, schema)
        return EntrySpec(entry.card_id, entry.key, entry.plan, row, schema, returns, kernel.launch, kernel.prepare)
