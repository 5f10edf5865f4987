"""An in-memory `Reader` with deterministic cards, trees, sources, verdicts and logs, for the tests of the screen.

Nothing in it is random between runs, and `grow` adds nodes and log lines the way a live search does.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from forge_tui.records.candidate import Candidate, Parent
from forge_tui.records.card import Arg, Card, Dim, TensorSpec, VariantKey
from forge_tui.records.command import Acknowledgement, Command
from forge_tui.records.plan import host_plan
from forge_tui.records.problem import Problem
from forge_tui.records.verdict import Check, Measurement, Timing, TrialError, Verdict
from forge_tui.records.views import (
    AttemptRow,
    CardRow,
    Changes,
    LlmCallRow,
    LogRow,
    ModelRow,
    NodeRow,
    RunStatus,
    SessionSummary,
)

START = 1_790_000_000.0
OPS = (
    "group_norm",
    "softmax",
    "layer_norm",
    "gelu",
    "rms_norm",
    "silu",
    "batch_norm",
    "max_pool2d",
    "embedding",
    "add",
)
SHAPES = ("1x128x256x256", "8x12x128x128", "8x128x768", "8x128x3072", "4x64x112x112", "2x960")
LABELS = (
    "split 32, vector 8",
    "merge combine into normalise",
    "one pass, Welford",
    "keep row in registers",
    "unroll 4, 2 rows a thread",
    "compiler seed, 3 loops",
)
REASONS = (
    ("numeric", "wrong: 0.3% of outputs beyond 4x eager's error"),
    ("compile error", "compile: kernel.cpp:42: 'vec8' was not declared"),
    ("out of bounds", "out of bounds: wrote 64 bytes past output 0"),
    ("timeout", "timeout after 20 s"),
)  # fmt: skip


def source_text(variant: int) -> str:
    """A C++ kernel; neighbouring variants differ in a few lines and words."""
    unroll, width = 1 << (variant % 4), 4 << (variant % 3)
    body = "\n".join(
        f"        acc{k} += x[i * {width} + {k}] * x[i * {width} + {k}];  // lane {k}" for k in range(4 + variant % 5)
    )
    return f"""#include <cmath>
#include <cstdint>
#include "card.h"

// Variant {variant}: statistics kept in registers.
static inline float reciprocal_root(float v) {{ return 1.0f / std::sqrt(v + {1e-5 * (1 + variant % 2)!r}f); }}

extern "C" int forge_launch(const forge_args* a) {{
    const float* x = static_cast<const float*>(a->inputs[0].data);
    float* y = static_cast<float*>(a->outputs[0].data);
    const int64_t rows = OUT0_SIZE0, cols = OUT0_SIZE1;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; ++r) {{
        float acc0 = 0.0f;
#pragma GCC unroll {unroll}
        for (int64_t i = 0; i < cols / {width}; ++i) {{
{body}
        }}
        const float scale = reciprocal_root(acc0 / cols);
        for (int64_t i = 0; i < cols; ++i) y[r * cols + i] = x[r * cols + i] * scale;
    }}
    return 0;
}}
"""


class FakeSource:
    """A session of `cards` cards; the first one has `nodes` nodes, the others a tenth of that."""

    def __init__(self, cards: int = 50, nodes: int = 120, state: str = "running", logs: int = 400) -> None:
        self.state = state
        self.sent: list[Command] = []
        self._cards: list[CardRow] = []
        self._nodes: dict[str, list[NodeRow]] = {}
        self._card_of: dict[str, str] = {}
        self._seq = 0
        self._changed: list[tuple[int, NodeRow]] = []
        self._log: list[LogRow] = []
        rng = random.Random(7)
        first = 0
        for k in range(cards):
            card_id = f"c{k + 1}"
            total = nodes if k == 0 else max(4, min(40, nodes // 10 + k % 5))
            rows = _tree(card_id, first, total, rng)
            first += total
            self._nodes[card_id] = rows
            self._card_of.update({row.node_id: card_id for row in rows})
            self._cards.append(_card_row(k, card_id, rows))
        ids = [row.node_id for row in self._nodes["c1"]] if cards else [""]
        for k in range(logs):
            self._log.append(_log_row(k + 1, "c1" if cards else "", ids[k % len(ids)]))
        self._seq = logs

    def grow(self, nodes: int = 1, lines: int = 1) -> None:
        """A live search goes on: new nodes on the first card, new log lines."""
        rows = self._nodes["c1"]
        for _ in range(nodes):
            number = len(rows)
            parent = rows[max(1, (number * 7) % number)]
            row = _node("c1", f"n{10_000_000 + number}", parent.node_id, number, number % 9)
            rows.append(row)
            self._card_of[row.node_id] = "c1"
            self._seq += 1
            self._changed.append((self._seq, row))
        for _ in range(lines):
            self._seq += 1
            self._log.append(_log_row(len(self._log) + 1, "c1", rows[-1].node_id))

    def seq(self) -> int:
        return self._seq

    def changes(self, since: int) -> Changes:
        if since >= self._seq:
            return Changes(self._seq)
        nodes = tuple(row for seq, row in self._changed if seq > since)
        return Changes(self._seq, nodes, cards=bool(nodes), status=True, model=False, log=True)

    def cards(self) -> Sequence[CardRow]:
        return list(self._cards)

    def nodes(self, card_id: str) -> Sequence[NodeRow]:
        return list(self._nodes.get(card_id, ()))

    def card(self, card_id: str) -> Card | None:
        row = next((c for c in self._cards if c.card_id == card_id), None)
        if row is None:
            return None
        dims = tuple(Dim(int(d), int(d)) for d in row.title.split()[1].split("x"))
        strides = tuple(math.prod(d.lo for d in dims[k + 1 :]) for k in range(len(dims)))
        spec = TensorSpec("input", dims, "float32", "contiguous", strides)
        key = VariantKey(
            f"aten::{row.op}",
            (Arg("input", "tensor", 0), Arg("dim", "int", -1), Arg("eps", "float", 1e-5)),
            (spec,),
            (replace(spec, name="output"),),
            output_alias=(-1,),
        )
        moved = 2 * spec.touched_bytes
        return Card(card_id, key, row.calls, ("encoder.layer.0", "encoder.layer.1"), (), row.op, moved, share=row.share)

    def _row(self, candidate_id: str) -> NodeRow | None:
        return next(
            (r for r in self._nodes.get(self._card_of.get(candidate_id, ""), ()) if r.node_id == candidate_id), None
        )

    def candidate(self, candidate_id: str) -> Candidate | None:
        row = self._row(candidate_id)
        if row is None or row.state == "baseline":
            return None
        parents = (Parent(row.parent_id),) if row.parent_id and not row.parent_id.startswith("e") else ()
        return Candidate(
            row.node_id, row.card_id, "cpp", "T3", source_text(row.seq), host_plan({"vector": 8, "unroll": 4}),
            "recipe" if row.seq % 3 else "llm", parents, row.attempt, row.label, "memory", 1.2, created_at=START + row.seq,
        )  # fmt: skip

    def source(self, candidate_id: str) -> str:
        row = self._row(candidate_id)
        return "" if row is None or row.state == "baseline" else source_text(row.seq)

    def verdicts(self, candidate_id: str) -> Sequence[Verdict]:
        row = self._row(candidate_id)
        return [] if row is None or row.state in ("queued", "running", "baseline") else [_verdict(row)]

    def report(self, candidate_id: str) -> dict[str, object] | None:
        row = self._row(candidate_id)
        if row is None or row.state in ("queued", "baseline"):
            return None
        return {"text_bytes": 2048 + 16 * row.seq, "stack_bytes": 96, "vector_width": 512, "symbols": ["forge_launch"]}

    def attempts(self, candidate_id: str) -> Sequence[AttemptRow]:
        row = self._row(candidate_id)
        if row is None:
            return []
        at = START + row.seq * 10
        failed = row.state == "rejected"
        return [
            AttemptRow(
                1,
                at,
                1,
                "prompt",
                "done",
                "prompt generator-3, 2,113 tokens",
                None,
                2113,
                None,
                "Make this faster.\nCard: [b]softmax[/b]",
            ),
            AttemptRow(
                2, at + 4, 1, "reply", "done", "one source block, one plan", 4.2, 862, 0.008, source_text(row.seq)
            ),
            AttemptRow(3, at + 5, 1, "compile", "done", "g++ 14.2 -O3 -march=native", 0.71),
            AttemptRow(
                4, at + 6, 1, "run", "failed" if failed else "done", row.line if failed else "8 of 8 trials", 1.3
            ),
            AttemptRow(5, at + 8, 1, "verdict", "failed" if failed else "done", row.line or "correct, timed", 6.4),
        ]

    def llm_calls(self, candidate_id: str) -> Sequence[LlmCallRow]:
        row = self._row(candidate_id)
        if row is None or row.seq % 3:
            return []
        return [LlmCallRow("l1", START, "generate", "model-x", "replied", 4.2, 2113, 862, 0.008, "prompt", "reply")]

    def _matching(self, card_id: str, candidate_id: str, levels: tuple[str, ...], text: str) -> list[LogRow]:
        return [
            r
            for r in self._log
            if (not card_id or r.card_id == card_id)
            and (not candidate_id or r.candidate_id == candidate_id)
            and (not levels or r.level in levels)
            and text.lower() in r.text.lower()
        ]

    def log(
        self,
        *,
        card_id: str = "",
        candidate_id: str = "",
        levels: tuple[str, ...] = (),
        text: str = "",
        before: int | None = None,
        after: int | None = None,
        limit: int = 500,
    ) -> Sequence[LogRow]:
        rows = self._matching(card_id, candidate_id, levels, text)
        rows = [r for r in rows if (before is None or r.seq < before) and (after is None or r.seq > after)]
        return rows[-limit:]

    def log_count(
        self, *, card_id: str = "", candidate_id: str = "", levels: tuple[str, ...] = (), text: str = ""
    ) -> int:
        return len(self._matching(card_id, candidate_id, levels, text))

    def status(self) -> RunStatus:
        return RunStatus(
            self.state, "pid 4711", "uct", 2472.0, 212, 600, 31.0, 720.0, 1.84, 5.0, 2, 412_000, 3, 1,
            "n37 timing 64/100", "full",
        )  # fmt: skip

    def model(self) -> ModelRow | None:
        return ModelRow(
            "all-MiniLM-L6-v2", "Xeon, 2 threads", 84.8, 64.6, "", 51.9, None, None, None, None, None, None, None, ""
        )

    def measurements(self, subject: str) -> Sequence[Measurement]:
        return [
            Measurement("copy bandwidth", subject, 21.4, "GB/s"),
            Measurement("compile", subject, None, "us", "timed out"),
        ]

    async def send(self, command: Command) -> Acknowledgement:
        """The owner's end: remembers the command and agrees."""
        self.sent.append(command)
        return Acknowledgement(len(self.sent), "done", f"{command.verb} {command.subject}".strip())


def _node(card_id: str, node_id: str, parent_id: str, seq: int, kind: int) -> NodeRow:
    label = LABELS[seq % len(LABELS)]
    attempt = 1 + (seq % 7 == 0)
    if kind in (2, 5):
        state, line = "rejected", REASONS[seq % len(REASONS)][1]
        return NodeRow(
            node_id, parent_id, card_id, seq, state, label, None, None, None, False, None, 1, 0.1, attempt, line
        )
    if kind == 7:
        state, line = (
            ("running", "judging: timing 64/100"),
            ("queued", "waiting for the judge"),
            ("repair", "repair 1 of 3"),
        )[seq % 3]
        return NodeRow(
            node_id, parent_id, card_id, seq, state, label, None, None, None, False, None, 0, None, attempt, line
        )
    speed = 0.8 + (seq * 37 % 100) / 40
    confirmed = kind in (0, 3)
    return NodeRow(
        node_id, parent_id, card_id, seq, "correct", label, speed, speed * 0.985, speed * 1.02, confirmed, 3672 / speed,
        1 + seq % 40, 0.5 + seq % 10 / 20, attempt, "",
    )  # fmt: skip


def _tree(card_id: str, first: int, total: int, rng: random.Random) -> list[NodeRow]:
    root = f"e{card_id}"
    rows = [NodeRow(root, "", card_id, 0, "baseline", "eager", 1.0, 1.0, 1.0, True, 3672.0, total, None, 1, "")]
    for k in range(1, total):
        parent = rows[rng.randrange(max(0, k - 12), k)] if k > 3 else rows[0]
        if parent.state in ("rejected", "running", "queued", "repair"):
            parent = rows[0]
        rows.append(_node(card_id, f"n{first + k}", parent.node_id, k, k % 9))
    best = max((r for r in rows[1:] if r.speedup and r.confirmed), key=lambda r: r.speedup or 0, default=None)
    if best is not None:
        rows[best.seq] = replace(best, state="champion")
    return rows


def _card_row(k: int, card_id: str, rows: list[NodeRow]) -> CardRow:
    op, shape = OPS[k % len(OPS)], SHAPES[k % len(SHAPES)]
    best = next((r for r in rows if r.state == "champion"), None)
    state = ("champion", "running", "tie", "refused", "waiting", "problem")[k % 6] if k else "champion"
    won = best if state == "champion" else None
    reason = {
        "refused": "registered by the user's file", "problem": "judge restarted twice: out of memory",
        "tie": "no gain in 40 attempts", "waiting": "",
    }.get(state, "")  # fmt: skip
    return CardRow(
        card_id, f"{op} {shape} f32", op, 1 + k % 24, 0.26 / (1 + k) if k % 8 != 7 else None, state, reason, 3672.0,
        None if k % 3 == 2 else 2000.0, 980.0, won.node_id if won else "", won.time_us if won else None,
        won.speedup if won else None, won.low if won else None, won.high if won else None, k % 2 == 1,
        "custom kernel" if k % 4 else "compiler-derived", len(rows), sum(r.state == "rejected" for r in rows), k % 11 == 10,
        False,
    )  # fmt: skip


def _log_row(seq: int, card_id: str, candidate_id: str) -> LogRow:
    level = ("info", "good", "warn", "debug", "info", "info", "bad" if seq % 140 == 0 else "info")[seq % 7]
    text = {
        "info": "compiled in 0.71 s, 2,113 tokens, $0.008", "good": "correct 212 µs ~1.9x, waits for confirmation",
        "warn": "rejected: numeric, 0.3% of outputs beyond 4x eager's error", "debug": "uct: value .91, prior .4, visits 7",
        "bad": "harness problem: judge did not answer its health probe, restarted",
    }[level]  # fmt: skip
    return LogRow(seq, START + seq, level, card_id, candidate_id, text)


def _verdict(row: NodeRow) -> Verdict:
    env = {"device": "Xeon, 2 threads", "torch": "2.13.0"}
    if row.state == "rejected":
        kind, line = REASONS[row.seq % len(REASONS)]
        checks = (
            Check("plan", "passed"), Check("audit", "passed"), Check("launch", "passed"),
            Check("error", "failed", line), Check("integer probe", "unknown", "not reached"), Check("installed", "unknown", "not reached"),
        )  # fmt: skip
        error = TrialError("normal/0", 0, 0.31, 0.0004, 775.0, (3, 12, 7), 1.25, -0.75, -0.7501, False)
        return Verdict(
            row.node_id,
            row.card_id,
            "sane",
            "rejected",
            Problem("candidate", kind, line),
            checks,
            (error,),
            environment=env,
        )
    rng = random.Random(row.seq)
    pairs = tuple((3672 * rng.gauss(1, 0.01), (row.time_us or 1.0) * rng.gauss(1, 0.012)) for _ in range(100))
    timing = Timing(
        3672.0, row.time_us or 0.0, row.speedup or 0.0, row.low or 0.0, row.high or 0.0, 100, 16, "batch", noise=0.004,
        threads=2, samples=pairs,
    )  # fmt: skip
    ran = ("plan", "audit", "launch", "guard", "hash", "poison", "nonfinite")
    checks = (
        *(Check(name, "passed") for name in ran),
        Check("error", "passed", "8 of 8 trials"),
        Check("nulls", "passed", "zeros rejected 8/8"),
        Check("floor", "passed", "980 µs"),
        Check("noise", "passed", "A/A ±0.4%"),
        Check("installed", "unknown", "not measured yet"),
    )
    errors = tuple(TrialError(f"normal/{k}", 0, 2.1e-7, 3.4e-7, 0.62) for k in range(8))
    return Verdict(
        row.node_id, row.card_id, "confirmed" if row.confirmed else "timed", "correct", None, checks, errors, timing,
        confirmation=row.confirmed, floor_us=980.0, environment=env, seconds=6.4,
    )  # fmt: skip


class FakeHome:
    """A home screen's sessions; opening one gives a `FakeSource`."""

    def __init__(self) -> None:
        self.deleted: list[str] = []
        self.opened: list[str] = []

    async def sessions(self) -> Sequence[SessionSummary]:
        states = ("running", "interrupted", "finished", "elsewhere", "problem")
        return [
            SessionSummary(
                f"/s/{k}", f"minilm-{k}", "all-MiniLM-L6-v2", "cpu", states[k % 5], 14, 9 - k % 5, None if k % 3 else 1.31,
                1.84 * k, START - 3600 * k, "needs a newer forge_tui" if k % 5 == 4 else "",
            )
            for k in range(7)
            if f"/s/{k}" not in self.deleted
        ]  # fmt: skip

    async def open(self, path: str) -> object:
        from forge_tui.records.problem import UserInputError
        from forge_tui.tui.source import OpenSession

        if path.endswith("broken"):
            raise UserInputError(f"{path} is damaged; restore a copy or delete it")
        self.opened.append(path)
        source = FakeSource(state="paused")
        return OpenSession(f"minilm-{path[-1]}", source, source.send, readonly=path.endswith("3"))

    async def new(self, source: str) -> object:
        from forge_tui.records.problem import UserInputError

        if not source.startswith("example:"):
            raise UserInputError(f"{source}: no such file; give a file, file.py:function or example:NAME")
        return await self.open(f"/s/{source}")

    async def delete(self, path: str) -> None:
        self.deleted.append(path)

    async def doctor(self) -> str:
        return (
            "python      3.11.7   ok\ntorch       2.13.0 (cpu)   ok\ncompiler    g++ 14.2   ok\nsandbox     full   ok\n"
        )

    async def close(self) -> None:
        """Nothing is held."""
