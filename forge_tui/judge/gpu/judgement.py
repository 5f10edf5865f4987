"""One candidate on a device, one verdict: as `judgement.Judgement`, with plan, worker and timing of the device."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from forge_tui.judge import environment
from forge_tui.judge.buffers import Buffers
from forge_tui.judge.gpu.buffers import GpuBuffers
from forge_tui.judge.gpu.eager import GpuEager
from forge_tui.judge.gpu.measure import measure
from forge_tui.judge.gpu.session import GpuSession, opened_noise
from forge_tui.judge.gpu.side import GpuRunSide
from forge_tui.judge.judgement import MAX_WORKSPACE, SEARCH_SECONDS, Judgement
from forge_tui.judge.measure import Effort
from forge_tui.judge.pool import TrialPool
from forge_tui.judge.session import NOISY
from forge_tui.judge.sides import Rejected, RunSide
from forge_tui.judge.timing import CONFIRM_PAIRS_MAX, timing_record
from forge_tui.launch.binary import read_image
from forge_tui.launch.steps import Resolved, resolve
from forge_tui.records.card import VariantKey
from forge_tui.records.plan import check_against
from forge_tui.records.problem import HarnessProblem, Problem
from forge_tui.records.verdict import Verdict

NOT_INSTALLED = "unknown: casts don't launch on a GPU yet, so no GPU candidate ships as a champion"


class GpuJudgement(Judgement):
    """Judging one GPU candidate once."""

    def run(self) -> Verdict:
        """The verdict; it never makes a champion, since nothing can install it yet."""
        return replace(super().run(), ships=False)

    @property
    def gpu(self) -> GpuSession:
        if not isinstance(self.session, GpuSession):
            raise HarnessProblem("a GPU candidate needs a GPU's session")
        return self.session

    def _plan(self, key: VariantKey) -> None:
        wrong = check_against(self.job.candidate.plan, key)
        if wrong:
            raise Rejected("bad plan", "plan", wrong[0], "\n".join(wrong))
        path = self.session.binary_path(self.job.binary.blob, self.job.binary.digest)
        self._resolved(key, path)
        self.ledger.passed("plan")

    def _resolved(self, key: VariantKey, path: Path) -> Resolved:
        """The plan in numbers for these sizes, scratch included. Raises Rejected."""
        plan = self.job.candidate.plan
        image = read_image(path.read_bytes(), plan)
        found = image if isinstance(image, Problem) else resolve(plan, key, image)
        if isinstance(found, Problem):
            raise Rejected(found.kind, "plan", found.line)
        if found.workspace_bytes > MAX_WORKSPACE:
            raise Rejected("bad plan", "plan", f"the plan asks for {found.workspace_bytes >> 20} MiB of workspace")
        if found.prepared_bytes or plan.prepare is not None:
            raise Rejected("bad plan", "plan", "a prepare step is not run on a GPU yet")
        return found

    def _start(self, key: VariantKey, binary: Path) -> tuple[RunSide, Buffers]:
        plan, settings = self.job.candidate.plan, self.session.settings
        resolved = self._resolved(key, binary)
        buffers = GpuBuffers(
            key, self.gpu.device, self.source.randrange(1 << 30), resolved.workspace_bytes, plan.workspace.alignment
        )
        side = GpuRunSide(buffers, self.session.profile, settings.worker_python, settings.time_limit_s)
        try:
            side.begin(binary, plan)
            self._admit(side)
            side.load()
            self.ledger.passed("load", "; ".join(f"{k}: {v}" for k, v in side.functions.items()))
        except BaseException:
            side.kill()
            buffers.close()
            raise
        return side, buffers

    def _admit(self, side: RunSide) -> None:
        """The worker holds no host code of the candidate, so its layers are recorded, not required."""
        self.profile["canaries"] = side.canaries
        if not side.allowed and self.session.profile.name == "full":
            self.ledger.passed("sandbox", "full profile, every canary refused")
            return
        more = f"; not refused: {', '.join(side.allowed)}" if side.allowed else ""
        self.ledger.unknown("sandbox", f"profile {self.session.profile.name}{more}")

    def _time(self, pool: TrialPool, side: RunSide, buffers: Buffers) -> None:
        if not isinstance(side, GpuRunSide) or not isinstance(buffers, GpuBuffers):
            raise HarnessProblem("a GPU candidate is timed over device buffers")
        settings, confirm = self.session.settings, self.job.confirm
        if confirm:
            self.session.refine_noise(self.opened, pool)
        effort = Effort(
            settings.confirm_pairs if confirm else settings.search_pairs,
            max(CONFIRM_PAIRS_MAX, settings.confirm_pairs) if confirm else settings.search_pairs,
            settings.confirm_seconds if confirm else SEARCH_SECONDS,
            confirm,
        )
        self.progress(step="timing")
        eager = GpuEager(self.opened.card.key, buffers)
        try:
            with self.session.alone() as hold:
                self.environment |= {"lock_wait_s": hold.waited_s, "timing": environment.present()}
                began = time.monotonic()
                floor_us = self.opened.ready.floor_us
                measured = measure(
                    eager, side, buffers, pool, self.examined, effort, floor_us, self.ledger, self.source
                )
        finally:
            eager.close()
        self.environment["timing_s"] = time.monotonic() - began
        cold = buffers.rotated_bytes >= self.gpu.device.l2_bytes
        text = (
            f"batch of {measured.batch}; CUDA graph over {buffers.sets} buffer sets ({buffers.rotated_bytes >> 20} MiB, "
            f"{'beyond' if cold else 'inside'} the L2 cache); {eager.method}"
        )
        self.timing = timing_record(measured, text, self.opened.noise, settings.threads)
        quiet = self.opened.noise is not None and self.opened.noise <= NOISY
        (self.ledger.passed if quiet else self.ledger.unknown)("noise", opened_noise(self.opened))
        self.stage = "confirmed" if confirm else "timed"

    def _installed(self, pool: TrialPool, binary: Path) -> None:
        self.ledger.unknown("installed", NOT_INSTALLED)
