"""Calls to a language model: request, reply, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# How a reply reads to the parser. Only "ok" holds a candidate.
REPLY_OUTCOMES = ("ok", "empty", "cut off", "no plan", "prose only", "refusal")


@dataclass(frozen=True)
class LlmRequest:
    """One call. messages: [{"role", "content"}]. prompt_version: version of the prompt file that composed it.

    attempt: the propose attempt this call belongs to; resent: how often it was sent before and lost.
    """

    call_id: str
    card_id: str
    purpose: str
    model: str
    messages: tuple[dict[str, str], ...]
    prompt_version: str
    temperature: float | None = None
    max_tokens: int = 8192
    api_base: str = ""
    timeout_s: float = 300.0
    node: str = ""
    extra: dict[str, Any] | None = None
    attempt: str = ""
    resent: int = 0


@dataclass(frozen=True)
class LlmReply:
    """How a call ended. state: "replied", "failed" (line says why), "lost" (killed in flight; counted, retried once).

    cost_usd None: price unknown (kept apart from zero). tokens None: not reported.
    """

    call_id: str
    state: str
    text: str = ""
    finish_reason: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None
    seconds: float = 0.0
    line: str = ""
    retryable: bool = False
