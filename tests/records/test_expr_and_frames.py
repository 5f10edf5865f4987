"""Parsers of hostile text: every input ends in a value or one clear error, in bounded time."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tui.records.expr import INT64, ExprError, evaluate, parse, value_of
from forge_tui.records.frames import FrameError, decode, encode, read_fd, read_length

atoms = st.integers(0, 1000).map(str) | st.sampled_from(["n", "m"])
expressions = st.recursive(
    atoms,
    lambda c: (
        st.tuples(c, st.sampled_from("+-*/"), c).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
        | st.tuples(st.sampled_from(["min", "max", "ceildiv"]), c, c).map(lambda t: f"{t[0]}({t[1]}, {t[2]})")
    ),
    max_leaves=8,
)


@given(expressions)
def test_expressions_mean_what_python_integers_mean(text: str) -> None:
    scope = {"n": 7, "m": 3, "min": min, "max": max, "ceildiv": lambda a, b: -(-a // b)}
    if len(text) > 512:
        return
    try:
        wanted = eval(text.replace("/", "//"), {"__builtins__": {}}, scope)  # noqa: S307 - the oracle, on generated text
    except ZeroDivisionError:
        wanted = None
    try:
        got = value_of(text, {"n": 7, "m": 3})
    except ExprError:
        got = None
    assert got == wanted or abs(wanted or 0) > INT64


@given(st.text(max_size=200))
def test_any_text_is_an_expression_or_an_error(text: str) -> None:
    with contextlib.suppress(ExprError):
        evaluate(parse(text), {})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1+",
        "(1",
        "min(1)",
        "__import__('os')",
        "1**2",
        "x.y",
        "9" * 30,
        "(" * 100 + "1" + ")" * 100,
        "1/0",
        "a" * 600,
    ],
)
def test_malformed_expressions_are_refused(text: str) -> None:
    with pytest.raises(ExprError):
        value_of(text, {})


@given(st.binary(max_size=300))
def test_any_bytes_are_a_frame_body_or_an_error(body: bytes) -> None:
    with contextlib.suppress(FrameError):
        decode(body)


def test_frames_refuse_size_depth_and_half_messages() -> None:
    with pytest.raises(FrameError, match="over the limit"):
        read_length(b"\xff\xff\xff\x7f", 100)
    with pytest.raises(FrameError, match="too deep"):
        decode(b"[" * 100 + b"]" * 100)
    with pytest.raises(FrameError, match="not JSON"):
        decode(b"NaN")
    with pytest.raises(FrameError, match="over the limit"):
        encode("x" * 100, limit=10)
    reader, writer = os.pipe()
    os.write(writer, encode({"a": 1})[:-1])
    os.close(writer)
    with pytest.raises(FrameError, match="middle of a frame"):
        read_fd(reader)
    os.close(reader)


def test_a_closed_peer_is_an_end_not_an_error() -> None:
    reader, writer = os.pipe()
    os.write(writer, encode([1, 2]))
    os.close(writer)
    assert read_fd(reader) == [1, 2]
    with pytest.raises(EOFError):
        read_fd(reader)
    os.close(reader)
