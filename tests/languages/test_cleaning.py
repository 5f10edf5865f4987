"""Reading C++ as a preprocessor does, so that nothing hides behind a comment, a literal or a line end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.languages.cleaning import clean, words


def names(source: str) -> list[str]:
    return [word for word, _ in words(clean(source).code)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("int a; // asm b\nint c;", ["int", "a", "int", "c"]),
        ("int a; // asm \\\n asm still a comment\nc", ["int", "a", "c"]),
        ("/* asm */ a /* // */ b", ["a", "b"]),
        ('"asm /* " a " */ asm"', ["a"]),
        ("'\"' asm '\"'", ["asm"]),
        ('R"(")" asm R"(")"', ["asm"]),
        ('R"x( )" // )x" asm', ["asm"]),
        ('u8R"(a)" b LR"(c)" d', ["b", "d"]),
        ('bR"(a" asm ")"', ["bR", "asm"]),  # not a raw string: an identifier that ends in R
        ("1'000'000 asm 0x1p+3 b", ["asm", "b"]),
        ("a\\\nsm b", ["asm", "b"]),
        ("a\\  \nsm", ["asm"]),
        ('"unterminated\nasm', ["asm"]),
        ("/\\\n/ comment\nasm", ["asm"]),
        ("/\\\n* comment *\\\n/ asm", ["asm"]),
        ('R"(a\\\n)" asm', ["asm"]),
        ('R"( )\\\n" ) asm )" b', ["b"]),  # a splice inside a raw string is undone
    ],
)
def test_words_outside_comments_and_literals(source: str, expected: list[str]) -> None:
    found = [word for word in names(source) if word[0].isalpha() and not word.startswith("x1")]
    assert [w for w in found if w not in ("p", "x1p")] == expected


@pytest.mark.parametrize(
    "source",
    [
        '#include "/etc/passwd"',
        '%:include "/etc/passwd"',
        '  #  include "/etc/passwd"',
        '#/**/include/* x */"/etc/passwd"',
        '#inc\\\nlude "/etc/passwd"',
        '#include /* over a\nline end */ "/etc/passwd"',
        '/* a\n*/ #include "/etc/passwd"',
    ],
)
def test_a_directive_is_found_however_it_is_written(source: str) -> None:
    [directive] = clean(source).directives()
    assert directive.name == "include" and directive.rest.strip() == '"/etc/passwd"'


def test_a_directive_inside_a_comment_or_string_is_none() -> None:
    assert clean('// #include <a>\n/*\n#include <b>\n*/\nchar c[] = R"(\n#include <d>\n)";').directives() == []


def test_lines_are_those_of_the_source() -> None:
    source = "a \\\n b\n/* 1\n 2 */ c\nd"
    cleaned = clean(source)
    where = {word: cleaned.line_at(offset) for word, offset in words(cleaned.code)}
    assert where == {"a": 1, "b": 1, "c": 3, "d": 5}


def test_a_raw_string_over_lines_is_reported() -> None:
    assert clean('int a;\nauto s = R"(\n# 1 "x"\n)";').long_raw == (2,)


PIECES = st.sampled_from(
    ['"', "'", "\\", "\n", "/", "*", "//", "/*", "*/", 'R"(', ')"', 'R"x(', ')x"', "#", "%:", "asm", "a", "0x1'2", "e+", " ", "\r\n"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=60).map("".join)))
def test_any_text_is_cleaned_without_an_error_and_with_lines_in_range(source: str) -> None:
    cleaned = clean(source)
    assert len(cleaned.lines) == cleaned.code.count("\n") + 1
    total = source.replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1
    assert all(1 <= line <= total for line in cleaned.lines)
    assert list(cleaned.lines) == sorted(cleaned.lines)
    assert all(1 <= d.line <= total for d in cleaned.directives())


SAFE = st.text(alphabet="xyz ;=+(){}", max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(SAFE, st.sampled_from(["c", "b", "s", "r", "q"])), max_size=12))
def test_a_word_in_a_comment_or_literal_never_shows_and_one_outside_always_does(parts: list[tuple[str, str]]) -> None:
    wrap = {"c": "// asm\n", "b": "/* asm\n asm */", "s": '"asm \\" asm"', "r": 'R"q(asm " asm)q"', "q": "'asm\\''"}
    source = "".join(f"{plain} seen {wrap[kind]}" for plain, kind in parts)
    found = names(source)
    assert "asm" not in found
    assert found.count("seen") == len(parts)
