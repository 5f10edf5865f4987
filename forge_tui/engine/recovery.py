"""What a killed run left behind: every attempt is finished, marked lost, or taken up again exactly once.

A reply that is on disk is never requested again; a call in flight counts as lost and is made once more;
a candidate without a counting verdict goes back to the compiler.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from forge_tui.engine.history import History
from forge_tui.llm.spool import spooled
from forge_tui.records.llm import LlmReply, LlmRequest
from forge_tui.store.session import Session
from forge_tui.store.store import Store

MAX_RESENT = 1


@dataclass(frozen=True)
class Recovered:
    """answered: stored replies whose candidate was never made, with the attempt that is still open.

    again: lost requests to be sent once more, under the attempt that is still open.
    """

    answered: tuple[tuple[LlmRequest, LlmReply], ...]
    again: tuple[LlmRequest, ...]
    lost_attempts: int
    lost_calls: int
    imported: int

    @property
    def line(self) -> str:
        """One line for a person; empty when there was nothing to do."""
        parts = []
        if self.lost_attempts:
            parts.append(f"{self.lost_attempts} interrupted steps are done again")
        if self.imported or self.answered:
            parts.append(f"{max(self.imported, len(self.answered))} stored replies are used")
        if self.lost_calls:
            parts.append(f"{self.lost_calls} calls were lost in flight, {len(self.again)} are sent once more")
        return "; ".join(parts)


def recover(session: Session, store: Store) -> Recovered:
    """Close what a dead owner left open. Blocking; call it before anything else writes."""
    history = History(session.database)
    try:
        calls = history.calls()
        open_attempts = history.open_attempts()
        made_from = {(c.detail or {}).get("call"): c.candidate_id for c in history.candidates()}
    finally:
        history.close()
    on_disk = spooled(session.spool)
    imported = lost_calls = 0
    newest: dict[str, tuple[LlmRequest, LlmReply]] = {}
    for request, stored in calls:
        reply = stored
        if reply is None:
            reply = on_disk.get(request.call_id) or LlmReply(
                request.call_id, "lost", line="the run was stopped while this call was in flight"
            )
            imported += reply.state != "lost"
            lost_calls += reply.state == "lost"
            store.add_llm_reply(reply).result()
        newest[request.attempt] = (request, reply)
    answered: list[tuple[LlmRequest, LlmReply]] = []
    again: list[LlmRequest] = []
    lost_attempts = 0
    for attempt in open_attempts:
        request_and_reply = newest.get(attempt.attempt_id) if attempt.step == "propose" else None
        state = "lost"
        if request_and_reply is not None:
            request, reply = request_and_reply
            if request.call_id in made_from:
                state = "done"
            elif reply.state == "replied":
                answered.append((request, reply))
                continue
            elif reply.state == "lost" and request.resent < MAX_RESENT:
                again.append(replace(request, resent=request.resent + 1))
                continue
        lost_attempts += state == "lost"
        store.add_attempt(
            attempt.attempt_id, attempt.candidate_id, attempt.step, state, card_id=attempt.card_id
        ).result()
    return Recovered(tuple(answered), tuple(again), lost_attempts, lost_calls, imported)
