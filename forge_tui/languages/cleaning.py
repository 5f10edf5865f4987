"""Reading C++ like a preprocessor, as far as an audit needs: splices, comments, literals, directives, words.

Invariants: never raises on any text, and takes time linear in it; what is inside a comment or a literal is never taken
for code, and code never hides behind one (raw strings, line splices, digit separators, comments that carry a directive
over a line end, digraphs and unterminated literals are understood).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_DIRECTIVE = re.compile(r"^[ \t\f\v]*(?:#|%:)[ \t\f\v]*(?P<name>\w*)(?P<rest>[^\n]*)", re.MULTILINE)
_WORD = re.compile(r"[^\W\d]\w*")
_SPLICE = re.compile(r"\\[ \t\f\v]*\n")
_RAW_START = re.compile(r'"([^()\\\s"]{0,16})\(')
_RAW_PREFIXES = frozenset({"R", "u8R", "uR", "UR", "LR"})
_LITERAL_PREFIXES = frozenset({"u8", "u", "U", "L"})


@dataclass(frozen=True)
class Directive:
    """One preprocessor line: `name` without the hash ("" for a bare one), the rest of it, its 1-based line in the source."""

    name: str
    rest: str
    line: int


@dataclass(frozen=True)
class Cleaned:
    """code: comments are single blanks, literals are empty ("" and ''), spliced lines are one line.

    with_literals: the same with literals kept (a raw string that holds a line end is emptied).
    lines: for each line of `code`, the line of the source in which it starts.
    long_raw: lines of the source where a raw string that holds a line end starts.
    """

    code: str
    with_literals: str
    lines: tuple[int, ...]
    long_raw: tuple[int, ...] = ()

    def line_at(self, offset: int) -> int:
        """Line in the source of an offset in `code`."""
        return self.lines[min(self.code.count("\n", 0, offset), len(self.lines) - 1)]

    def directives(self) -> list[Directive]:
        """All preprocessor lines; literals in them are kept."""
        found = []
        index = at = 0
        for match in _DIRECTIVE.finditer(self.with_literals):
            index += self.with_literals.count("\n", at, match.start())
            at = match.start()
            found.append(Directive(match["name"], match["rest"].strip(), self.lines[min(index, len(self.lines) - 1)]))
        return found


def clean(source: str) -> Cleaned:
    """Strip comments and literals of one source file."""
    return _Scanner(source.replace("\r\n", "\n").replace("\r", "\n").replace("\0", " ")).run()


def words(code: str) -> list[tuple[str, int]]:
    """Identifiers of cleaned code with their offsets."""
    return [(m[0], m.start()) for m in _WORD.finditer(code)]


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.code: list[str] = []
        self.kept: list[str] = []
        self.lines = [1]
        self.long_raw: list[int] = []

    def run(self) -> Cleaned:
        while (c := self._peek()) != "":
            if c == "/":
                self._slash()
            elif c == '"':
                self._literal("", '"')
            elif c == "'":
                self._literal("", "'")
            elif c.isalpha() or c == "_":
                self._word()
            elif c.isdigit():
                self._number()
            elif c == "\n":
                self.at += 1
                self.line += 1
                self._emit("\n", "\n")
                self.lines.append(self.line)
            else:
                self.at += 1
                self._emit(c, c)
        return Cleaned("".join(self.code), "".join(self.kept), tuple(self.lines), tuple(self.long_raw))

    def _emit(self, code: str, kept: str) -> None:
        self.code.append(code)
        self.kept.append(kept)

    def _peek(self) -> str:
        """The next character after any splices, or "" at the end."""
        while self.at < len(self.text) and self.text[self.at] == "\\":
            splice = _SPLICE.match(self.text, self.at)
            if splice is None:
                break
            self.at = splice.end()
            self.line += 1
        return self.text[self.at : self.at + 1]

    def _take(self) -> str:
        c = self._peek()
        self.at += len(c)
        if c == "\n":
            self.line += 1
        return c

    def _slash(self) -> None:
        self.at += 1
        following = self._peek()
        if following == "/":
            while self._peek() not in ("", "\n"):
                self.at += 1
            self._emit(" ", " ")
        elif following == "*":
            self.at += 1
            last = ""
            while (c := self._take()) != "" and not (last == "*" and c == "/"):
                last = c
            self._emit(" ", " ")
        else:
            self._emit("/", "/")

    def _word(self) -> None:
        taken: list[str] = []
        while (c := self._peek()) != "" and (c.isalnum() or c == "_"):
            taken.append(self._take())
        word = "".join(taken)
        if self._peek() == '"' and word in _RAW_PREFIXES:
            self._raw_string(word)
        elif self._peek() in ('"', "'") and word in _LITERAL_PREFIXES:
            self._literal(word, self._peek())
        else:
            self._emit(word, word)

    def _number(self) -> None:
        """A preprocessing number: it may hold quotes as digit separators and signs after an exponent letter."""
        taken: list[str] = []
        while True:
            c = self._peek()
            if (
                (c != "" and (c.isalnum() or c in "_."))
                or (c in ("+", "-") and taken[-1] in "eEpP")
                or (c == "'" and self.text[self.at + 1 : self.at + 2].isalnum())
            ):
                taken.append(self._take())
            else:
                break
        number = "".join(taken)
        self._emit(number, number)

    def _literal(self, prefix: str, quote: str) -> None:
        """A string or character literal; an unterminated one ends with its line."""
        taken = [self._take()]
        while (c := self._peek()) not in ("", "\n"):
            taken.append(self._take())
            if c == "\\" and self._peek() not in ("", "\n"):
                taken.append(self._take())
            elif c == quote:
                break
        self._emit(quote * 2, prefix + "".join(taken))

    def _raw_string(self, prefix: str) -> None:
        """Inside a raw string nothing is spliced or escaped: it ends at its own delimiter only."""
        start = _RAW_START.match(self.text, self.at)
        if start is None:
            self._emit(prefix, prefix)
            self._literal("", '"')
            return
        end_mark = f'){start[1]}"'
        end = self.text.find(end_mark, start.end())
        stop = len(self.text) if end < 0 else end + len(end_mark)
        content = self.text[self.at : stop]
        if "\n" in content:
            self.long_raw.append(self.line)
        self.line += content.count("\n")
        self.at = stop
        self._emit('""', '""' if "\n" in content else prefix + content)
