"""Looking at sessions without a screen: ls, show, tree, log, diff."""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from pathlib import Path

from forge_tui.records.card import Card
from forge_tui.records.codec import to_json
from forge_tui.records.problem import UserInputError
from forge_tui.records.verdict import Verdict
from forge_tui.records.views import CardRow, NodeRow
from forge_tui.store.catalog import list_sessions
from forge_tui.store.places import home
from forge_tui.store.reader import Reader
from forge_tui.verbs.tables import interval, number, percent, plain, print_json, table

MARKS = {
    "baseline": "B", "queued": ".", "running": ".", "repair": "r", "correct": "+", "champion": "*", "rejected": "x", "pruned": "-", "unknown": "?", "problem": "!",
}  # fmt: skip


LEVELS = ("debug", "info", "good", "warn", "bad")  # each shows itself and the more serious ones


def session_path(text: str) -> Path:
    """A session by path, by name, or "last" for the one that was active last. Raises UserInputError."""
    given = Path(text).expanduser()
    if given.exists():
        return given
    rows = list_sessions()
    if text == "last" and rows:
        return Path(max(rows, key=lambda r: r.last_activity).path)
    matches = [r for r in rows if Path(r.path).name == text] or [r for r in rows if r.name == text]
    if len(matches) == 1:
        return Path(matches[0].path)
    if len(matches) > 1:
        raise UserInputError(
            f"{len(matches)} sessions are called {text}: give the path ({', '.join(m.path for m in matches[:3])})"
        )
    close = difflib.get_close_matches(text, [r.name for r in rows], n=1)
    hint = f"; did you mean {close[0]}?" if close else "; see `forge-tui ls`"
    raise UserInputError(f"there is no session {text}{hint}")


def ls(arguments: argparse.Namespace) -> int:
    rows = list_sessions()
    if arguments.json:
        print_json(rows)
        return 0
    if not rows:
        print(f"no sessions in {home().sessions}; start one with: forge-tui demo")
        return 0
    print(
        table(
            ["session", "model", "device", "state", "cards", "faster", "model gain", "spent", "last activity"],
            [
                [
                    Path(r.path).name, r.model or "unknown", r.device or "unknown", r.problem or r.state, str(r.cards), str(r.faster),
                    number(r.model_speedup, "{:.3f}x"), f"${r.dollars:.2f}", time.strftime("%Y-%m-%d %H:%M", time.localtime(r.last_activity)),
                ]
                for r in rows
            ],
            right=(4, 5),
        )
    )  # fmt: skip
    return 0


def show(arguments: argparse.Namespace) -> int:
    """A session, one of its cards, or one of its candidates."""
    with Reader(session_path(arguments.session)) as reader:
        subject = arguments.subject
        if not subject:
            return _session(reader, arguments.json)
        if subject.startswith("n") and subject[1:].isascii() and subject[1:].isdigit():
            return _candidate(reader, subject, arguments.json)
        return _card(reader, card_of(reader, subject), arguments.json)


def card_of(reader: Reader, text: str) -> CardRow:
    """A card by (the start of) its id or by its title. Raises UserInputError."""
    rows = reader.cards()
    matches = [r for r in rows if r.card_id.startswith(text) or text.lower() in r.title.lower()]
    exact = [r for r in matches if r.card_id == text or r.title == text]
    matches = exact or matches
    if len(matches) == 1:
        return matches[0]
    names = "; ".join(f"{r.card_id[:8]} {r.title}" for r in (matches or rows)[:6])
    raise UserInputError(f"{text!r} fits {len(matches)} cards of this session (there are: {names})")


def _session(reader: Reader, as_json: bool) -> int:
    status, model, cards = reader.status(), reader.model(), reader.cards()
    if as_json:
        print_json({"status": status, "model": model, "cards": cards})
        return 0
    print(
        f"state {status.state}{f' ({status.owner})' if status.owner else ''} · strategy {status.strategy or 'unknown'} · {status.candidates} candidates · sandbox {status.profile or 'unknown'}"
    )
    if model is not None:
        cast = (
            f"{number(model.cast_ms)} ms ({interval(model.cast_speedup, model.cast_low, model.cast_high)})"
            if model.cast_ms is not None
            else "unknown"
        )
        compiled = (
            f"{model.compile_ms:.2f} ms"
            if model.compile_ms is not None
            else f"unknown ({model.compile_line})"
            if model.compile_line
            else "unknown"
        )
        print(
            f"model {model.name} on {model.device}: eager {number(model.eager_ms)} ms · compile {compiled} · with the cast {cast}"
            + (f" · {model.synthetic}" if model.synthetic else "")
        )
    print()
    print(cards_table(cards))
    return 0


def cards_table(cards: list[CardRow]) -> str:
    """Every card in one row, with both baselines beside the claim."""
    return table(
        ["card", "operator", "calls", "share", "eager us", "compile us", "best us", "speed-up", "audit class", "state", "tried"],
        [
            [
                c.card_id[:8], c.title, str(c.calls), percent(c.share), number(c.eager_us, "{:.1f}"), number(c.compile_us, "{:.1f}"),
                number(c.best_us, "{:.1f}"), interval(c.speedup, c.low, c.high, c.provisional), c.audit_class or "-",
                c.state + (f": {c.reason}" if c.reason and c.state in ("refused", "problem", "undiscriminating") else ""), f"{c.attempts}/{c.failures}",
            ]
            for c in cards
        ],
        right=(2, 3, 4, 5, 6),
    )  # fmt: skip


def _card(reader: Reader, row: CardRow, as_json: bool) -> int:
    card: Card | None = reader.card(row.card_id)
    if as_json:
        print_json({"row": row, "card": card, "nodes": reader.nodes(row.card_id)})
        return 0
    print(
        f"{row.title}   card {row.card_id}   {row.calls} calls   {percent(row.share)} of the model   {row.state}{': ' + row.reason if row.reason else ''}"
    )
    if card is not None:
        print(
            f"operator {card.key.op}   modules {', '.join(card.modules[:3])}{' ...' if len(card.modules) > 3 else ''}   error rule {card.op_class or 'weak'}"
            + ("   synthetic data" if card.synthetic else "")
        )
    print(
        f"eager {number(row.eager_us)} us   compile {number(row.compile_us)} us   speed of light {number(row.floor_us)} us"
    )
    print()
    print_tree(reader.nodes(row.card_id))
    return 0


def tree(arguments: argparse.Namespace) -> int:
    with Reader(session_path(arguments.session)) as reader:
        rows = [card_of(reader, arguments.card)] if arguments.card else [c for c in reader.cards() if c.attempts]
        if arguments.json:
            print_json({c.card_id: reader.nodes(c.card_id) for c in rows})
            return 0
        for row in rows:
            print(f"{row.title}  ({row.card_id[:8]})")
            print_tree(reader.nodes(row.card_id))
            print()
    return 0


def print_tree(nodes: list[NodeRow]) -> None:
    """The revision tree in ASCII, children under their parents."""
    children: dict[str, list[NodeRow]] = {}
    known = {n.node_id for n in nodes}
    for node in nodes:
        children.setdefault(node.parent_id if node.parent_id in known else "", []).append(node)
    stack = [(node, "", last) for last, node in _marked(children.get("", []))]
    while stack:
        node, indent, last = stack.pop(0)
        speed = (
            interval(node.speedup, node.low, node.high, not node.confirmed)
            if node.speedup is not None
            else node.line or node.state
        )
        print(
            f"{indent}{'`- ' if last else '|- '}{MARKS[node.state]} {node.node_id}  {node.label}   {plain(speed)}   v{node.visits} a{node.attempt}"
        )
        deeper = indent + ("   " if last else "|  ")
        stack = [(child, deeper, end) for end, child in _marked(children.get(node.node_id, []))] + stack


def _marked(nodes: list[NodeRow]) -> list[tuple[bool, NodeRow]]:
    return [(i == len(nodes) - 1, node) for i, node in enumerate(nodes)]


def _candidate(reader: Reader, name: str, as_json: bool) -> int:
    candidate = reader.candidate(name)
    if candidate is None:
        raise UserInputError(f"there is no candidate {name} in this session; see `forge-tui tree`")
    verdicts = reader.verdicts(name)
    if as_json:
        print_json({"candidate": candidate, "verdicts": verdicts, "attempts": reader.attempts(name)})
        return 0
    print(
        f"{name}   {candidate.language} {candidate.tier}   by {candidate.proposer}   parents {', '.join(p.candidate_id for p in candidate.parents) or 'none'}   {candidate.audit_class}"
    )
    print(f"{candidate.technique or 'no description'}")
    for verdict in verdicts:
        print()
        print_verdict(verdict)
    print()
    print(plain(candidate.source))
    return 0


def print_verdict(verdict: Verdict) -> None:
    """One verdict with its checks."""
    kind = "confirmation" if verdict.confirmation else "search"
    print(
        f"{kind}: {verdict.outcome}, reached {verdict.stage}"
        + (f": {verdict.problem.kind}: {plain(verdict.problem.line)}" if verdict.problem else "")
    )
    for timing in (verdict.timing, verdict.installed):
        if timing is not None:
            print(
                f"  {timing.call}: {timing.candidate_us:.2f} us against {timing.against} {timing.baseline_us:.2f}, {interval(timing.speedup, timing.low, timing.high)} {timing.verdict}; {timing.pairs} pairs, A/A {number(timing.noise, '{:.3f}')}"
            )
    for check in verdict.checks:
        print(f"  {check.outcome:8} {check.name:14} {plain(check.line)}")


def log(arguments: argparse.Namespace) -> int:
    with Reader(session_path(arguments.session)) as reader:
        seen = 0
        levels = LEVELS[LEVELS.index(arguments.level or "info") :]
        while True:
            rows = reader.log(
                candidate_id=arguments.node,
                levels=levels,
                text=arguments.search,
                after=seen or None,
                limit=10_000 if seen else arguments.lines,
            )
            for row in rows:
                if arguments.json:
                    print_json(to_json(row))
                else:
                    stamp = time.strftime("%H:%M:%S", time.localtime(row.at))
                    print(f"{stamp}  {row.level:5}  {row.candidate_id:6} {plain(row.text)}")
            seen = rows[-1].seq if rows else seen
            if not arguments.follow:
                return 0
            sys.stdout.flush()
            time.sleep(0.5)


def diff(arguments: argparse.Namespace) -> int:
    with Reader(session_path(arguments.session)) as reader:
        new = reader.candidate(arguments.node)
        if new is None:
            raise UserInputError(f"there is no candidate {arguments.node} in this session")
        other = arguments.against or new.parent_id
        if not other:
            raise UserInputError(f"{arguments.node} has no parent; name the candidate to compare with")
        old = reader.candidate(other)
        if old is None:
            raise UserInputError(f"there is no candidate {other} in this session")
        lines = difflib.unified_diff(
            old.source.splitlines(), new.source.splitlines(), other, arguments.node, lineterm=""
        )
        print("\n".join(plain(line) for line in lines) or f"{other} and {arguments.node} have the same source")
    return 0
