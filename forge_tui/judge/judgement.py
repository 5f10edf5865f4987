"""One candidate, one verdict: plan, policy, worker, correctness, timing, confirmation, assembly.

Invariants: the verdict is put together here, outside the candidate's process, from what the judge saw; a candidate's
failure is a value with a kind and a named check; a failure of ours or of the machine is raised and makes the run void;
a check that did not run is unknown, with the reason.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forge_tui.judge import environment, installed
from forge_tui.judge.buffers import Buffers
from forge_tui.judge.examine import Examination, Ledger, examine, fitting, sized_key
from forge_tui.judge.measure import Effort, measure
from forge_tui.judge.pool import TrialPool
from forge_tui.judge.session import NOISY, Opened, Session
from forge_tui.judge.sides import Rejected, RunSide
from forge_tui.judge.timing import CONFIRM_PAIRS_MAX, single_threaded, timing_record
from forge_tui.records.card import VariantKey
from forge_tui.records.expr import ExprError, value_of
from forge_tui.records.judging import JudgeJob
from forge_tui.records.plan import check_against, symbols_of
from forge_tui.records.problem import HarnessProblem, Problem
from forge_tui.records.verdict import STAGES, Timing, Verdict

UNTRUSTED = ("llm", "inbox", "editor")
MAX_WORKSPACE = 1 << 30
SEARCH_SECONDS = 6.0
TIMING_TRIES = 2


@dataclass(frozen=True)
class _Sizes:
    """What the plan asks for at one set of sizes, in bytes."""

    workspace: int
    prepared: int


class Judgement:
    """Judging one candidate once."""

    def __init__(
        self, session: Session, job: JudgeJob, progress: Callable[..., None], installed_too: bool = True
    ) -> None:
        self.session, self.job, self.progress = session, job, progress
        opened = session.opened.get(job.candidate.card_id)
        if opened is None:
            raise HarnessProblem(f"card {job.candidate.card_id} was not opened")
        self.opened: Opened = opened
        self.installed_too = installed_too
        self.ledger = Ledger()
        self.stage = "compiled"
        self.source = random.Random(secrets.randbits(64))
        self.profile: dict[str, Any] = {"name": session.profile.name, "layers": session.profile.layers}
        self.environment: dict[str, Any] = dict(session.environment) | {"before": environment.present()}
        self.examined = Examination()
        self.timing: Timing | None = None
        self.installed: Timing | None = None
        self.seed = opened.seed

    def run(self) -> Verdict:
        """The verdict. Raises HarnessProblem, MachineProblem: then there is none."""
        started = time.monotonic()
        problem: Problem | None = None
        try:
            self._judge()
        except Rejected as rejected:
            self.ledger.failed(rejected.check, rejected.line)
            self.stage = max(self.stage, rejected.stage, key=STAGES.index)
            problem = Problem("candidate", rejected.kind, rejected.line, rejected.detail[-4000:])
        if not self.session.healthy():
            raise HarnessProblem("the judge failed its health probe after this candidate")
        self.environment["after"] = environment.present()
        candidate = self.job.candidate
        return Verdict(
            candidate.candidate_id,
            candidate.card_id,
            self.stage,
            "rejected" if problem else "correct",
            problem,
            self.ledger.all(),
            tuple(self.examined.errors),
            self.timing,
            self.installed,
            self.job.confirm,
            self.opened.ready.floor_us,
            self.job.binary.digest,
            self.profile,
            self.environment,
            time.monotonic() - started,
            # A search pool serves more candidates; only a confirmation's seed is used up and may be shown.
            self.seed if self.job.confirm else "",
        )

    def _judge(self) -> None:
        card, ready = self.opened.card, self.opened.ready
        self._policy()
        self._plan(card.key)
        if self.job.confirm:
            self.seed = secrets.token_hex(16)
        self.progress(step="trials")
        pool = self.session.pool(card, self.seed)
        if self.job.confirm and not pool.nulls().usable:
            raise HarnessProblem(f"the confirmation's own trials are undiscriminating: {pool.nulls().line}")
        if ready.usable:
            self.ledger.passed("nulls", self.opened.nulls_line)
        else:
            self.ledger.unknown("nulls", ready.line)
        binary = self.session.binary_path(self.job.binary.blob, self.job.binary.digest)
        usable = [i for i in range(len(pool.trials)) if fitting(card.key, pool.trials[i].tensors)]
        self._other_sizes(pool, usable, binary)
        self._main_sizes(pool, usable, binary)
        if self.job.confirm and self.installed_too:
            self._installed(pool, binary)
        else:
            self.ledger.unknown("installed", "measured when a candidate is confirmed")

    def _policy(self) -> None:
        candidate, settings, profile = self.job.candidate, self.session.settings, self.session.profile
        untrusted = candidate.tier == "T3" and candidate.proposer in UNTRUSTED
        if untrusted and profile.name != "full" and not settings.trust_host_code:
            line = (
                f"host code from {candidate.proposer} needs the full sandbox; here it is {profile.line}. "
                "Set trust_host_code to run it all the same"
            )
            raise Rejected("sandbox", "sandbox", line)
        self.ledger.unknown("audit", "done by the language before compiling, not by the judge")
        if self.job.binary.report.get("audit") == "passed":
            self.ledger.passed("audit", "source and imports, before compiling")

    def _plan(self, key: VariantKey) -> None:
        wrong = check_against(self.job.candidate.plan, key)
        if any(step.kind != "host" for step in self.job.candidate.plan.steps):
            wrong.append("a plan for the CPU holds host steps only")
        if wrong:
            raise Rejected("bad plan", "plan", wrong[0], "\n".join(wrong))
        self._sizes(key)
        self.ledger.passed("plan")

    def _sizes(self, key: VariantKey) -> _Sizes:
        plan = self.job.candidate.plan
        symbols = symbols_of(key) | plan.constants
        try:
            workspace = value_of(plan.workspace.bytes, symbols)
            prepared = value_of(plan.prepare.bytes, symbols) if plan.prepare else 0
        except ExprError as error:
            raise Rejected("bad plan", "plan", f"a size in the plan has no value: {error}") from None
        if not 0 <= workspace <= MAX_WORKSPACE or not 0 <= prepared <= MAX_WORKSPACE:
            raise Rejected(
                "bad plan", "plan", f"the plan asks for {max(workspace, prepared) >> 20} MiB of scratch memory"
            )
        return _Sizes(workspace, prepared)

    def _start(self, key: VariantKey, binary: Path) -> tuple[RunSide, Buffers]:
        """A fresh confined worker with the candidate loaded over fresh buffers."""
        plan, settings = self.job.candidate.plan, self.session.settings
        sizes = self._sizes(key)
        buffers = Buffers(key, self.source.randrange(1 << 30), sizes.workspace, plan.workspace.alignment)
        side = RunSide(buffers, self.session.profile, settings.worker_python, settings.threads, settings.time_limit_s)
        try:
            layout = buffers.layout(plan, sizes.prepared, settings.threads)
            side.start(self.session.plumbing, binary, layout, self.job.binary.report.get("worker", {}))
            self._admit(side)
            side.load()
            self.ledger.passed("load")
        except BaseException:
            side.kill()
            buffers.close()
            raise
        return side, buffers

    def _admit(self, side: RunSide) -> None:
        """Decide by the canaries of this very worker, before the candidate is loaded into it."""
        self.profile["canaries"] = side.canaries
        open_doors = side.allowed
        candidate = self.job.candidate
        if not open_doors and self.session.profile.name == "full":
            self.ledger.passed("sandbox", "full profile, every canary refused")
            return
        line = f"profile {self.session.profile.name}" + (
            f"; not refused: {', '.join(open_doors)}" if open_doors else ""
        )
        if candidate.proposer in UNTRUSTED and not self.session.settings.trust_host_code:
            raise Rejected("sandbox", "sandbox", f"{line}. Set trust_host_code to run such host code all the same")
        self.ledger.unknown("sandbox", line)

    def _other_sizes(self, pool: TrialPool, usable: list[int], binary: Path) -> None:
        """Trials of a family's other sizes, each in a worker of its own."""
        for index in range(len(pool.trials)):
            if index in usable:
                continue
            key = sized_key(self.opened.card.key, pool.trials[index].tensors, pool.expect(index)[0])
            side, buffers = self._start(key, binary)
            try:
                with single_threaded():
                    found = examine(side, buffers, pool, [index], self.ledger, self.source)
                self.examined.errors += found.errors
            finally:
                side.kill()
                buffers.close()

    def _main_sizes(self, pool: TrialPool, usable: list[int], binary: Path) -> None:
        began = time.monotonic()
        side, buffers = self._start(self.opened.card.key, binary)
        try:
            started = time.monotonic()
            # Comparisons go in cache-sized pieces: a team of threads costs more than it gives on a busy machine.
            with single_threaded():
                found = examine(side, buffers, pool, usable, self.ledger, self.source)
            self.environment |= {"start_s": started - began, "trials_s": time.monotonic() - started}
            self.examined.errors += found.errors
            self.examined.results = found.results
            self.stage = "correct"
            self._time(pool, side, buffers)
        finally:
            side.kill()
            buffers.close()

    def _time(self, pool: TrialPool, side: RunSide, buffers: Buffers) -> None:
        settings, ready, card = self.session.settings, self.opened.ready, self.opened.card
        confirm = self.job.confirm
        if confirm:
            self.session.refine_noise(self.opened, pool)
        noise = self.opened.noise
        effort = Effort(
            settings.confirm_pairs if confirm else settings.search_pairs,
            max(CONFIRM_PAIRS_MAX, settings.confirm_pairs) if confirm else settings.search_pairs,
            settings.confirm_seconds if confirm else SEARCH_SECONDS,
            confirm,
        )
        eager = self.session.eager("baseline")
        method = eager.open(card.key, buffers, settings.threads)
        self.progress(step="timing")
        others: float | None = None
        for attempt in range(TIMING_TRIES):
            with self.session.alone() as hold:
                self.environment |= {"lock_wait_s": hold.waited_s, "timing": environment.present()}
                began = time.monotonic()
                try:
                    measured = measure(
                        eager, side, buffers, pool, self.examined, effort, ready.floor_us, self.ledger, self.source
                    )
                except Rejected:
                    hold.insist()  # a clock or a bound that a busy neighbour broke is not the candidate's doing
                    raise
                if hold.quiet() or attempt == TIMING_TRIES - 1:
                    others = hold.insist()
                    break
        self.environment["timing_s"] = time.monotonic() - began
        text = f"batch of {measured.batch}; {method}; fresh outputs per call by posix_memalign(64) on both sides"
        if side.prepare_ns:
            text += f"; prepare {side.prepare_ns / buffers.sets / 1000:.1f} us outside the clock"
        self.timing = replace(timing_record(measured, text, noise, settings.threads), other_cores=others)
        if noise is None:
            self.ledger.unknown("noise", "no A/A control was run")
        else:
            (self.ledger.passed if noise <= NOISY else self.ledger.unknown)("noise", f"A/A half-width {noise:.3f}")
        self.stage = "confirmed" if confirm else "timed"

    def _installed(self, pool: TrialPool, binary: Path) -> None:
        self.progress(step="installed call")
        with self.session.alone() as hold:
            try:
                found = installed.measure(self.session, self.opened.card, self.job, pool, binary, self.source)
            except Rejected:
                hold.insist()
                raise
            others = hold.insist()
        if isinstance(found, str):
            self.ledger.unknown("installed", found)
            return
        self.installed = replace(found, other_cores=others)
        self.ledger.passed(
            "installed", f"{found.speedup:.3f}x [{found.low:.3f}, {found.high:.3f}] through guard and dispatch"
        )
