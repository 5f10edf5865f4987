"""Settings: defaults < file < environment < flags; errors name the place and the nearest known key."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.records.problem import UserInputError
from forge_tui.settings.load import config_file, load, nearest, save
from forge_tui.settings.schema import Entry, Settings, docs, entries, known, quoted, text_of


def write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_each_source_overrules_the_one_before_and_is_remembered(tmp_path: Path) -> None:
    path = write(tmp_path, "[search]\nc = 0.1\nno_gain = 3\n[budget]\ndollars = 1\n")
    loaded = load({"budget.dollars": "none"}, {"FORGE_SEARCH_C": "0.2", "FORGE_BUDGET_DOLLARS": "2"}, path)
    assert loaded.settings.search.c == 0.2
    assert loaded.settings.search.no_gain == 3
    assert loaded.settings.budget.dollars is None
    assert [loaded.source(key) for key in ("search.c", "search.no_gain", "budget.dollars", "ui.ascii")] == [
        "environment",
        "file",
        "flag",
        "default",
    ]


def test_a_flag_that_was_not_given_changes_nothing(tmp_path: Path) -> None:
    assert load({"search.c": None}, {}, tmp_path / "config.toml").settings == Settings()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[search]\n\nstrategi = 'uct'\n",
            "line 3: unknown setting 'search.strategi'; did you mean 'search.strategy'?",
        ),
        ("[ui]\nstrategy = 'uct'\n", "line 2: unknown setting 'ui.strategy'; did you mean 'search.strategy'?"),
        ("[search]\n# c\nc = 'high'\n", "line 3: 'high' is not allowed for search.c; allowed: number 0 to 100"),
        ("[search]\nc = true\n", "line 2: True is not allowed for search.c"),
        ("[search]\nc = nan\n", "line 2: nan is not allowed for search.c"),
        ("[budget]\nattempts = 0\n", "line 2: 0 is not allowed for budget.attempts; allowed: whole number 1 to"),
        ("[budget]\nattempts = 1.5\n", "line 2: 1.5 is not allowed for budget.attempts"),
        ("[search]\nstrategy = 'magic'\n", "allowed: uct, puct, greedy"),
        ("[search]\nc = \n", "is not valid TOML: invalid value (at line 2"),
        ("c = 1\n", "line 1: unknown setting 'c'; did you mean 'search.c'?"),
        ('[ui]\ntheme = "a\\u001b[2J"\n', "line 2: 'a\\x1b[2J' is not allowed for ui.theme"),
        ("[keys]\npause = 3\n", "line 2: keys are text"),
    ],
)
def test_an_error_names_file_line_key_and_what_is_allowed(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserInputError) as caught:
        load({}, {}, path)
    line = str(caught.value)
    assert line.startswith(str(path))
    assert expected in line
    assert "\n" not in line


def test_a_wrong_variable_is_an_error_with_its_name() -> None:
    with pytest.raises(
        UserInputError, match=r"FORGE_UI_ASCII: 'maybe' is not allowed for ui.ascii; allowed: true, false"
    ):
        load({}, {"FORGE_UI_ASCII": "maybe", "FORGE_CONFIG": "/dev/null"})


def test_a_misspelt_variable_is_a_warning_and_places_are_none(tmp_path: Path) -> None:
    variables = {"FORGE_SERCH_C": "1", "FORGE_HOME": "/x", "FORGE_CONFIG": str(tmp_path / "none.toml"), "OTHER": "1"}
    assert load({}, variables).warnings == ("FORGE_SERCH_C is no setting; did you mean FORGE_SEARCH_C?",)


def test_an_unknown_flag_is_an_error() -> None:
    with pytest.raises(UserInputError, match=r"unknown setting 'budget.dolars'; did you mean 'budget.dollars'"):
        load({"budget.dolars": "1"}, {"FORGE_CONFIG": "/dev/null"})


def test_a_binary_or_unreadable_file_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserInputError, match="is not UTF-8 text"):
        load({}, {}, path)
    with pytest.raises(UserInputError, match="can't be read"):
        load({}, {}, tmp_path)


def test_the_keymap_takes_dotted_and_quoted_actions(tmp_path: Path) -> None:
    path = write(tmp_path, '[keys]\nsession.pause = "space"\n"tree.best" = ["b", "B"]\n')
    assert load({}, {}, path).settings.keys == {"session.pause": "space", "tree.best": "b,B"}


def test_the_file_is_where_forge_config_says() -> None:
    assert config_file({"FORGE_CONFIG": "/a/b.toml"}) == Path("/a/b.toml")
    assert config_file({}).name == "config.toml"


def test_every_default_is_allowed_and_documented() -> None:
    table = docs()
    for entry in entries():
        assert entry.check(entry.default) == entry.default
        assert entry.doc and not entry.doc.endswith(".")
        assert f"`{entry.key}`" in table
    assert len(known()) == len(entries())
    assert len({entry.environment for entry in entries()}) == len(entries())


def values_of(entry: Entry) -> st.SearchStrategy[Any]:
    low, high = entry.low, entry.high
    if entry.choices:
        found: st.SearchStrategy[Any] = st.sampled_from(entry.choices)
    elif entry.kind == "bool":
        found = st.booleans()
    elif entry.kind == "int":
        found = st.integers(int(low or 0), int(high) if high is not None else None)
    elif entry.kind == "float":
        found = st.floats(low, high, allow_nan=False, allow_infinity=False)
    else:
        found = st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))).filter(str.isprintable)
    return st.one_of(st.none(), found) if entry.optional else found


pairs = st.sampled_from(entries()).flatmap(lambda entry: st.tuples(st.just(entry), values_of(entry)))


@settings(max_examples=60, deadline=None)
@given(st.lists(pairs, max_size=8))
def test_what_is_saved_is_what_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, chosen: list[tuple[Entry, Any]]
) -> None:
    path = tmp_path_factory.mktemp("settings") / "config.toml"
    expected = Settings()
    for entry, value in chosen:
        save(path, entry.key, value)
        expected = expected.with_value(entry.key, value)
    assert load({}, {}, path).settings == expected


@settings(max_examples=60, deadline=None)
@given(pairs)
def test_text_in_the_environment_means_the_same_as_the_value(pair: tuple[Entry, Any]) -> None:
    entry, value = pair
    text = "none" if value is None else text_of(value) if entry.kind != "str" else value
    loaded = load({}, {entry.environment: text, "FORGE_CONFIG": "/dev/null"})
    assert loaded.settings.get(entry.key) == value


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_a_quoted_string_reads_back(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert tomllib.loads(f"x = {quoted(text)}")["x"] == text


def test_saving_keeps_the_rest_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "# mine\n[ui]\nascii = true # old terminal\n\n[search]\nc = 0.5")
    save(path, "search.c", "0.25")
    save(path, "ui.mouse", False)
    save(path, "keys.tree.best", "b")
    text = path.read_text()
    assert text.startswith("# mine\n[ui]\nmouse = false\nascii = true # old terminal\n\n[search]\nc = 0.25")
    assert load({}, {}, path).settings.keys == {"tree.best": "b"}


def test_a_file_that_cannot_be_edited_safely_is_left_alone(tmp_path: Path) -> None:
    text = "search = { c = 0.5 }\n"
    path = write(tmp_path, text)
    with pytest.raises(UserInputError, match="by hand"):
        save(path, "search.c", 0.25)
    assert path.read_text() == text


def test_the_nearest_key_is_found_by_its_last_part() -> None:
    assert nearest("llm.dollars", known()) == "budget.dollars"
    assert nearest("zzzz", known()) == ""
