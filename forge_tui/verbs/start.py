"""Starting: the home screen, a demo, a new session, a resumed one; with a screen or without."""

from __future__ import annotations

import argparse
import difflib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from forge_tui.records.problem import UserInputError
from forge_tui.records.workload import WorkloadSpec
from forge_tui.settings.load import load
from forge_tui.settings.schema import Settings
from forge_tui.store.lock import SessionLocked
from forge_tui.store.session import Session
from forge_tui.verbs.tables import say

# One English sentence through all-MiniLM-L6-v2: what an embedding service does per query.
DEMO_EXAMPLE, DEMO_OPTIONS = "minilm", ("batch=1",)
# A search of the shipped model that ends within three minutes on two cores.
DEMO = {
    "budget.minutes": "1.1",
    "budget.attempts": "10",
    "run.max_cards": "8",
    "judge.confirm_seconds": "3",
    "judge.model_seconds": "20",
    "run.compile_limit_s": "45",
    "run.compile_cards": "false",
}


def home(arguments: argparse.Namespace) -> int:
    """The list of sessions."""
    from forge_tui.verbs.screen import show_home

    return show_home(load().settings)


def demo(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments, DEMO)
    options = () if arguments.example else DEMO_OPTIONS
    spec = WorkloadSpec(f"example:{arguments.example or DEMO_EXAMPLE}", options=options, threads=_threads(settings))
    return _start(spec, "", "", settings, arguments)


def new(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    spec = WorkloadSpec(
        arguments.model, arguments.weights, tuple(arguments.option), settings.run.device, _threads(settings)
    )
    return _start(spec, arguments.name, arguments.session, settings, arguments)


def resume(arguments: argparse.Namespace) -> int:
    from forge_tui.verbs.show import session_path

    session = Session.open(session_path(arguments.session))
    settings = _settings(arguments)
    from forge_tui.verbs.work import run_headless, settings_of, spec_of

    settings = settings_of(session, settings, _flags(arguments).keys())
    if arguments.headless:
        try:
            return run_headless(session, spec_of(session), settings, arguments.json)
        except SessionLocked as locked:
            raise UserInputError(
                f"{locked}; watch it with `forge-tui resume {session.path}` (without --headless) or `forge-tui log -f`"
            ) from None
    from forge_tui.verbs.screen import show_session

    return show_session(session, settings)


def _start(spec: WorkloadSpec, name: str, folder: str, settings: Settings, arguments: argparse.Namespace) -> int:
    from forge_tui.verbs.work import new_session, run_headless, session_name

    check_source(spec)
    session = new_session(name or session_name(spec.source), spec, folder)
    if arguments.headless:
        try:
            return run_headless(session, spec, settings, arguments.json)
        except UserInputError:
            discard_empty(session)
            raise
    from forge_tui.verbs.screen import show_session

    return show_session(session, settings)


def check_source(spec: WorkloadSpec) -> None:
    """Refuse what can be seen to be wrong before a process is started. Raises UserInputError."""
    from forge_tui.examples.catalogue import EXAMPLES, find, parse_options

    for text in (spec.source.partition(":")[0], spec.weights):
        if (text.endswith(".py") or text == spec.weights) and text and not Path(text).expanduser().exists():
            near = difflib.get_close_matches(Path(text).name, [p.name for p in Path(text).parent.glob("*")], n=1)
            hint = f"; did you mean {Path(text).with_name(near[0])}?" if near else "; give the path of a file"
            raise UserInputError(f"{text} does not exist{hint}")
    if spec.source.startswith("example:"):
        example = find(spec.source.removeprefix("example:"))
        if example is None:
            raise UserInputError(
                f"there is no example {spec.source.removeprefix('example:')!r}; there are {', '.join(e.name for e in EXAMPLES)}"
            )
        try:
            parse_options(example, spec.options)
        except ValueError as error:
            raise UserInputError(str(error)) from None


def discard_empty(session: Session) -> None:
    """Remove a session that never got as far as a card: its model could not be used, and the line said why."""
    from forge_tui.store.reader import Reader

    with Reader(session.path) as reader:
        empty = not reader.cards()
    if empty:
        shutil.rmtree(session.path)


def _threads(settings: Settings) -> int:
    from forge_tui.engine.options import options_from

    return options_from(settings).threads


def _flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """Settings given on the command line."""
    flags: dict[str, Any] = {
        "budget.minutes": arguments.minutes, "budget.attempts": arguments.attempts, "search.strategy": arguments.strategy, "llm.model": arguments.llm,
        "llm.api_base": arguments.api_base, "budget.dollars": arguments.dollars, "run.threads": arguments.threads, "run.python": arguments.python,
        "ui.ascii": "true" if arguments.ascii else None, "ui.mouse": "false" if arguments.no_mouse else None,
    }  # fmt: skip
    for text in arguments.set:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserInputError(f"--set {text}: write KEY=VALUE, such as --set search.c=0.5")
        flags[key.strip()] = value.strip()
    return {key: value for key, value in flags.items() if value is not None}


def _settings(arguments: argparse.Namespace, defaults: dict[str, str] | None = None) -> Settings:
    """Settings in force: flags over environment over file over a verb's own defaults."""
    loaded = load(_flags(arguments))
    for key, value in (defaults or {}).items():
        if loaded.source(key) == "default":
            loaded = replace(loaded, settings=loaded.settings.with_value(key, value))
    for warning in loaded.warnings:
        say(f"note: {warning}")
    return loaded.settings
