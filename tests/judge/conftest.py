"""One judge session for this room's tests: real workers, real compilers, few pairs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import judge_kernels
import pytest

from forge_tui.judge.judgement import Judgement
from forge_tui.judge.session import Session
from forge_tui.records.boot import PACKAGE
from forge_tui.records.card import Card
from forge_tui.records.judging import JudgeSettings
from forge_tui.records.verdict import Verdict

Judge = Callable[..., Verdict]


@pytest.fixture(scope="session")
def blob_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blobs")


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory, blob_dir: Path) -> Iterator[Session]:
    scratch = tmp_path_factory.mktemp("judge")
    os.environ["OPENAI_API_KEY"] = "sk-test-must-stay-here"
    made = Session(
        JudgeSettings(
            str(blob_dir), str(scratch), sys.executable, str(PACKAGE), search_pairs=6, confirm_pairs=20,
            confirm_seconds=3.0, time_limit_s=20.0, machine_lock=str(scratch / "lock"), other_cores=None)
    )  # fmt: skip
    made.hello()
    yield made
    del os.environ["OPENAI_API_KEY"]
    made.close()


@pytest.fixture
def judge(session: Session, blob_dir: Path) -> Judge:
    """Judge C++ source for a card; `settings` replaces fields of the session's settings for this run."""

    def run(card: Card, source: str, settings: dict[str, Any] | None = None, **options: Any) -> Verdict:
        session.open_card(card)
        before = session.settings
        session.settings = replace(before, **(settings or {}))
        try:
            return Judgement(session, judge_kernels.job(card, source, blob_dir, **options), lambda **_: None).run()
        finally:
            session.settings = before

    return run
