"""From a model's text to a draft: six named outcomes, never an exception.

A reply is one source block and one JSON block {"plan", "technique", "target", "expected_gain"}.
The text is data: nothing in it decides anything but what is compiled in the sandbox.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from forge_tui.records.candidate import Draft
from forge_tui.records.codec import RecordError, from_json
from forge_tui.records.llm import LlmReply
from forge_tui.records.plan import Plan, host_plan

MAX_SOURCE = 200_000
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([A-Za-z0-9_+\-.]*)[^\n`]*$", re.MULTILINE)
_SOURCE_TAGS = {
    "cpp": ("cpp", "c++", "cxx", "cc", "c"),
    "cuda": ("cuda", "cu", "cpp", "c++"),
    "triton": ("triton", "python", "py"),
}
_REFUSAL = re.compile(
    r"\b(I can(?:no|')t|I am unable|I'm unable|I won't|cannot (?:help|assist|comply))\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Parsed:
    """outcome: one of records.llm.REPLY_OUTCOMES; draft only when it is "ok"; line says what was missing."""

    outcome: str
    draft: Draft | None
    line: str


@dataclass(frozen=True)
class Block:
    """One fenced block; closed False when the text ended inside it."""

    tag: str
    body: str
    closed: bool


def blocks_of(text: str) -> list[Block]:
    """Fenced blocks in order. A fence is closed by one of the same kind that is at least as long."""
    found: list[Block] = []
    opening: re.Match[str] | None = None
    for match in _FENCE.finditer(text):
        if opening is None:
            opening = match
            continue
        mark, wanted = match.group(1), opening.group(1)
        if mark[0] == wanted[0] and len(mark) >= len(wanted) and not match.group(2):
            found.append(Block(opening.group(2).lower(), text[opening.end() + 1 : match.start()], True))
            opening = None
    if opening is not None:
        found.append(Block(opening.group(2).lower(), text[opening.end() + 1 :], False))
    return found


def parse_reply(reply: LlmReply, language: str) -> Parsed:
    """Read a reply for a candidate in `language` ("cpp", "cuda", "triton")."""
    text = reply.text
    if not text.strip():
        spent = " (every token went into thinking)" if reply.finish_reason == "length" else ""
        return Parsed("empty", None, "the reply has no text" + spent)
    blocks = blocks_of(text)
    if any(not block.closed for block in blocks) or (reply.finish_reason == "length" and not _whole(blocks, language)):
        return Parsed("cut off", None, "the reply ends in the middle; allow more tokens (llm.max_tokens)")
    sources = [b for b in blocks if b.tag in _SOURCE_TAGS.get(language, (language,))]
    data = [b for b in blocks if b.tag == "json"]
    if not sources:
        if not blocks and _REFUSAL.search(text[:600]):
            return Parsed("refusal", None, "the model refused: " + " ".join(text.split())[:160])
        return Parsed("prose only", None, f"the reply has no {language} block")
    if not data:
        return Parsed("no plan", None, "the reply has a source block but no JSON block with the launch plan")
    if len(sources) > 1:
        return Parsed("no plan", None, f"the reply has {len(sources)} source blocks; exactly one is wanted")
    return _draft(sources[0].body, data[-1].body, language)


def _whole(blocks: list[Block], language: str) -> bool:
    tags = {b.tag for b in blocks if b.closed}
    return "json" in tags and bool(tags & set(_SOURCE_TAGS.get(language, ())))


def _draft(source: str, text: str, language: str) -> Parsed:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Parsed("no plan", None, f"the JSON block can't be read: {error}")
    if not isinstance(data, dict):
        return Parsed("no plan", None, "the JSON block is not an object")
    if len(source) > MAX_SOURCE:
        return Parsed("no plan", None, f"the source is longer than {MAX_SOURCE} characters")
    plan = data.get("plan")
    if plan is None and language == "cpp":
        built = host_plan()
    else:
        try:
            built = from_json(Plan, plan)
        except (RecordError, ValueError) as error:
            return Parsed("no plan", None, f"the plan is not valid: {error}")
    draft = Draft(
        language,
        source,
        built,
        _word(data.get("technique")),
        _word(data.get("target")),
        _gain(data.get("expected_gain")),
    )
    return Parsed("ok", draft, "")


def _word(value: Any) -> str:
    return "".join(c for c in value if c.isprintable())[:200] if isinstance(value, str) else ""


def _gain(value: Any) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e6:
        return float(value)
    return None
