"""Text on the screen: nothing from outside can steer the terminal, nothing unknown looks like a number, diffs lose nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.tui import numbers
from forge_tui.tui.cells import clean, clean_lines, fit, fit_spans, pad, spans_width, width_of, wrap
from forge_tui.tui.diffs import diff_lines, mark_words, next_change
from forge_tui.tui.filters import parse_filter
from forge_tui.tui.glyphs import ASCII, UNICODE, bar, histogram
from forge_tui.tui.highlight import highlight

anything = st.text(alphabet=st.characters(codec=None), max_size=80)
lines = st.lists(st.text(alphabet="ab x(){}=+1\t", max_size=24), max_size=14)


@given(anything)
def test_no_control_byte_or_override_survives_cleaning(text: str) -> None:
    cleaned = clean(text)
    assert not any(
        ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0x202A <= ord(c) <= 0x202E or 0x2066 <= ord(c) <= 0x2069
        for c in cleaned
    )
    assert clean(cleaned) == cleaned


def test_an_escape_sequence_goes_as_a_whole() -> None:
    assert clean("a\x1b[31mred\x1b[0m b\x1b]0;title\x07c\x1b[2J") == "ared bc"
    assert clean_lines("one\r\ntwo\x07") == ["one", "two"]


@given(anything, st.integers(0, 40))
def test_cut_and_padded_text_has_the_width_it_was_given(text: str, width: int) -> None:
    text = clean(text)
    assert width_of(fit(text, width)) <= width
    assert width_of(pad(text, width)) == width
    assert spans_width(fit_spans([(text, "text"), (text, "dim")], width)) <= width


@given(st.text(alphabet="abc 漢字é", max_size=60), st.integers(2, 20))
def test_wrapping_keeps_every_letter_and_every_width(text: str, width: int) -> None:
    parts = wrap(text, width)
    assert all(width_of(part) <= width for part in parts)
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")


@settings(deadline=None)
@given(lines, lines)
def test_a_diff_holds_both_texts_in_order(old: list[str], new: list[str]) -> None:
    diff = diff_lines(old, new)
    assert [old[r.old] for r in diff.rows if r.old is not None] == old
    assert [new[r.new] for r in diff.rows if r.new is not None] == new
    assert all(old[r.old] == new[r.new] for r in diff.rows if not r.changed and r.old is not None and r.new is not None)
    unified = diff.unified()
    assert [old[n] for s, n, _ in unified if s == "-"] == [
        old[r.old] for r in diff.rows if r.changed and r.old is not None
    ]
    assert [new[n] for s, n, _ in unified if s in " +"] == new
    assert diff.added == sum(s == "+" for s, _, _ in unified) and diff.removed == sum(s == "-" for s, _, _ in unified)


@given(st.text(alphabet="ab1+ (", max_size=40), st.text(alphabet="ab1+ (", max_size=40))
def test_word_marks_lie_inside_and_leave_equal_text(old: str, new: str) -> None:
    left, right = mark_words(old, new)
    for text, marks in ((old, left), (new, right)):
        assert all(0 <= a < b <= len(text) for a, b in marks)
    if left or right:
        rest = [_without(old, left), _without(new, right)]
        assert rest[0] == rest[1]


def _without(text: str, marks: tuple[tuple[int, int], ...]) -> str:
    for a, b in reversed(marks):
        text = text[:a] + text[b:]
    return text


@given(st.lists(st.text(alphabet="ab漢", max_size=6), max_size=5), st.integers(1, 20))
def test_a_cut_line_says_so_wherever_it_is_cut(parts: list[str], width: int) -> None:
    spans = [(part, "text") for part in parts]
    fitted = fit_spans(spans, width)
    whole = spans_width(spans) <= width
    assert "".join(t for t, _ in fitted).endswith("…") != whole or (whole and fitted == spans)
    assert spans_width(fitted) <= width


def test_changes_are_found_by_block() -> None:
    flags = [False, True, True, False, True]
    assert next_change(flags, -1) == 1 and next_change(flags, 1) == 4 and next_change(flags, 4) is None
    assert next_change(flags, 4, -1) == 1


@settings(deadline=None, max_examples=40)
@given(
    st.text(alphabet='abc int"/*#\\\n\t{}', max_size=60), st.sampled_from(["cpp", "cuda", "triton", "json", "nobody"])
)
def test_colours_never_change_the_text(text: str, language: str) -> None:
    coloured = ["".join(t for t, _ in line) for line in highlight(text, language)]
    assert coloured == clean_lines(text)


def test_a_missing_number_reads_unknown() -> None:
    assert numbers.micros(None) == numbers.millis(None) == numbers.percent(None) == numbers.dollars(None) == "unknown"
    assert numbers.speedup(None, None, None, True) == "unknown"
    assert numbers.speedup(0.0, 1.0, 1.0, True) == "unknown"
    assert numbers.factor(float("nan")) == numbers.UNKNOWN


def test_a_speedup_never_stands_without_its_doubt() -> None:
    assert numbers.speedup(17.9, 17.7, 18.1, True) == "17.9x [17.7, 18.1]"
    assert numbers.speedup(17.9, 17.7, 18.1, False) == "~17.9x [17.7, 18.1]"
    assert numbers.speedup(17.9, None, None, True) == "~17.9x"
    assert numbers.speedup(2.0, 1.98, 2.04, True, compact=True) == "2.00x±2%"
    assert numbers.speedup(2.0, 1.98, 2.04, False, compact=True) == "~2.00x"


@pytest.mark.parametrize(
    ("value", "said"), [(0.5, "0.50 µs"), (212.4, "212 µs"), (3672, "3,672 µs"), (84_800, "84.8 ms"), (2.5e6, "2.50 s")]
)
def test_times_keep_three_digits(value: float, said: str) -> None:
    assert numbers.micros(value) == said


@given(st.floats(0, 2), st.integers(1, 60))
def test_bars_are_as_wide_as_asked(value: float, width: int) -> None:
    assert len(bar(UNICODE, value, width)) == len(bar(ASCII, value, width)) == width


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=80), st.integers(1, 40))
def test_no_sample_disappears_from_a_histogram(values: list[float], width: int) -> None:
    drawn = histogram(UNICODE, values, width)
    assert len(drawn) == width
    assert any(c != " " for c in drawn)


def test_filters_say_what_they_mean() -> None:
    fields = ("speedup", "state")
    rows = [
        ("fast gelu", {"speedup": 2.0, "state": "correct"}),
        ("slow gelu", {"speedup": 0.5, "state": "rejected"}),
        ("new", {"speedup": None, "state": "queued"}),
    ]
    cases = {
        "gelu": [0, 1],
        "!gelu": [2],
        "speedup>1.2": [0],
        "speedup<1.2": [1],
        "!speedup>1": [1, 2],
        "state=rej": [1],
        "gelu state!=rejected": [0],
        "speedup>1.2x gelu": [0],
        "": [0, 1, 2],
    }
    for query, expected in cases.items():
        found = parse_filter(query, fields)
        assert [k for k, (text, values) in enumerate(rows) if found.matches(text, values)] == expected, query
    assert parse_filter("speed>1", fields).problem == "no field speed; there are speedup, state"
