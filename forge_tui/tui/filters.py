"""The one filter language of every list: words, `!` to exclude, and `field>value`.

"gelu !rejected speedup>1.2" keeps rows that hold "gelu", don't hold "rejected" and are more than 1.2x.
A field that a row doesn't know never matches a comparison: unknown is not 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Value = str | float | int | bool | None
_TERM = re.compile(r"^([a-z_]+)(>=|<=|!=|>|<|=)(.+)$")


@dataclass(frozen=True)
class Filter:
    """A parsed filter. problem: what is wrong with it in one line, "" when nothing is."""

    terms: tuple[Callable[[str, Mapping[str, Value]], bool], ...]
    problem: str = ""

    def matches(self, text: str, fields: Mapping[str, Value]) -> bool:
        """text: what a plain word is looked up in. fields: what comparisons see."""
        lowered = text.lower()
        return all(term(lowered, fields) for term in self.terms)


def parse_filter(query: str, fields: tuple[str, ...]) -> Filter:
    """Parse a filter. fields: the names a comparison may use."""
    terms: list[Callable[[str, Mapping[str, Value]], bool]] = []
    problem = ""
    for word in query.lower().split():
        negated = word.startswith("!") and len(word) > 1
        body = word[1:] if negated else word
        match = _TERM.match(body)
        if match and match[1] not in fields:
            problem = f"no field {match[1]}; there are {', '.join(fields)}"
            continue
        term = _comparison(match[1], match[2], match[3]) if match else _word(body)
        terms.append(_not(term) if negated else term)
    return Filter(tuple(terms), problem)


def _word(word: str) -> Callable[[str, Mapping[str, Value]], bool]:
    return lambda text, fields: word in text


def _not(term: Callable[[str, Mapping[str, Value]], bool]) -> Callable[[str, Mapping[str, Value]], bool]:
    return lambda text, fields: not term(text, fields)


def _comparison(field: str, sign: str, raw: str) -> Callable[[str, Mapping[str, Value]], bool]:
    try:
        number: float | None = float(raw.removesuffix("x").removesuffix("%"))
    except ValueError:
        number = None

    def compare(text: str, fields: Mapping[str, Value]) -> bool:
        value = fields.get(field)
        if value is None:
            return False
        if isinstance(value, str) or number is None:
            same = raw in str(value).lower() if sign == "=" else str(value).lower() == raw
            return same if sign == "=" else (not same if sign == "!=" else False)
        return {
            "=": value == number, "!=": value != number, ">": value > number,
            "<": value < number, ">=": value >= number, "<=": value <= number,
        }[sign]  # fmt: skip

    return compare
