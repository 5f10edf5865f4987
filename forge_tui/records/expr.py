"""Size expressions of a launch plan: integers, symbols, + - * /, min, max, ceildiv.

`/` is floor division. Parsed by hand and bounded in length and depth; evaluated
with 64-bit limits; never handed to Python's eval.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_LENGTH = 512
MAX_DEPTH = 32
INT64 = (1 << 63) - 1
_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][A-Za-z0-9_]*)|(.))", re.ASCII)
_FUNCTIONS = {"min": 2, "max": 2, "ceildiv": 2}


class ExprError(ValueError):
    """The expression is malformed, names an unknown symbol, or leaves 64 bits."""


# A parsed expression: an int, a symbol name, or (operator, left, right).
Node = int | str | tuple[str, "Node", "Node"]  # type: ignore[misc]


def parse(text: str) -> Node:
    """Parse an expression. Raises ExprError."""
    if len(text) > MAX_LENGTH:
        raise ExprError(f"expression longer than {MAX_LENGTH} characters")
    tokens = []
    for number, name, other in _TOKEN.findall(text.rstrip()):
        tokens.append(number or name or other)
    parser = _Parser(tokens)
    node = parser.sum(0)
    if parser.peek():
        raise ExprError(f"unexpected {parser.peek()!r} in {text!r}")
    return node


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise ExprError(f"expected {wanted or 'a value'!r}, got {token or 'the end'!r}")
        self.at += 1
        return token

    def sum(self, depth: int) -> Node:
        node = self.product(depth)
        while self.peek() in ("+", "-"):
            node = (self.take(), node, self.product(depth))
        return node

    def product(self, depth: int) -> Node:
        node = self.atom(depth)
        while self.peek() in ("*", "/"):
            node = (self.take(), node, self.atom(depth))
        return node

    def atom(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise ExprError("expression nested too deep")
        token = self.take()
        if token == "(":
            node = self.sum(depth + 1)
            self.take(")")
            return node
        if token in _FUNCTIONS:
            self.take("(")
            left = self.sum(depth + 1)
            self.take(",")
            right = self.sum(depth + 1)
            self.take(")")
            return (token, left, right)
        if not token.isascii():  # '²'.isdigit() is true, and int() refuses it
            raise ExprError(f"unexpected {token!r}")
        if token.isdigit():
            value = int(token)
            if value > INT64:
                raise ExprError(f"{token} does not fit 64 bits")
            return value
        if token[0].isalpha() or token[0] == "_":
            return token
        raise ExprError(f"unexpected {token!r}")


def evaluate(node: Node, symbols: Mapping[str, int]) -> int:
    """Value of a parsed expression. Raises ExprError on unknown symbols, division by zero, overflow."""
    if isinstance(node, int):
        return node
    if isinstance(node, str):
        if node not in symbols:
            raise ExprError(f"unknown symbol {node!r}")
        return symbols[node]
    operator, left_node, right_node = node
    left, right = evaluate(left_node, symbols), evaluate(right_node, symbols)
    if operator in ("/", "ceildiv") and right == 0:
        raise ExprError("division by zero")
    value = {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "/": lambda: left // right,
        "ceildiv": lambda: -(-left // right),
        "min": lambda: min(left, right),
        "max": lambda: max(left, right),
    }[operator]()
    if abs(value) > INT64:
        raise ExprError("expression leaves 64 bits")
    return value


def value_of(text: str, symbols: Mapping[str, int]) -> int:
    """Parse and evaluate in one step. Raises ExprError."""
    return evaluate(parse(text), symbols)


def symbols_in(node: Node) -> frozenset[str]:
    """Names an expression depends on."""
    if isinstance(node, str):
        return frozenset({node})
    if isinstance(node, tuple):
        return symbols_in(node[1]) | symbols_in(node[2])
    return frozenset()
