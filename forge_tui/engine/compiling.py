"""The compile pool: candidates to binaries, several at once, in the compile sandbox, behind the machine gate."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from pathlib import Path

from forge_tui.engine.gate import MachineGate
from forge_tui.languages.language import Toolchain
from forge_tui.languages.registry import language
from forge_tui.records.candidate import Binary, Candidate
from forge_tui.records.card import VariantKey
from forge_tui.records.plan import check_against
from forge_tui.records.problem import MachineProblem, Problem


class CompilePool:
    """Compiles at most `width` candidates at once. Binaries go to the session's blob store (`put_blob`)."""

    def __init__(self, scratch: Path, gate: MachineGate, width: int) -> None:
        self._scratch = scratch
        self._gate = gate
        self._slots = asyncio.Semaphore(width)
        self._toolchains: dict[str, Toolchain] = {}
        self.busy = 0

    def toolchain(self, name: str) -> Toolchain:
        """The toolchain of a language, probed once. Raises MachineProblem with cause and fix."""
        if name not in self._toolchains:
            found = language(name).probe()
            if isinstance(found, Problem):
                raise MachineProblem(found.line)
            self._toolchains[name] = found
        return self._toolchains[name]

    async def compile(self, candidate: Candidate, key: VariantKey) -> tuple[Binary, bytes] | Problem:
        """Audit the source, compile it, read the binary back. A bad candidate comes back as its Problem."""
        lang = language(candidate.language)
        wrong = check_against(candidate.plan, key)
        if wrong:
            return Problem("candidate", "bad plan", wrong[0], "\n".join(wrong))
        refused = lang.audit(candidate.source, candidate.plan, key)
        if refused is not None:
            return refused
        toolchain = await asyncio.to_thread(self.toolchain, candidate.language)
        async with self._slots, self._gate.shared():
            self.busy += 1
            scratch = Path(tempfile.mkdtemp(prefix=f"{candidate.candidate_id}-", dir=self._scratch))
            try:
                done = await lang.compile(candidate.source, candidate.plan, key, toolchain, scratch)
                if isinstance(done, Problem):
                    return done
                content = await asyncio.to_thread(done.path.read_bytes)
            finally:
                self.busy -= 1
                await asyncio.to_thread(shutil.rmtree, scratch, True)
        digest = hashlib.sha256(content).hexdigest()
        binary = Binary(
            candidate.language,
            digest,
            digest,
            done.flags,
            toolchain.version,
            toolchain.target,
            done.seconds,
            {**done.report, "audit": "passed"},
        )
        return binary, content
