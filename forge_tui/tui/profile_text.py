"""What the profiler panel says about one node, as lines of runs. Pure: same detail, same lines.

Invariants: a number that is not known reads "unknown" with the reason beside it; a check that did not
run reads unknown, never passed; a speed-up stands with its interval.
"""

from __future__ import annotations

from forge_tui.records.card import Card
from forge_tui.records.verdict import FAILED, PASSED, Measurement, Timing, Verdict
from forge_tui.tui import numbers
from forge_tui.tui.cells import Span, clean, pad, wrap
from forge_tui.tui.detail import NodeDetail
from forge_tui.tui.glyphs import Glyphs, bar, histogram

Lines = list[list[Span]]
LABEL = 10
ABOUT_LIMIT = 0.6


def profile_lines(detail: NodeDetail | None, width: int, glyphs: Glyphs) -> Lines:
    """The whole panel for a pane of `width` cells."""
    if detail is None:
        return [[(" nothing selected", "dim")]]
    if detail.row.state == "baseline":
        return _card_lines(detail, width, glyphs)
    verdict = detail.verdict
    if verdict is None:
        said = clean(detail.row.line) or detail.row.state
        return [_label("state", f"{said}; no verdict yet"), *_bars(detail, detail.row.time_us, width, glyphs)]
    lines: Lines = []
    if verdict.problem is not None:
        role = "warn" if verdict.problem.blame == "candidate" else "problem"
        word = "rejected" if verdict.problem.blame == "candidate" else f"{verdict.problem.blame} problem"
        lines += _wrapped("verdict", f"{word}: {verdict.problem.kind}: {clean(verdict.problem.line)}", width, role)
    else:
        lines.append(
            _label("verdict", f"{verdict.outcome}, {verdict.stage}{'' if verdict.confirmation else ' (not confirmed)'}")
        )
    lines += _bars(detail, verdict.timing.candidate_us if verdict.timing else detail.row.time_us, width, glyphs)
    lines += _timing_lines("timing", verdict.timing, width, glyphs)
    lines += _timing_lines("installed", verdict.installed, width, glyphs)
    lines += _deltas(detail, verdict)
    lines += _error_lines(verdict, width)
    lines += _check_lines(verdict, width, glyphs)
    lines += _report_lines(detail, width)
    lines += _audit_lines(detail, verdict, width)
    return lines


def _label(name: str, text: str, role: str = "text") -> list[Span]:
    return [(f" {name:<{LABEL}}", "dim"), (text, role)]


def _wrapped(name: str, text: str, width: int, role: str = "text") -> Lines:
    parts = wrap(text, max(10, width - LABEL - 2))
    return [_label(name if k == 0 else "", part, role) for k, part in enumerate(parts)]


def _measured(detail: NodeDetail, kind: str) -> Measurement | None:
    return next((m for m in reversed(detail.measurements) if m.kind == kind), None)


def _bandwidth(detail: NodeDetail, card: Card) -> float | None:
    """GB/s for the card's working set: the best rate at half its size or more, as the judge's floor takes it."""
    found = _measured(detail, "copy bandwidth")
    if found is None or not found.value:
        return None
    sizes = {int(size): rate for size, rate in (found.detail or {}).items() if size.isdigit() and rate}
    return max((rate for size, rate in sizes.items() if size >= card.bytes_moved / 2), default=found.value)


def _matmul_rate(detail: NodeDetail, card: Card) -> float | None:
    """GFLOP/s of the card's own element type, else the fastest measured."""
    rates = [m for m in detail.measurements if m.kind == "matmul rate" and m.value]
    dtypes = {t.dtype for t in card.key.tensors}
    own = [m for m in rates if m.line.rsplit(" ", 1)[-1] in dtypes]
    return max((m.value or 0.0 for m in own or rates), default=None)


def speed_of_light(detail: NodeDetail, time_us: float | None) -> tuple[float | None, str, float | None, str]:
    """Shares of the device's measured rates: memory with its reason when unknown, compute with its reason.

    memory = bytes of distinct elements / copy bandwidth / time; compute = flops / matmul rate / time.
    """
    card = detail.card
    if card is None or time_us is None or time_us <= 0:
        return None, "not timed", None, "not timed"
    bandwidth, rate = _bandwidth(detail, card), _matmul_rate(detail, card)
    memory = compute = None
    memory_why = compute_why = ""
    if bandwidth is None:
        floor = detail.verdict.floor_us if detail.verdict else None
        if floor:
            memory, memory_why = floor / time_us, "by the card's floor"
        else:
            memory_why = "no copy bandwidth measured"
    else:
        memory = card.bytes_moved / (bandwidth * 1e9) * 1e6 / time_us
    if card.flops is None:
        compute_why = f"no flop formula for {card.key.base_op}"
    elif rate is None:
        compute_why = "no matmul rate measured"
    else:
        compute = card.flops / (rate * 1e9) * 1e6 / time_us
    return memory, memory_why, compute, compute_why


def _bars(detail: NodeDetail, time_us: float | None, width: int, glyphs: Glyphs) -> Lines:
    memory, memory_why, compute, compute_why = speed_of_light(detail, time_us)
    room = max(8, min(40, width - LABEL - 14))
    lines: Lines = []
    for name, value, why in (("memory", memory, memory_why), ("compute", compute, compute_why)):
        if value is None:
            lines.append(_label(name, f"unknown: {why}", "dim"))
            continue
        above = "  above 100%: caches serve it" if value > 1 else ""
        lines.append(
            [
                (f" {name:<{LABEL}}{glyphs.bar_left}", "dim"),
                (bar(glyphs, value, room), "bar"),
                (f"{glyphs.bar_right} {numbers.percent(value):>5}{above}", "dim" if not above else "text"),
            ]
        )
    if memory is None and compute is None:
        return lines
    top = max((memory or 0.0, "memory"), (compute or 0.0, "compute"))
    rate = "copy bandwidth" if top[1] == "memory" else "matmul rate"
    if top[0] >= ABOUT_LIMIT:
        lines += _wrapped("limiter", f"{top[1]}: runs at {numbers.percent(top[0])} of the {rate}", width)
    else:
        lines += _wrapped("limiter", f"neither reaches {ABOUT_LIMIT:.0%}: latency, overhead or cache misses", width)
    return lines


def _timing_lines(name: str, timing: Timing | None, width: int, glyphs: Glyphs) -> Lines:
    if timing is None:
        return [_label(name, "unknown: not measured", "dim")]
    micro = glyphs.micro
    gain = numbers.speedup(timing.speedup, timing.low, timing.high, True)
    noise = f"A/A {glyphs.plus_minus}{numbers.percent(timing.noise)}" if timing.noise is not None else "A/A unknown"
    role = {"faster": "good", "slower": "warn"}.get(timing.verdict, "text")
    lines: Lines = [
        [
            (f" {name:<{LABEL}}", "dim"),
            (f"{timing.verdict} {gain}", role),
            (f" than {timing.against}", "text"),
        ],
        _label(
            "",
            f"{numbers.micros(timing.candidate_us, micro)} against {numbers.micros(timing.baseline_us, micro)}, "
            f"{timing.pairs} pairs, {timing.threads} threads, {noise}",
        ),
    ]
    for who, k in (("this", 1), (timing.against, 0)):
        values = sorted(pair[k] for pair in timing.samples)
        if len(values) < 5:
            continue
        low, high = numbers.micros(values[0], micro), numbers.micros(values[-1], micro)
        room = max(8, min(48, width - LABEL - len(low) - len(high) - 16))
        lines.append(
            [
                (f" {'':<{LABEL}}{pad(who, 8)}{low} ", "dim"),
                (histogram(glyphs, values, room), "bar_good" if k else "bar"),
                (f" {high}", "dim"),
            ]
        )
    return lines


def _change(mine: float, other: float | None, name: str) -> str:
    """ "~33% less time than parent n21": a point estimate, hence the "~"."""
    if not other:
        return f"unknown against {name}"
    change = mine / other - 1
    return f"~{numbers.percent(abs(change))} {'less' if change < 0 else 'more'} time than {name}"


def _deltas(detail: NodeDetail, verdict: Verdict) -> Lines:
    if verdict.timing is None:
        return []
    mine = verdict.timing.candidate_us
    parent = detail.parent
    parts = []
    if parent is not None and parent.state == "baseline":
        parts.append("no parent: hangs under eager")
    elif parent is not None:
        parts.append(_change(mine, parent.time_us, f"parent {parent.node_id}"))
    parts.append(_change(mine, verdict.timing.baseline_us, verdict.timing.against))
    compiled = detail.card_row.compile_us if detail.card_row else None
    why = _measured(detail, "compile")
    reason = clean(why.line) if compiled is None and why is not None else ""
    parts.append(_change(mine, compiled, "torch.compile") + (f": {reason}" if reason else ""))
    return [_label("change" if k == 0 else "", part) for k, part in enumerate(parts)]


def _error_lines(verdict: Verdict, width: int) -> Lines:
    if not verdict.errors:
        return [_label("error", "unknown: no trial was compared", "dim")]
    passed = sum(e.passed for e in verdict.errors)
    ratios = [e.ratio for e in verdict.errors if e.ratio is not None]
    worst = max(verdict.errors, key=lambda e: (not e.passed, e.ratio or 0.0))
    ratio = f"{max(ratios):.2g}x eager's" if ratios else "eager's is 0 or unknown"
    lines = _wrapped(
        "error",
        f"rms {ratio} against fp64 ({numbers.scientific(worst.rms)}, eager {numbers.scientific(worst.eager_rms)}), "
        f"{passed}/{len(verdict.errors)} trials",
        width,
        "text" if passed == len(verdict.errors) else "warn",
    )
    if worst.worst_index and not worst.passed:
        where = ", ".join(map(str, worst.worst_index))
        lines += _wrapped(
            "",
            f"trial {clean(worst.trial)}, output {worst.output} at ({where}): got {numbers.scientific(worst.got)}, "
            f"expected {numbers.scientific(worst.expected)}, eager {numbers.scientific(worst.eager)}",
            width,
        )
    return lines


def _check_lines(verdict: Verdict, width: int, glyphs: Glyphs) -> Lines:
    """Failed ones first with their words, then the unknown, then the passed in short."""
    lines: Lines = []
    for outcome, mark, role in ((FAILED, glyphs.failed, "warn"), ("unknown", glyphs.unknown, "dim")):
        for check in verdict.checks:
            if check.outcome == outcome:
                lines += _wrapped(
                    "checks" if not lines else "", f"{mark} {check.name} {outcome}: {clean(check.line)}", width, role
                )
    passed = [c for c in verdict.checks if c.outcome == PASSED]
    noted = [c for c in passed if c.line]
    for check in noted:
        lines += _wrapped(
            "checks" if not lines else "", f"{glyphs.passed} {check.name} passed: {clean(check.line)}", width
        )
    rest = ", ".join(c.name for c in passed if not c.line)
    if rest:
        lines += _wrapped("checks" if not lines else "", f"{glyphs.passed} passed: {rest}", width)
    return lines


def _report_lines(detail: NodeDetail, width: int) -> Lines:
    if not detail.report:
        return [_label("compiler", "unknown: no resource report", "dim")]
    parts = []
    for name, value in detail.report.items():
        if isinstance(value, (list, tuple)):
            shown = " ".join(clean(str(v)) for v in value[:4])
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and name.endswith("bytes"):
            shown = numbers.size(float(value))
        else:
            shown = clean(str(value))
        parts.append(f"{clean(name).replace('_', ' ')} {shown}")
    return _wrapped("compiler", ", ".join(parts), width)


def _audit_lines(detail: NodeDetail, verdict: Verdict, width: int) -> Lines:
    lines: Lines = []
    if detail.candidate is not None:
        made = f"{detail.candidate.audit_class}, by {detail.candidate.proposer}, {detail.candidate.language} {detail.candidate.tier}"
        lines += _wrapped("class", made, width)
        if detail.candidate.technique or detail.candidate.target:
            aim = f"{clean(detail.candidate.technique)}{'; target ' + clean(detail.candidate.target) if detail.candidate.target else ''}"
            lines += _wrapped("idea", aim, width)
    if verdict.environment:
        lines += _wrapped(
            "where", ", ".join(f"{clean(str(k))} {clean(str(v))}" for k, v in verdict.environment.items()), width
        )
    return lines


def _card_lines(detail: NodeDetail, width: int, glyphs: Glyphs) -> Lines:
    row, card = detail.card_row, detail.card
    micro = glyphs.micro
    if row is None:
        return [[(" no card", "dim")]]
    lines = [
        _label("eager", numbers.micros(row.eager_us, micro)),
        _label("compile", numbers.micros(row.compile_us, micro)),
        _label("floor", f"{numbers.micros(row.floor_us, micro)} (speed of light)"),
    ]
    why = _measured(detail, "compile")
    if row.compile_us is None and why is not None and why.line:
        lines[1] = _label("compile", f"unknown: {clean(why.line)}", "dim")
    lines += _bars(detail, row.eager_us, width, glyphs)
    lines += _wrapped("calls", f"{row.calls} in one run, {numbers.percent(row.share)} of the model's time", width)
    if card is not None:
        flops = numbers.count(card.flops) if card.flops is not None else "unknown: no formula"
        lines += _wrapped("work", f"{numbers.size(float(card.bytes_moved))} moved, {flops} flops a call", width)
        lines += _wrapped("seen in", ", ".join(clean(m) for m in card.modules[:8]) or "the model", width)
    if row.weak:
        lines += _wrapped("weak", "no error class for this operator: torch's default tolerances decide", width, "warn")
    if row.synthetic:
        lines += _wrapped("data", "synthetic: inputs or weights are not real ones", width, "warn")
    return lines
