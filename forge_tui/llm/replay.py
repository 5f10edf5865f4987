"""Answer from a record instead of a model: the same request gets the same reply, with no network and no key."""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import replace

from forge_tui.records.codec import dumps
from forge_tui.records.llm import LlmReply, LlmRequest


def request_key(request: LlmRequest) -> str:
    """Identity of what was asked: model, messages and settings; not who asked or when."""
    plain = replace(request, call_id="", card_id="", node="", timeout_s=0.0, api_base="", attempt="", resent=0)
    return hashlib.sha256(dumps(plain).encode()).hexdigest()


class Replay:
    """Recorded (request, reply) pairs; repeated requests get their replies in recorded order."""

    def __init__(self, record: Iterable[tuple[LlmRequest, LlmReply]]) -> None:
        self._replies: dict[str, deque[LlmReply]] = defaultdict(deque)
        for request, reply in record:
            self._replies[request_key(request)].append(reply)

    async def complete(self, request: LlmRequest) -> LlmReply:
        """The recorded reply under the new call id; a failed reply when the record holds none."""
        waiting = self._replies.get(request_key(request))
        if not waiting:
            return LlmReply(request.call_id, "failed", line="the record holds no reply to this request")
        return replace(waiting.popleft(), call_id=request.call_id)
