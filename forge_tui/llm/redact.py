"""Secrets never leave the LLM process: every text on its way out goes through here."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAMES = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)", re.IGNORECASE)
# Shapes of keys that providers quote back in error texts (whole or starred in the middle).
_SHAPES = re.compile(r"\b(sk|pk|rk|xai|gsk|AIza|hf|glpat|ghp)[-_]?[A-Za-z0-9_\-*]{8,}|Bearer\s+\S{8,}")


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Values of variables whose names say they are secret; short ones are left out (they would blank out plain words)."""
    return tuple(sorted({v for k, v in environment.items() if _NAMES.search(k) and len(v) >= 8}, key=len, reverse=True))


def redact(text: str, secrets: tuple[str, ...]) -> str:
    """`text` with every known secret and everything shaped like a key replaced."""
    for secret in secrets:
        text = text.replace(secret, "[secret]")
    return _SHAPES.sub("[secret]", text)
