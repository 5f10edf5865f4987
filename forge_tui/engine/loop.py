"""The search: which card, which node, how many at once, when to stop. Decisions are stored before they are acted on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from forge_tui.engine.attempt import BUSY_TRIES, BUSY_WAIT_S, Attempts
from forge_tui.engine.cardstate import CardSearch, Node
from forge_tui.engine.choosing import Chooser
from forge_tui.engine.proposing import Proposing
from forge_tui.engine.recovery import Recovered
from forge_tui.engine.services import Services
from forge_tui.records.candidate import Draft, Parent
from forge_tui.records.judging import CardReady
from forge_tui.records.problem import HarnessProblem, MachineBusy, MachineProblem, UserInputError
from forge_tui.search.parameters import Parameters


class SearchLoop:
    """Keeps up to `width` candidates in flight until every card is done, the budget is spent, or it is told to stop.

    spent_s: search time of earlier runs of the session, counted against `minutes`.
    """

    def __init__(self, services: Services, parameters: Parameters) -> None:
        self._s = services
        self.attempts = Attempts(services)
        self.proposing = Proposing(services, self.attempts)
        self.chooser = Chooser(services, parameters)
        self.spent_s = 0.0
        self._started = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()
        self._written: dict[str, dict[str, tuple[int, float | None]]] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._wanted: list[tuple[CardSearch, Node, str]] = []
        self._drafts: list[tuple[CardSearch, Draft, str, tuple[Parent, ...]]] = []

    async def run(self, recovered: Recovered | None) -> None:
        """Search until done. Work that a killed run left is taken up first."""
        self._started = time.monotonic()
        await self.chooser.select_cards()
        for cs in self._s.cards.values():
            self.proposing.open_card(cs)
        self._take_up(recovered)
        while True:
            await self._s.going.wait()
            self._s.changed.clear()
            self._check_limits()
            while len(self._tasks) < self._s.options.width and self._s.going.is_set() and self._begin_one():
                pass
            if not self._tasks:
                if self._s.stopping or not self._begin_one():
                    return
                continue
            waiter = asyncio.create_task(self._s.changed.wait())
            await asyncio.wait({*self._tasks, waiter}, return_when=asyncio.FIRST_COMPLETED, timeout=1.0)
            waiter.cancel()

    async def cancel(self) -> None:
        """Drop what is in flight; its open attempts are marked lost by the next run."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def want(self, cs: CardSearch, node: Node, what: str) -> None:
        """Ask for a node by hand: "expand" or "judge". Goes before what the strategy would choose."""
        self._wanted.append((cs, node, what))
        cs.done = ""
        self._s.changed.set()

    def submit(self, cs: CardSearch, draft: Draft, proposer: str, parents: tuple[Parent, ...]) -> None:
        """Judge a person's draft before anything the strategy would choose."""
        cs.done = ""
        self._drafts.append((cs, draft, proposer, parents))
        self._s.changed.set()

    @property
    def seconds(self) -> float:
        return self.spent_s + time.monotonic() - self._started

    def _take_up(self, recovered: Recovered | None) -> None:
        for cs in self._s.cards.values():
            for node in cs.nodes.values():
                if node.verdict is None and not node.pruned:
                    self._start(self._again(cs, node))
        for request, reply in recovered.answered if recovered else ():
            if (owner := self._s.cards.get(request.card_id)) is not None:
                self._start(self._counted(owner, self.proposing.finish_reply(owner, request, reply)))
        for request in recovered.again if recovered else ():
            if (owner := self._s.cards.get(request.card_id)) is not None:
                self._start(self._counted(owner, self.proposing.send_again(owner, request)))

    async def _again(self, cs: CardSearch, node: Node) -> None:
        cs.in_flight.add(node.candidate.candidate_id)
        try:
            await self._open_once(cs)
            if not cs.done:
                await self.attempts.judge(cs, node)
        finally:
            cs.in_flight.discard(node.candidate.candidate_id)

    def _check_limits(self) -> None:
        s = self._s
        if s.options.minutes is not None and self.seconds > 60 * s.options.minutes and not s.stopping:
            s.stopping = "time is up"
            s.store.log("info", f"the {s.options.minutes:g} minutes of the search are over")
        if sum(cs.attempts for cs in s.cards.values()) >= s.options.total_attempts and not s.stopping:
            s.stopping = "budget spent"
            s.store.log("info", f"the budget of {s.options.total_attempts} candidates is spent")

    def _begin_one(self) -> bool:
        """Start one piece of work; False when there is none to start now. A run that ends still confirms its winners."""
        if self._s.stopping.startswith(("now", "problem")):
            return False
        if self._begin_confirmation():
            return True
        return False if self._s.stopping else self._begin_search()

    def _begin_confirmation(self) -> bool:
        for cs in self._s.cards.values():
            winner = cs.to_confirm() if self.chooser.time_to_confirm(cs) else None
            if winner is not None:
                cs.tried_to_confirm.add(winner.candidate.candidate_id)
                cs.in_flight.add(winner.candidate.candidate_id)
                self._start(self._confirm(cs, winner))
                return True
        return False

    def _begin_search(self) -> bool:
        if self._drafts:
            cs, draft, proposer, parents = self._drafts.pop(0)
            self._start(self._counted(cs, self.attempts.develop(cs, draft, proposer, parents)))
            return True
        if self._wanted:
            cs, node, what = self._wanted.pop(0)
            self._start(self._expand(cs, node) if what == "expand" else self._rejudge(cs, node))
            return True
        choice = self.chooser.next(self.proposing)
        if choice is None:
            return False
        cs, expanded = choice
        if cs.ready is None:
            lock = self._opening.get(cs.card.card_id)
            if lock is not None and lock.locked():
                return False
            self._start(self._open_once(cs))
        elif expanded is None:
            self._start(self._counted(cs, self.proposing.new_root(cs)))
        else:
            self._start(self._expand(cs, expanded))
        return True

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (HarnessProblem, MachineProblem, UserInputError) as error:
            self._s.fault(f"{type(error).__name__}: {error}")
        finally:
            self._s.changed.set()
            self._write_snapshots()

    def _write_snapshots(self) -> None:
        """Visits and values for the lists, of the cards whose trees changed."""
        for card_id, cs in self._s.cards.items():
            rows = self.chooser.snapshot(cs) if cs.nodes else {}
            if rows and rows != self._written.get(card_id):
                self._written[card_id] = rows
                self._s.store.write_snapshot(card_id, rows)

    async def _open(self, cs: CardSearch) -> None:
        """Have the judge test the card before any candidate of it."""
        s, card = self._s, cs.card
        began = time.monotonic()
        try:
            await s.store.add_card_state(card.card_id, "running")
            async with s.gate.exclusive():
                ready = await self._ready(cs)
            await s.store.add_card_ready(ready)
            cs.ready = ready
            noise = "unknown" if ready.noise is None else f"{100 * ready.noise:.1f}%"
            s.store.log("debug", f"{card.title}: tested in {time.monotonic() - began:.1f} s, A/A {noise}", card.card_id)
            if not ready.usable:
                cs.done = "undiscriminating"
                s.store.log("warn", f"{card.title}: no claim will be made from this card: {ready.line}", card.card_id)
            elif ready.weak:
                s.store.log("warn", f"{card.title}: weak error rule: {ready.line}", card.card_id)
        except (HarnessProblem, MachineProblem, UserInputError) as error:
            cs.done = "problem"
            await s.store.add_card_state(card.card_id, "problem", str(error))
            s.store.log("bad", f"{card.title} can't be judged: {error}", card.card_id)

    async def _ready(self, cs: CardSearch) -> CardReady:
        """The judge's tests of a card, waiting for a quiet machine where that is needed."""
        for _ in range(BUSY_TRIES - 1):
            try:
                return await self._s.judge.open_card(cs.card)
            except MachineBusy as busy:
                self._s.store.log("warn", f"waiting for a quieter machine: {busy}", cs.card.card_id)
                await asyncio.sleep(BUSY_WAIT_S)
        return await self._s.judge.open_card(cs.card)

    async def _expand(self, cs: CardSearch, node: Node) -> None:
        cs.proposing_from.append(node.candidate.candidate_id)
        try:
            await self._counted(cs, self.proposing.expand(cs, node))
        finally:
            cs.proposing_from.remove(node.candidate.candidate_id)

    async def _rejudge(self, cs: CardSearch, node: Node) -> None:
        await self._open_once(cs)
        cs.in_flight.add(node.candidate.candidate_id)
        try:
            await self.attempts.judge(cs, node)
        finally:
            cs.in_flight.discard(node.candidate.candidate_id)
        if node.best is not None:
            await self.attempts.confirm(cs, node)

    async def _open_once(self, cs: CardSearch) -> None:
        """Open a card unless another task has done so or is about to."""
        lock = self._opening.setdefault(cs.card.card_id, asyncio.Lock())
        async with lock:
            if cs.ready is None and not cs.done:
                await self._open(cs)

    async def _confirm(self, cs: CardSearch, node: Node) -> None:
        await self._open_once(cs)
        await self.attempts.confirm(cs, node)

    async def _counted(self, cs: CardSearch, proposal: Coroutine[Any, Any, Node | None]) -> None:
        """Run a proposal while it counts against the card's budget."""
        cs.proposing += 1
        try:
            await self._open_once(cs)
            await proposal
        finally:
            proposal.close()
            cs.proposing -= 1
