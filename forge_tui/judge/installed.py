"""The installed call: the candidate behind guard and dispatch against plain eager, from Python.

A one-entry cast is built in scratch and timed in a sandboxed child that has torch, cast on and cast off in
interleaved pairs. Where that can't be done the result is the reason, never a number.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import torch

from forge_tui.cast import native
from forge_tui.cast.package import write_cast
from forge_tui.judge.buffers import Buffers
from forge_tui.judge.measure import CLOCK_TRIES
from forge_tui.judge.pool import TrialPool
from forge_tui.judge.session import Session, fill
from forge_tui.judge.sides import ALLOCATION, Rejected
from forge_tui.judge.timing import (
    CONFIRM_PAIRS_MAX,
    batch_size,
    interleave,
    single_threaded,
    timing_record,
    unexplained_ns,
)
from forge_tui.judge.wire import Channel, ProtocolBroken, Reply, WorkerGone, WorkerSilent
from forge_tui.records.boot import boot_command
from forge_tui.records.card import Card
from forge_tui.records.codec import to_json
from forge_tui.records.frames import TRUSTED_LIMIT
from forge_tui.records.judging import JudgeJob
from forge_tui.records.manifest import FORMAT, CastBinary, CastEntry, CastManifest, Evidence
from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError
from forge_tui.records.verdict import Timing
from forge_tui.sandbox.child import ConfinedProcess, spawn
from forge_tui.sandbox.confinement import torch_run_confinement

START_S = 120.0
SECONDS = 5.0


class Unknown(Exception):
    """The installed call can't be measured; the message is the reason."""


class Switched:
    """One side of the pairs: the child's calls with the cast on or off."""

    def __init__(self, child: Child, on: bool) -> None:
        self.child, self.on = child, on

    def run(self, n: int, first: int, keep: tuple[int, int]) -> tuple[int, int]:
        reply, outside = self.child.ask({"do": "batch", "n": n, "first": first, "on": self.on})
        return reply.ns, outside


class Child:
    """The sandboxed torch child."""

    def __init__(self, session: Session, path: Path, folder: Path, limit_s: float) -> None:
        roots = {sys.prefix, sys.base_prefix, str(Path(torch.__file__).parent.parent), sysconfig.get_path("stdlib")}
        cache = folder / "cache"
        confinement = torch_run_confinement(
            (str(path), str(cache)),
            tuple(sorted(roots)),
            python=sys.executable,
            write=(str(cache),),
            environment=ALLOCATION | {"XDG_CACHE_HOME": str(cache), "TMPDIR": str(cache), "HOME": str(cache)},
            threads=session.settings.threads,
        )
        command = boot_command(sys.executable, "forge_tui.judge.installed_worker", str(path))
        self.process: ConfinedProcess = spawn(command, confinement, channel=True, profile=session.profile)
        if self.process.channel is None:
            raise HarnessProblem("the sandbox gave no channel to the installed call's child")
        self.channel = Channel(self.process.channel, TRUSTED_LIMIT)
        self.limit_s = limit_s

    def ask(self, message: dict[str, object], fds: list[int] | None = None) -> tuple[Reply, int]:
        """Raises Unknown when the child fails: it holds torch and the cast runtime beside the candidate."""
        try:
            reply, outside = self.channel.ask(message, START_S if fds else self.limit_s, fds)
        except (ProtocolBroken, WorkerGone, WorkerSilent) as error:
            said = self.process.stderr.strip().splitlines()
            raise Unknown(f"its process failed: {error}" + (f" ({said[-1][:200]})" if said else "")) from None
        if reply.status != "ok":
            raise Unknown(reply.line)
        return reply, outside

    def kill(self) -> None:
        self.channel.close()
        self.process.kill()


def measure(
    session: Session, card: Card, job: JudgeJob, pool: TrialPool, binary: Path, source: random.Random
) -> Timing | str:
    """The installed call's timing, or why it is unknown. Raises Rejected when its result is wrong."""
    library = native.build()
    with tempfile.TemporaryDirectory(dir=session.scratch) as scratch:
        folder = Path(scratch)
        hooks = folder / "cache" / "forge_tui" / "native"
        hooks.mkdir(parents=True)
        if isinstance(library, Path):
            shutil.copy(library, hooks / library.name)
        path = folder / "one.cast"
        try:
            write_cast(str(path), *_one_entry(card, job, binary))
            return _timed(session, card, pool, path, folder, source)
        except Unknown as reason:
            return str(reason)
        except UserInputError as refused:
            return f"the cast refuses this candidate: {refused}"


def _one_entry(card: Card, job: JudgeJob, binary: Path) -> tuple[CastManifest, dict[str, bytes]]:
    candidate, built = job.candidate, job.binary
    evidence = Evidence(
        1.0, 1.0, 1.0, 0.0, 0.0, None, None, candidate.candidate_id, candidate.proposer, candidate.audit_class,
        card.synthetic, {}, {},
    )  # fmt: skip
    source, library = f"sources/{card.card_id}.cpp", f"binaries/{card.card_id}.so"
    members = {source: candidate.source.encode(), library: binary.read_bytes()}
    entry = CastEntry(
        card.card_id, card.key, candidate.plan, source, _sha256(members[source]),
        (CastBinary(library, built.digest, built.language, built.target, built.flags, built.toolchain),),
        evidence, card.calls, card.modules, candidate.tier,
    )  # fmt: skip
    manifest = CastManifest(FORMAT, "trial", "trial", time.time(), torch.__version__, "cpu", (entry,), card.synthetic)
    return manifest, members


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _timed(session: Session, card: Card, pool: TrialPool, path: Path, folder: Path, source: random.Random) -> Timing:
    settings = session.settings
    buffers = Buffers(card.key, source.randrange(1 << 30))
    child = Child(session, path, folder, settings.time_limit_s)
    try:
        at = fill(buffers, pool)
        layout = buffers.layout(None, 0, settings.threads)
        reply, _ = child.ask({"do": "map", "key": to_json(card.key), "layout": layout}, buffers.fds)
        tier = reply.line
        buffers.poison_slot(0, 0, 0)
        done, _ = child.ask({"do": "once", "set": 0, "slot": 0, "on": True})
        if done.code < 1:
            raise Unknown(f"the guard did not admit the card's own inputs ({tier})")
        outcome = pool.check(at[0], [t.clone() for t in buffers.slot_tensors(0)])
        if outcome.problem is not None and outcome.problem.blame == "candidate":
            line = f"the installed call gives a wrong result: {outcome.problem.line}"
            raise Rejected(outcome.problem.kind, "installed", line, stage="timed")
        off, on = Switched(child, False), Switched(child, True)
        with single_threaded():
            batch = batch_size((off, on), buffers.sets)
            for _ in range(CLOCK_TRIES):
                measured = interleave(
                    off, on, batch, buffers.sets, source, settings.confirm_pairs // 2, CONFIRM_PAIRS_MAX,
                    min(SECONDS, settings.confirm_seconds), True,
                )  # fmt: skip
                extra, jitter = unexplained_ns(measured)
                if extra <= 0.03 * batch * 1000 * min(s.us for s in measured.candidate) + jitter:
                    break
            else:
                line = f"in {CLOCK_TRIES} runs the installed call's claims disagreed with the judge's clock"
                raise Rejected("impossible time", "installed", line, stage="timed")
        noise_of = session.opened[card.card_id].noise
        return timing_record(
            measured,
            f"Python loop in one process, cast on and off; {tier}",
            noise_of,
            settings.threads,
            call="installed",
        )
    except MachineProblem as problem:
        raise Unknown(str(problem)) from None
    finally:
        child.kill()
        buffers.close()
