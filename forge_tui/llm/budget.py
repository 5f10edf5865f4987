"""Hard caps on what a search may spend, in dollars, tokens and calls. Calls in flight count at their worst case."""

from __future__ import annotations

from dataclasses import dataclass, field

from forge_tui.records.llm import LlmReply, LlmRequest


@dataclass(frozen=True)
class Caps:
    """None means no cap."""

    dollars: float | None = None
    tokens: int | None = None
    calls: int | None = None


@dataclass
class Budget:
    """Running account. `price` is (input, output) dollars per token, or None when unknown.

    A call whose price is unknown is counted apart; it never adds zero to the dollars.
    """

    caps: Caps
    price: tuple[float, float] | None = None
    dollars: float = 0.0
    tokens: int = 0
    calls: int = 0
    unpriced: int = 0
    _held: dict[str, tuple[float, int]] = field(default_factory=dict)

    def refusal(self, request: LlmRequest) -> str:
        """Why a call may not be made, or "" when it may. Input tokens are bounded by the characters sent."""
        dollars, tokens = self._worst(request)
        if self.caps.calls is not None and self.calls + len(self._held) >= self.caps.calls:
            return f"the budget of {self.caps.calls} calls is used up"
        if (
            self.caps.tokens is not None
            and self.tokens + sum(h[1] for h in self._held.values()) + tokens > self.caps.tokens
        ):
            return f"the next call could pass the budget of {self.caps.tokens:,} tokens ({self.tokens:,} used)"
        if self.caps.dollars is not None:
            if self.price is None:
                return f"the price of {request.model} is unknown, so a dollar budget can't hold: give llm.price_in and llm.price_out, or cap tokens instead"
            if self.dollars + sum(h[0] for h in self._held.values()) + dollars > self.caps.dollars:
                return f"the next call could pass the budget of ${self.caps.dollars:.2f} (${self.dollars:.4f} spent)"
        return ""

    def hold(self, request: LlmRequest) -> None:
        """Reserve a call's worst case until it is settled."""
        self._held[request.call_id] = self._worst(request)

    def settle(self, reply: LlmReply) -> None:
        """Book what a call really cost. A lost or failed call that reported no usage keeps its worst case on the account."""
        dollars, tokens = self._held.pop(reply.call_id, (0.0, 0))
        self.calls += 1
        if reply.prompt_tokens is not None and reply.completion_tokens is not None:
            tokens = reply.prompt_tokens + reply.completion_tokens
        elif reply.state == "failed":
            tokens, dollars = 0, 0.0  # refused or broken before any output: providers don't bill these
        self.tokens += tokens
        if reply.cost_usd is not None:
            self.dollars += reply.cost_usd
        elif self.price is None:
            self.unpriced += reply.state != "failed"
        elif reply.state != "failed":
            self.dollars += dollars

    def _worst(self, request: LlmRequest) -> tuple[float, int]:
        sent = sum(len(m.get("content", "")) for m in request.messages) + 16 * len(request.messages)
        dollars = 0.0 if self.price is None else sent * self.price[0] + request.max_tokens * self.price[1]
        return dollars, sent + request.max_tokens
