"""Commands to a running search: each is stored, carried out, and answered by a stored acknowledgement."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from forge_tui.engine.cardstate import CardSearch, Node
from forge_tui.engine.run import Run
from forge_tui.proposers.own import draft_of
from forge_tui.records.candidate import Parent
from forge_tui.records.command import Acknowledgement, Command
from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError


class Commands:
    """Carries out commands on one run. quit_requested: set by quit and yield_owner. wanted: somebody asked for more work."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.quit_requested = ""
        self.wanted = asyncio.Event()

    async def __call__(self, command: Command, sender: str) -> Acknowledgement:
        """Store, act, answer. A command that can't be carried out is refused with one line, never raised."""
        store = self._run.store
        seq = await store.add_command(command, sender)
        try:
            line, value = await self._act(command)
            answer = Acknowledgement(seq, "done", line, value)
        except UserInputError as error:
            answer = Acknowledgement(seq, "refused", str(error))
        except (HarnessProblem, MachineProblem) as error:
            answer = Acknowledgement(seq, "failed", str(error))
        await store.add_acknowledgement(answer)
        store.log(
            "info", f"{command.verb} {command.subject}: {answer.outcome}" + (f", {answer.line}" if answer.line else "")
        )
        self._run.services.changed.set()
        return answer

    async def _act(self, command: Command) -> tuple[str, dict[str, Any] | None]:
        run, verb = self._run, command.verb
        if verb in ("resume", "budget", "submit", "expand", "rejudge"):
            self.wanted.set()
        if verb in ("pause", "resume"):
            return await self._pause(verb == "pause"), None
        if verb == "stop":
            run.stop()
            return "no new candidates; what is in flight is finished", None
        if verb in ("quit", "yield_owner"):
            self.quit_requested = verb
            run.stop("now: " + verb)
            return "the session is let go of; resume it any time", None
        if verb == "status":
            return run.phase, {"phase": run.phase, "last_fault": run.services.last_fault}
        if verb == "budget":
            return await self._budget(command), None
        if verb == "export":
            path = Path(str((command.value or {}).get("path") or run.session.path / f"{run.session.name}.cast"))
            count = await run.export(path)
            return f"{count} champions in {path}", {"path": str(path)}
        if verb == "submit":
            return self._submit(command), None
        return await self._node_verb(command), None

    async def _pause(self, pause: bool) -> str:
        run = self._run
        if pause:
            run.services.going.clear()
            await run.store.add_run_event("paused")
            return "paused; what is in flight is finished"
        run.services.faults = 0
        run.services.going.set()
        await run.store.add_run_event("unpaused")
        return "going on"

    async def _budget(self, command: Command) -> str:
        value, run = command.value or {}, self._run
        attempts, dollars = value.get("attempts"), value.get("dollars")
        if isinstance(attempts, int) and attempts >= 0 and command.subject:
            cs = self._card(command.subject)
            cs.budget, cs.done = attempts, ""
            await run.store.add_note("budget", cs.card.card_id, {"attempts": attempts})
            return f"{cs.card.title}: {attempts} candidates"
        if isinstance(dollars, (int, float)) and dollars >= 0:
            caps = run.services.llm.budget.caps
            run.services.llm.budget.caps = type(caps)(float(dollars), caps.tokens, caps.calls)
            run.services.llm_stopped = ""
            await run.store.add_note("budget", "", {"dollars": float(dollars)})
            return f"${dollars:.2f} for model calls"
        raise UserInputError('a budget is {"attempts": n} for a card or {"dollars": x} for the run')

    def _submit(self, command: Command) -> str:
        value = command.value or {}
        cs = self._card(str(value.get("card_id") or command.subject))
        draft = draft_of(value, "cpp" if self._run.options.device == "cpu" else "cuda")
        parent = str(value.get("parent") or "")
        if parent and parent not in cs.nodes:
            raise UserInputError(f"{parent} is not a candidate of {cs.card.title}")
        parents = (Parent(parent),) if parent else ()
        proposer = "editor" if parent else "own kernel"
        self._run.loop.submit(cs, draft, proposer, parents)
        return f"queued for {cs.card.title}"

    async def _node_verb(self, command: Command) -> str:
        cs, node = self._node(command.subject)
        name, store, verb = node.candidate.candidate_id, self._run.store, command.verb
        if verb in ("prune", "unprune"):
            node.pruned = verb == "prune"
        elif verb in ("pin", "unpin"):
            node.pinned = verb == "pin"
        elif verb == "expand":
            if node.best is None and not node.failed:
                raise UserInputError(f"{name} has no verdict yet; wait for it, then expand")
            self._run.loop.want(cs, node, "expand")
            return "next in line"
        elif verb == "rejudge":
            node.confirmation = None
            cs.tried_to_confirm.discard(name)
            self._run.loop.want(cs, node, "judge")
            return "next in line"
        await store.add_note(verb, name)
        return ""

    def _card(self, card_id: str) -> CardSearch:
        cards = self._run.services.cards
        matches = [cs for key, cs in cards.items() if key.startswith(card_id)] if card_id else []
        if len(matches) != 1:
            raise UserInputError(
                f"{card_id or 'nothing'} names {len(matches)} open cards; give one card id (see forge-tui show)"
            )
        return matches[0]

    def _node(self, name: str) -> tuple[CardSearch, Node]:
        for cs in self._run.services.cards.values():
            if name in cs.nodes:
                return cs, cs.nodes[name]
        raise UserInputError(f"there is no candidate {name or '(none given)'} in this session")
