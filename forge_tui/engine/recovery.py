"""What a killed run left behind: every attempt is finished, marked lost, or taken up again exactly once.

A reply that is on disk is never requested again; a call in flight counts as lost and is made once more;
a candidate without a counting verdict goes back to the compiler.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from forge_tui.llm.spool import spooled
from forge_tui.records.llm import LlmReply, LlmRequest
from forge_tui.store.session import Session
from forge_tui.store.store import Store

MAX_RESENT = 1


@dataclass(frozen=True)
class Recovered:
    """answered: requests whose reply is stored and whose candidate was never made. again: lost requests to be sent once more."""

    answered: tuple[tuple[LlmRequest, LlmReply], ...]
    again: tuple[LlmRequest, ...]
    lost_attempts: int
    imported: int


def recover(session: Session, store: Store) -> Recovered:
    """Close what a dead owner left open. Blocking; call it before anything else writes."""
    left = store.unfinished()
    on_disk = spooled(session.spool)
    answered: list[tuple[LlmRequest, LlmReply]] = []
    again: list[LlmRequest] = []
    imported = 0
    open_proposals = {row.attempt_id: row for row in left.attempts if row.step == "propose"}
    for request in left.requests:
        reply = on_disk.get(request.call_id)
        if reply is None:
            reply = LlmReply(request.call_id, "lost", line="the run was stopped while this call was in flight")
        else:
            imported += 1
        store.add_llm_reply(reply).result()
    made_from = store.candidates_by_call()
    for call_id, row in open_proposals.items():
        pair = store.llm_pair(call_id)
        if pair is not None and pair[1] is not None and call_id not in made_from:
            request, reply = pair
            if reply.state == "replied":
                answered.append((request, reply))
                continue  # stays open: the engine finishes it from the stored reply
            resent = int((request.extra or {}).get("resent", 0))
            if reply.state == "lost" and resent < MAX_RESENT:
                again.append(replace(request, extra={**(request.extra or {}), "resent": resent + 1}))
        state = "done" if call_id in made_from else "lost"
        store.add_attempt(row.attempt_id, row.candidate_id, "propose", state, card_id=row.card_id).result()
    others = [row for row in left.attempts if row.step != "propose"]
    for row in others:
        store.add_attempt(row.attempt_id, row.candidate_id, row.step, "lost", card_id=row.card_id).result()
    return Recovered(tuple(answered), tuple(again), len(others), imported)
