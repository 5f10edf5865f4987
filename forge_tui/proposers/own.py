"""A person's own kernel: the editor, a submit command, a file on the command line."""

from __future__ import annotations

from typing import Any

from forge_tui.records.candidate import Draft
from forge_tui.records.codec import RecordError, from_json
from forge_tui.records.plan import Plan, host_plan
from forge_tui.records.problem import UserInputError

MAX_SOURCE = 1_000_000


def draft_of(value: dict[str, Any], default_language: str) -> Draft:
    """A draft from {"source", "language", "plan", "technique"}. Raises UserInputError with what is missing."""
    source = value.get("source")
    language = str(value.get("language") or default_language)
    if not isinstance(source, str) or not source.strip():
        raise UserInputError('a submitted kernel needs "source", the text of the kernel')
    if source != source.encode("utf-8", "replace").decode("utf-8"):
        raise UserInputError("the source holds characters that no file can hold (lone surrogates)")
    if len(source) > MAX_SOURCE:
        raise UserInputError(f"the source is longer than {MAX_SOURCE:,} characters")
    plan = value.get("plan")
    if plan is None and language != "cpp":
        raise UserInputError(
            f"a {language} kernel needs a launch plan beside its source (see the README, Launch plans)"
        )
    try:
        built = host_plan() if plan is None else from_json(Plan, plan)
    except (RecordError, ValueError) as error:
        raise UserInputError(f"the launch plan is not valid: {error}") from None
    return Draft(language, source, built, str(value.get("technique") or "by hand")[:200], detail={"by": "hand"})
