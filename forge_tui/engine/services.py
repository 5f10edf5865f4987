"""What the parts of one run share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from forge_tui.engine.cardstate import CardSearch
from forge_tui.engine.compiling import CompilePool
from forge_tui.engine.gate import MachineGate
from forge_tui.engine.judging import JudgeClient
from forge_tui.engine.llm_client import LlmClient
from forge_tui.engine.options import Options
from forge_tui.store.session import Session
from forge_tui.store.store import Store


@dataclass
class Services:
    """One run's store, children and state. going: cleared while paused. stopping: no new work is begun.

    machine: one line about the machine for prompts. faults: harness and machine problems in a row.
    unattended: nobody is there to resume a paused run, so it stops instead.
    """

    session: Session
    store: Store
    options: Options
    gate: MachineGate
    pool: CompilePool
    judge: JudgeClient
    llm: LlmClient
    cards: dict[str, CardSearch] = field(default_factory=dict)
    going: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    machine: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    faults: int = 0
    unattended: bool = False
    last_fault: str = ""
    llm_stopped: str = ""

    def fault(self, line: str) -> None:
        """Note a harness or machine problem; three in a row pause the run, so that it doesn't burn its budget."""
        self.faults += 1
        self.last_fault = line
        self.store.log("bad", line)
        if self.faults >= 3 and self.unattended:
            self.stopping = self.stopping or f"problem: {line}"
        elif self.faults >= 3 and self.going.is_set():
            self.going.clear()
            self.store.add_run_event("paused", line=f"paused after {self.faults} problems in a row: {line}")
            self.store.log("bad", f"paused after {self.faults} problems in a row; fix the cause and resume")
