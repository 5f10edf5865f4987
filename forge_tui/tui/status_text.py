"""The lines above and below the panes: the run, the whole model, the tabs and the keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from forge_tui.records.views import ModelRow, RunStatus
from forge_tui.tui import numbers
from forge_tui.tui.actions import PANES, Action, key_name
from forge_tui.tui.cells import Span, clean, fit, spans_width
from forge_tui.tui.glyphs import Glyphs, bar
from forge_tui.tui.palette import STATE_ROLES

Spans = list[Span]
SHORT_BELOW = 100


def run_line(status: RunStatus, name: str, width: int, glyphs: Glyphs, readonly: bool = False) -> Spans:
    """State, time, count, rate, money: what does not fit falls off at the end, least needed last."""
    symbol = glyphs.play if status.state == "running" else glyphs.states.get(status.state, glyphs.unknown)
    role = STATE_ROLES.get(status.state, "running")
    money = numbers.dollars(status.dollars)
    if status.dollar_budget is not None and width >= SHORT_BELOW:
        money += f" of {numbers.dollars(status.dollar_budget)}"
    if status.unpriced_calls:
        money += f" + {status.unpriced_calls} unpriced" if width >= SHORT_BELOW else "+?"
    rate = "" if status.per_minute is None else f"{status.per_minute:.0f}/min"
    eta = "" if status.eta_s is None or status.state != "running" else f"ETA {numbers.span(status.eta_s)}"
    queue = f"{status.compiling} compiling, {status.queued} queued" if status.compiling or status.queued else ""
    parts: list[tuple[str, str]] = [
        (f"{symbol} {status.state}{' (read only)' if readonly else ''}", role),
        (numbers.span(status.elapsed_s), "text"),
        (f"{status.candidates}/{status.budget} tried", "text"),
        (money, "text"),
        (rate, "text"),
        (eta, "text"),
        (f"judging {clean(status.judging)}" if status.judging else "", "dim"),
        (queue, "dim"),
        (status.strategy, "dim"),
        (f"{numbers.count(status.tokens)} tokens" if status.tokens else "", "dim"),
        (f"sandbox {clean(status.profile)}" if status.profile else "", "dim"),
    ]
    spans: Spans = [(" ", "text"), (fit(clean(name), max(8, width // 4), glyphs.ellipsis), "heading")]
    used = spans_width(spans)
    for text, part_role in parts:
        piece = f"  {text}"
        if text and used + len(piece) <= width:
            spans.append((piece, part_role))
            used += len(piece)
    return spans


def model_line(model: ModelRow | None, width: int, glyphs: Glyphs) -> Spans:
    """The whole model: eager, torch.compile, and with the champions (estimated until measured). Bars share one scale."""
    if model is None:
        return [(" model", "dim"), ("  not captured yet", "dim")]
    measured = model.cast_ms is not None
    now = model.cast_ms if measured else model.estimate_ms
    if measured:
        sure = model.cast_low is not None and model.cast_high is not None
        gain = numbers.speedup(model.cast_speedup, model.cast_low, model.cast_high, sure)
    elif now and model.eager_ms:
        gain = f"~{numbers.factor(model.eager_ms / now)} estimated"
    else:
        gain = ""
    spans: Spans = [(" model", "dim")]
    bars = max(0, min(24, (width - 100) // 3))
    top = max((v for v in (model.eager_ms, model.compile_ms, now) if v), default=0.0)
    for name, value, role in (
        ("eager", model.eager_ms, "text"),
        ("compile", model.compile_ms, "text"),
        ("now", now, "good"),
    ):
        about = "" if measured or name != "now" or value is None else "~"
        spans.append((f"  {name} ", "dim"))
        spans.append((f"{about}{numbers.millis(value)}", role if value is not None else "dim"))
        if bars >= 6 and value and top:
            drawn = bar(glyphs, value / top, bars).rstrip()
            spans.append((f" {drawn}", "bar_good" if name == "now" else "bar"))
    if gain:
        spans.append((f"  {gain}", "good"))
    notes = []
    if model.outputs_ok is False:
        spans.append(("  outputs differ", "warn"))
    if measured and model.outputs_ok is not None and model.outputs_ok:
        notes.append("outputs right")
    if model.hits is not None and model.calls is not None:
        notes.append(f"{model.hits}/{model.calls} hits")
    if model.compile_ms is None and model.compile_line:
        notes.append(f"compile: {clean(model.compile_line)}")
    if model.synthetic:
        notes.append(f"synthetic {clean(model.synthetic)}")
    notes.append(clean(model.device))
    for note in notes:
        if note and spans_width(spans) + len(note) + 2 <= width:
            spans.append((f"  {note}", "dim"))
    return spans


def tab_strip(focus: str, width: int) -> Spans:
    """The five panes by number, the one that shows marked."""
    spans: Spans = [(" ", "text")]
    for k, pane in enumerate(PANES):
        name = f" {k + 1} {pane} "
        spans.append((name, "title_focus" if pane == focus else "title"))
        spans.append((" ", "text"))
    return spans


def footer_line(actions: Sequence[Action], width: int) -> Spans:
    """Keys and their words, as many as fit; help and quit always."""
    spans: Spans = []
    last = [a for a in actions if a.id in ("help", "quit")]
    room = width - sum(len(key_name(a.keys[0])) + len(a.label) + 3 for a in last)
    for action in [a for a in actions if a not in last]:
        piece: Spans = [(f" {key_name(action.keys[0])}", "key"), (f" {action.label} ", "dim")]
        if spans_width(spans) + spans_width(piece) > room:
            continue
        spans += piece
    for action in last:
        spans += [(f" {key_name(action.keys[0])}", "key"), (f" {action.label} ", "dim")]
    return spans


def pane_title(
    number: int, name: str, note: str, place: str, focused: bool, width: int, glyphs: Glyphs, rule: bool
) -> Spans:
    """A pane's top line: number, name, what is special, where we are."""
    edge = glyphs.rule if rule else ""
    head = f" {number} {name} "
    tail = f" {place} " if place else ""
    room = width - len(edge) - len(head) - len(tail) - 2
    note = fit(f" {clean(note)} ", max(0, room), glyphs.ellipsis) if note and room > 6 else ""
    line = glyphs.rule * max(0, width - len(edge) - len(head) - spans_width([(note, "")]) - len(tail))
    spans: Spans = [(edge, "rule")] if edge else []
    spans.append((head, "title_focus" if focused else "title"))
    return [*spans, (note, "text" if focused else "title"), (line, "rule"), (tail, "title")]
