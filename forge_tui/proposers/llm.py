"""The LLM proposer: from a node to a request, from a reply to a draft."""

from __future__ import annotations

from dataclasses import replace

from forge_tui.llm.compose import Context, compose
from forge_tui.llm.reply import parse_reply
from forge_tui.records.candidate import Draft
from forge_tui.records.llm import LlmReply, LlmRequest
from forge_tui.records.problem import Problem


def request_for(
    call_id: str,
    context: Context,
    model: str,
    api_base: str,
    temperature: float | None,
    max_tokens: int,
    timeout_s: float,
) -> LlmRequest:
    """The call that this node needs: a first draft, a repair or an optimisation step."""
    purpose, messages, version = compose(context)
    node = context.node.candidate_id if context.node else ""
    return LlmRequest(
        call_id,
        context.card.card_id,
        purpose,
        model,
        messages,
        version,
        temperature,
        max_tokens,
        api_base,
        timeout_s,
        node,
    )


def draft_from(reply: LlmReply, request: LlmRequest, language: str) -> Draft | Problem:
    """The draft in a reply, or a candidate problem of kind "bad reply" that names the outcome."""
    if reply.state != "replied":
        return Problem("machine", "llm call " + reply.state, reply.line or "no reply")
    parsed = parse_reply(reply, language)
    if parsed.draft is None:
        return Problem("candidate", "bad reply", f"{parsed.outcome}: {parsed.line}")
    return replace(parsed.draft, detail={"call": reply.call_id, "model": request.model, "purpose": request.purpose})
