"""The installed call: the candidate behind guard and dispatch against plain eager, from Python."""

from __future__ import annotations

import random
from pathlib import Path

from forge_tui.judge.pool import TrialPool
from forge_tui.judge.session import Session
from forge_tui.records.card import Card
from forge_tui.records.judging import JudgeJob
from forge_tui.records.verdict import Timing


def measure(
    session: Session, card: Card, job: JudgeJob, pool: TrialPool, binary: Path, source: random.Random
) -> Timing | str:
    """The installed call's timing, or why it is unknown."""
    return "the cast runtime is not there yet"
