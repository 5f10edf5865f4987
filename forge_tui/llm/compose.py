"""Prompts: readable files with a version, filled from the card and the node. Only metadata and statistics of tensors go in."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import resources
from string import Template

from forge_tui.records.candidate import Candidate
from forge_tui.records.card import Arg, Card, TensorBlob, TensorSpec, VariantKey
from forge_tui.records.plan import symbols_of
from forge_tui.records.problem import Problem
from forge_tui.records.verdict import Verdict

MAX_DETAIL = 4000
MAX_SOURCE = 24_000
TAGS = {"cpp": "cpp", "cuda": "cuda", "triton": "python"}
REPLY_FORMS = {
    "cpp": '{"plan": {"version": 1, "steps": [{"kind": "host"}], "workspace": {"bytes": "0"}},\n "technique": "a few words", "target": "the bottleneck it removes", "expected_gain": 1.2}',
    "cuda": '{"plan": {"version": 1, "steps": [{"kind": "kernel", "kernel": "name", "grid": ["ceildiv(in0_numel, 1024)", "1", "1"], "block": ["256", "1", "1"],\n   "args": [{"kind": "input", "index": 0}, {"kind": "output", "index": 0}, {"kind": "scalar", "ctype": "i64", "value": "in0_numel"}]}]},\n "technique": "a few words", "target": "the bottleneck it removes", "expected_gain": 1.2}',
}


@dataclass(frozen=True)
class Context:
    """What a prompt may use. header: text of card.h; machine: one line; failed: earlier approaches that failed here, one line each."""

    card: Card
    language: str
    header: str
    machine: str
    threads: int
    node: Candidate | None = None
    problem: Problem | None = None
    verdict: Verdict | None = None
    failed: tuple[str, ...] = field(default_factory=tuple)


def compose(context: Context) -> tuple[str, tuple[dict[str, str], ...], str]:
    """(purpose, messages, prompt version). Purpose: generate, repair (a node with a problem) or optimise (a correct node)."""
    purpose = "generate" if context.node is None else ("repair" if context.problem is not None else "optimise")
    tag = TAGS[context.language]
    values = {
        "tag": tag,
        "reply_form": REPLY_FORMS.get(context.language, REPLY_FORMS["cuda"]),
        "card": describe(context.card),
        "threads": str(context.threads),
        "machine": context.machine,
        "header": context.header,
        "source": (context.node.source if context.node else "")[:MAX_SOURCE],
    }
    notes_version, notes = _read(context.language)
    values["language_notes"] = Template(notes).safe_substitute(values)
    if context.problem is not None:
        values |= {"kind": context.problem.kind, "line": context.problem.line, "detail": quoted(context.problem.detail)}
    values["timing"] = _timing(context.verdict)
    values["failed"] = (
        "\nAlready tried here without success:\n" + "\n".join(f"- {line}" for line in context.failed[-8:])
        if context.failed
        else ""
    )
    system_version, system = _read("system")
    version, text = _read(purpose)
    messages = (
        {"role": "system", "content": Template(system).safe_substitute(values)},
        {"role": "user", "content": Template(text).safe_substitute(values)},
    )
    return purpose, messages, f"{system_version} {version} {notes_version}"


def quoted(text: str) -> str:
    """Output of a compiler or a worker as data: control bytes gone, capped in the middle, every line marked."""
    clean = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    if len(clean) > MAX_DETAIL:
        clean = clean[: MAX_DETAIL // 2] + "\n[...]\n" + clean[-MAX_DETAIL // 2 :]
    return "\n".join("> " + line for line in clean.splitlines())


def describe(card: Card) -> str:
    """The operator call in words: arguments in schema order, results, symbols, value statistics."""
    key = card.key
    lines = [f"Operator: {key.op}, called {card.calls} times per run of the model."]
    stats = card.samples[0].tensors if card.samples else ()
    lines += ["Arguments, in the operator's order:"]
    lines += [f"- {arg.name}: {_argument(arg, key, stats)}" for arg in key.args]
    lines.append("Inputs array: " + (", ".join(f"[{i}] {t.name}" for i, t in enumerate(key.tensors)) or "none"))
    if key.mutates:
        lines.append("In place: write " + ", ".join(f"inputs[{i}]" for i in key.mutates) + "; there are no outputs.")
    else:
        lines.append("Outputs array: " + ", ".join(f"[{i}] {_spec(t)}" for i, t in enumerate(key.outputs)))
    lines.append(
        "Scalars array: " + (", ".join(f"[{i}] {a.name} = {a.value!r}" for i, a in enumerate(key.scalars)) or "none")
    )
    names = [f"{name} = {value}" for name, value in symbols_of(key).items() if "size" in name or "numel" in name]
    lines.append("Size symbols: " + ", ".join(names))
    return "\n".join(lines)


def _argument(arg: Arg, key: VariantKey, stats: tuple[TensorBlob, ...]) -> str:
    if arg.kind == "tensor":
        text = _spec(key.tensors[arg.value])
        if arg.value < len(stats) and stats[arg.value].stats:
            mean, std, low, high = stats[arg.value].stats[:4]
            text += f", values about {mean:.3g} +- {std:.3g} in [{low:.3g}, {high:.3g}]"
        return text
    if arg.kind == "tensor_list":
        return "list of " + "; ".join(_spec(key.tensors[i]) if i >= 0 else "None" for i in arg.value)
    if arg.kind == "number":
        return f"the number {arg.value[1]!r}"
    return "None" if arg.kind == "none" else f"{arg.value!r}"


def _spec(spec: TensorSpec) -> str:
    shape = "x".join(str(d.lo) if d.exact else f"{d.symbol}({d.lo}..{d.hi})" for d in spec.dims) or "scalar"
    role = " (parameter)" if spec.parameter else ""
    return f"{spec.dtype} [{shape}], strides {list(spec.strides)}, {spec.alignment}-byte aligned{role}"


def _timing(verdict: Verdict | None) -> str:
    if verdict is None or verdict.timing is None:
        return "no time yet"
    t = verdict.timing
    floor = f"; no kernel can be faster than about {verdict.floor_us:.1f} us here" if verdict.floor_us else ""
    return f"{t.candidate_us:.2f} us a call, PyTorch {t.baseline_us:.2f} us ({t.speedup:.2f}x, 95% interval {t.low:.2f} to {t.high:.2f}){floor}"


def _read(name: str) -> tuple[str, str]:
    text = resources.files("forge_tui.llm").joinpath(f"prompts/{name}.md").read_text(encoding="utf-8")
    head, _, body = text.partition("\n---\n")
    return head.removeprefix("version: ").strip(), body
