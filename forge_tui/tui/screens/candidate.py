"""One candidate's life: prompt, reply, compile, run, verdict, each with its time and cost, each foldable."""

from __future__ import annotations

from dataclasses import dataclass

from textual.app import ComposeResult

from forge_tui.records.verdict import Verdict
from forge_tui.records.views import AttemptRow, LlmCallRow
from forge_tui.tui import numbers
from forge_tui.tui.cells import Span, clean, clean_lines, wrap
from forge_tui.tui.feed import READ_ERRORS, Feed
from forge_tui.tui.glyphs import Glyphs
from forge_tui.tui.panes.lines import CursorView, Line, Look
from forge_tui.tui.screens.keys import KeyScreen
from forge_tui.tui.source import Reader

OUTCOME_ROLES = {"done": "good", "failed": "warn", "running": "running", "unknown": "dim"}


@dataclass(frozen=True)
class Entry:
    """One step of the timeline. body: plain text that unfolds, "" for none."""

    mark: str
    role: str
    head: str
    note: str
    body: str


def entries_of(
    attempts: list[AttemptRow], calls: list[LlmCallRow], verdicts: list[Verdict], glyphs: Glyphs
) -> list[Entry]:
    """The timeline, oldest first, with what the judge and the models said below each step, once."""
    marks = {
        "done": glyphs.passed,
        "failed": glyphs.failed,
        "running": glyphs.states["running"],
        "unknown": glyphs.unknown,
    }
    entries = []
    judged = list(verdicts)
    for row in attempts:
        cost = []
        if row.seconds is not None:
            cost.append(numbers.seconds(row.seconds))
        if row.tokens is not None:
            cost.append(f"{row.tokens:,} tokens")
        if row.cost_usd is not None:
            cost.append(numbers.dollars(row.cost_usd))
        head = f"{numbers.clock(row.at)}  a{row.attempt}  {row.step:<8}"
        note = "  ".join([clean(row.line), *cost])
        body = row.text
        if row.step == "verdict" and judged:
            body = "\n\n".join(part for part in (_verdict_text(judged.pop(0)), body) if part)
        mark, role = marks.get(row.outcome, glyphs.unknown), OUTCOME_ROLES.get(row.outcome, "dim")
        entries.append(Entry(mark, role, head, note, body))
    told = any(row.step in ("prompt", "reply") for row in attempts)
    for call in [] if told else calls:
        tokens = f"{numbers.count(call.prompt_tokens)} in, {numbers.count(call.completion_tokens)} out"
        note = f"{clean(call.model)}  {call.state}  {numbers.seconds(call.seconds)}  {tokens}  {numbers.dollars(call.cost_usd)}"
        role = "good" if call.state == "replied" else "warn"
        body = f"PROMPT\n{call.prompt}\n\nREPLY\n{call.reply}"
        entries.append(
            Entry(glyphs.arrow, role, f"{numbers.clock(call.at)}  model call {clean(call.purpose)}", note, body)
        )
    for verdict in judged:
        role = {"correct": "good", "rejected": "warn"}.get(verdict.outcome, "problem")
        mark = {"correct": glyphs.passed, "rejected": glyphs.failed}.get(verdict.outcome, glyphs.states["problem"])
        word = "confirmation" if verdict.confirmation else "judged"
        said = verdict.problem.line if verdict.problem is not None else f"{verdict.outcome}, {verdict.stage}"
        entries.append(Entry(mark, role, f"{word:<13}", clean(said), _verdict_text(verdict)))
    return entries


def _verdict_text(verdict: Verdict) -> str:
    lines = [f"{check.outcome:<8} {check.name:<14} {check.line}" for check in verdict.checks]
    for error in verdict.errors:
        ratio = "unknown" if error.ratio is None else f"{error.ratio:.3g}x"
        place = f" worst at {error.worst_index}: got {error.got}, expected {error.expected}, eager {error.eager}"
        lines.append(
            f"trial {error.trial} output {error.output}: rms {numbers.scientific(error.rms)}, eager {numbers.scientific(error.eager_rms)}, "
            f"ratio {ratio}, {'passed' if error.passed else 'failed'}{place if error.worst_index else ''}"
        )
    return "\n".join(lines)


class Timeline(CursorView):
    """The entries, with the text of the unfolded ones below them."""

    def __init__(self, look: Look) -> None:
        super().__init__(look, "timeline")
        self.entries: list[Entry] = []
        self.open: set[int] = set()
        self._rows: list[tuple[int, str]] = []

    def set_entries(self, entries: list[Entry]) -> None:
        """Show these; what failed is unfolded."""
        self.entries = entries
        self.open = {k for k, e in enumerate(entries) if e.body and e.role in ("warn", "problem")}
        self._flow()

    def _flow(self) -> None:
        width = max(20, self.view_width - 6)
        self._rows = []
        for k, entry in enumerate(self.entries):
            self._rows.append((k, ""))
            if k in self.open:
                for line in clean_lines(entry.body):
                    self._rows += [(k, part or " ") for part in (wrap(line, width) if len(line) > width else [line])]
        self.cursor = min(self.cursor, max(0, len(self._rows) - 1))
        self.repaint(0)

    def toggle(self) -> None:
        """Fold or unfold the step under the cursor."""
        if not self._rows:
            return
        k, _ = self._rows[self.cursor]
        self.open ^= {k}
        self._flow()
        self.move_to(next(i for i, (entry, text) in enumerate(self._rows) if entry == k and not text))

    def item_count(self) -> int:
        return len(self._rows)

    def item_spans(self, item: int, line: int, width: int) -> list[Span]:
        k, text = self._rows[item]
        entry = self.entries[k]
        if text:
            return [(f"      {text}", "text")]
        glyphs = self.look.glyphs
        fold = (glyphs.unfolded if k in self.open else glyphs.folded) if entry.body else " "
        return [(f" {fold} {entry.mark} ", entry.role), (f"{entry.head} ", "heading"), (entry.note, "text")]


class CandidateScreen(KeyScreen):
    """The timeline of one candidate."""

    DEFAULT_CSS = "CandidateScreen { layout: vertical; } CandidateScreen Line { height: 1; } CandidateScreen Timeline { height: 1fr; }"

    def __init__(self, look: Look, reader: Reader, feed: Feed, candidate_id: str) -> None:
        super().__init__(look)
        self.reader = reader
        self.feed = feed
        self.candidate_id = candidate_id
        self.timeline = Timeline(look)
        self.timeline.active = True
        self.head = Line(look, "head")
        self.handlers = {
            "up": lambda: self.timeline.move(-1),
            "down": lambda: self.timeline.move(1),
            "page_up": lambda: self.timeline.page(-1),
            "page_down": lambda: self.timeline.page(1),
            "top": lambda: self.timeline.edge(-1),
            "bottom": lambda: self.timeline.edge(1),
            "unfold": self.timeline.toggle,
            "back": self._leave,
            "quit": self._leave,
        }

    def _leave(self) -> None:
        self.dismiss(None)

    def compose(self) -> ComposeResult:
        yield self.head
        yield self.timeline
        yield self.footer
        self.head.show([(f" {clean(self.candidate_id)} ", "title_focus")])
        self.paint_footer()

    def on_mount(self) -> None:
        self.run_worker(self._load())

    async def _load(self) -> None:
        name = self.candidate_id
        try:
            attempts = await self.feed.read(self.reader.attempts, name)
            calls = await self.feed.read(self.reader.llm_calls, name)
            verdicts = await self.feed.read(self.reader.verdicts, name)
            candidate = await self.feed.read(self.reader.candidate, name)
        except READ_ERRORS as error:
            self.say(f"{name} can't be read: {error}", "problem")
            return
        entries = entries_of(list(attempts), list(calls), list(verdicts), self.look.glyphs)
        self.timeline.set_entries(entries)
        if candidate is not None:
            note = f"  {clean(candidate.technique)}  by {candidate.proposer}, {candidate.language} {candidate.tier}, {candidate.audit_class}"
            self.head.show([(f" {clean(name)} ", "title_focus"), (note, "text")])
        if not entries:
            self.say("nothing recorded for this candidate yet")

    def paint_footer(self) -> None:
        self.footer.show(
            [(" enter", "key"), (" fold  ", "dim"), ("esc", "key"), (" back  ", "dim"), ("?", "key"), (" keys", "dim")]
        )
