"""Everything the screen shows about one node, read from the store off the event loop in one go."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from forge_tui.records.candidate import Candidate
from forge_tui.records.card import Card
from forge_tui.records.verdict import Measurement, Verdict
from forge_tui.records.views import CardRow, NodeRow
from forge_tui.tui.cells import Span, clean_lines
from forge_tui.tui.diffs import Diff, diff_lines
from forge_tui.tui.source import Reader

AGAINST = ("parent", "eager", "champion", "marked")


@dataclass(frozen=True)
class NodeDetail:
    """One node with its card, its parent and what the judge said. `verdict` is the newest, confirmations first."""

    row: NodeRow
    card_row: CardRow | None
    card: Card | None
    candidate: Candidate | None
    verdicts: tuple[Verdict, ...] = ()
    report: dict[str, object] | None = None
    parent: NodeRow | None = None
    measurements: tuple[Measurement, ...] = ()

    @property
    def verdict(self) -> Verdict | None:
        """The verdict whose numbers are shown."""
        choice = [v for v in self.verdicts if v.confirmation] or list(self.verdicts)
        return choice[-1] if choice else None


@dataclass(frozen=True)
class SourceText:
    """Two texts and their difference, ready to draw. diff None: only `new` is shown, `note` says why.

    old_lines, new_lines: runs of every line, plain until the lexer is done.
    """

    name: str
    other: str
    language: str
    old_text: str
    new_text: str
    diff: Diff | None
    note: str = ""
    old_lines: list[list[Span]] = field(default_factory=list)
    new_lines: list[list[Span]] = field(default_factory=list)


def load_detail(reader: Reader, row: NodeRow, card_row: CardRow | None, parent: NodeRow | None) -> NodeDetail:
    """Read one node's facts."""
    card = reader.card(row.card_id)
    specs = (*card.key.tensors, *card.key.outputs) if card is not None else ()
    device = specs[0].device if specs else "cpu"
    measured = (*reader.measurements(device), *reader.measurements(row.card_id))
    if row.state == "baseline":
        return NodeDetail(row, card_row, card, None, measurements=measured)
    return NodeDetail(
        row,
        card_row,
        card,
        reader.candidate(row.node_id),
        tuple(reader.verdicts(row.node_id)),
        reader.report(row.node_id),
        parent,
        measured,
    )


def load_source(reader: Reader, detail: NodeDetail, against: str, marked: str) -> SourceText:
    """Read the node's source and what it is compared with."""
    row = detail.row
    if row.state == "baseline":
        text = eager_text(detail.card)
        return SourceText(row.label or "eager", "", "python", "", text, None, "", [], _plain(text))
    language = detail.candidate.language if detail.candidate else ""
    text = reader.source(row.node_id)
    other, old, note = "", "", ""
    if against == "eager":
        other, old = "eager", eager_text(detail.card)
    else:
        parent = detail.candidate.parent_id if detail.candidate else ""
        best = detail.card_row.best_id if detail.card_row else ""
        other = {"parent": parent or "", "champion": best, "marked": marked}[against]
        if other == row.node_id:
            other, note = "", f"this is the {against}"
        elif not other:
            note = f"no {against}" if against != "marked" else "nothing is marked (m marks a node)"
        else:
            old = reader.source(other)
            if not old:
                other, note = "", f"{against} has no source"
    if not text:
        return SourceText(row.node_id, "", language, "", "", None, "no source yet")
    old_lines, new_lines = clean_lines(old), clean_lines(text)
    diff = diff_lines(old_lines, new_lines) if other else None
    return SourceText(row.node_id, other, language, old, text, diff, note, _plain(old), _plain(text))


def _plain(text: str) -> list[list[Span]]:
    return [[(line, "text")] for line in clean_lines(text)]


def eager_text(card: Card | None) -> str:
    """What eager runs for a card, written as the call it was captured from."""
    if card is None:
        return ""
    key = card.key
    lines = [
        f"# eager: {key.op}, {card.calls} calls in one run",
        "# seen in " + (", ".join(card.modules[:6]) or "the model"),
    ]
    for spec in key.tensors:
        shape = ", ".join(str(d.lo) if d.exact else f"{d.lo}..{d.hi}" for d in spec.dims)
        lines.append(f"# {spec.name}: {spec.dtype}[{shape}] {spec.layout}{' (parameter)' if spec.parameter else ''}")
    arguments = []
    for arg in key.args:
        if arg.kind == "tensor":
            arguments.append(
                f"{arg.name}={key.tensors[arg.value].name}" if 0 <= arg.value < len(key.tensors) else arg.name
            )
        elif arg.kind == "tensor_list":
            arguments.append(f"{arg.name}=[...]")
        else:
            arguments.append(f"{arg.name}={arg.value!r}")
    name = key.op.replace("::", ".")
    results = ", ".join(spec.name for spec in key.outputs) or "_"
    lines.append(f"{results} = torch.ops.{name}({', '.join(arguments)})")
    return "\n".join(lines) + "\n"


class Coloured:
    """Highlighted texts by content, so that a node looked at twice is lexed once. Used from one thread only."""

    def __init__(self, keep: int = 64) -> None:
        self._keep = keep
        self._known: OrderedDict[str, list[list[Span]]] = OrderedDict()

    def lines(self, text: str, language: str) -> list[list[Span]]:
        """The lines of a text in colours. Slow the first time."""
        from forge_tui.tui.highlight import highlight

        key = language + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = highlight(text, language)
            if len(self._known) > self._keep:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return found
