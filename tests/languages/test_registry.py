"""Languages by name, built in and from other packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tui.languages.registry import all_languages, language
from forge_tui.records.problem import UserInputError


@pytest.fixture
def outside_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed distribution that brings two languages, one of them broken."""
    (tmp_path / "their_language.py").write_text(
        "class Metal:\n    name = 'metal'\n    tier = 'T1'\n    suffix = '.metal'\n"
    )
    info = tmp_path / "their_language-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-language\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[forge_tui.languages]\nmetal = their_language:Metal\nbroken = their_language:Missing\ncpp = their_language:Metal\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    language.cache_clear()
    yield
    language.cache_clear()
    sys.modules.pop("their_language", None)


def test_the_built_in_languages_have_their_tiers() -> None:
    assert {"cpp", "cuda"} <= set(all_languages())
    assert language("cpp").tier == "T3" and language("cuda").tier == "T1"
    assert language("cpp").suffix == ".cpp" and language("cuda").suffix == ".cu"


@pytest.mark.usefixtures("outside_package")
def test_another_package_brings_a_language_and_cannot_replace_ours() -> None:
    assert "metal" in all_languages() and all_languages().count("cpp") == 1
    assert language("metal").suffix == ".metal"
    assert type(language("cpp")).__module__ == "forge_tui.languages.cpp"


@pytest.mark.usefixtures("outside_package")
def test_a_broken_or_unknown_language_is_one_clear_line() -> None:
    with pytest.raises(UserInputError, match=r"'broken' of their_language:Missing can't be loaded"):
        language("broken")
    with pytest.raises(UserInputError, match=r"unknown language 'fortran'; known: cpp, cuda"):
        language("fortran")
