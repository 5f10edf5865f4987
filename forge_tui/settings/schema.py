"""Every setting, declared once.

A section is a frozen dataclass; each field carries its meaning, range or choices and whether a change needs a new
run. `entries()` walks them for the settings screen and the docs; `check` turns text or a TOML value into the
declared type, or says what is wrong with it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

STRATEGIES = ("uct", "puct", "greedy", "best_of_n", "kernel_forge")
NO_LIMIT = "none"  # how TOML, the environment and flags spell an absent limit


def _setting(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
    restart: bool = False,
) -> Any:
    return field(
        default=default,
        metadata={"doc": doc, "low": low, "high": high, "choices": tuple(choices), "restart": restart},
    )


@dataclass(frozen=True)
class Run:
    """Where and with what a model runs."""

    python: str = _setting("", "interpreter that has the model's torch; empty: the one found at set-up", restart=True)
    device: str = _setting("cpu", 'device of the model: "cpu", "cuda:0"', restart=True)
    threads: int = _setting(0, "CPU threads for everything that is timed; 0: the cores this process may use", low=0, high=1024, restart=True)  # fmt: skip
    seed: int = _setting(0, "seed of the search; the judge's seeds are secret and its own", low=0)
    width: int = _setting(4, "candidates in flight at once", low=1, high=64)
    max_cards: int = _setting(16, "operator cards worked on, largest share of time first", low=1, high=10_000)
    min_share: float = _setting(0.002, "cards below this part of the model's time are left alone", low=0.0, high=1.0)
    capture_bytes: int = _setting(2 << 30, "captured tensors kept on disk, in bytes", low=0)
    compile_baseline: bool = _setting(True, "time torch.compile of the whole model after the search")
    compile_cards: bool = _setting(True, "time torch.compile of every card that has a champion, after the search")
    compile_limit_s: float = _setting(120.0, "seconds torch.compile may take for one card", low=1.0, high=3600.0)


@dataclass(frozen=True)
class Search:
    """Which node is expanded next, and when a card is done."""

    strategy: str = _setting("uct", "rule that chooses the next node", choices=STRATEGIES)
    c: float = _setting(0.7, "exploration constant of UCT and PUCT", low=0.0, high=100.0)
    widen_k: float = _setting(1.0, "progressive widening: children <= k * visits^alpha", low=0.01, high=100.0)
    alpha_start: float = _setting(0.5, "widening exponent at the start of the budget", low=0.0, high=1.0)
    alpha_end: float = _setting(0.3, "widening exponent at the end of the budget", low=0.0, high=1.0)
    max_share: float = _setting(0.5, "weight of the best result below a node against the mean", low=0.0, high=1.0)
    fail_reward: float = _setting(-0.5, "reward of a failed candidate, as a log speed-up", low=-10.0, high=0.0)
    dead_end: int = _setting(3, "failures in a row after which a node is given up", low=1, high=1000)
    stagnation: int = _setting(10, "visits without a gain after which a subtree is pruned", low=1, high=100_000)
    repairs: int = _setting(2, "repairs of one rejected draft by a language model", low=0, high=20)
    sol_eps: float = _setting(0.25, "stop a card within this factor above its speed of light", low=0.0, high=100.0)
    no_gain: int = _setting(12, "stop a card after this many candidates without a gain", low=1, high=100_000)
    amdahl: float = _setting(0.005, "stop a card that can save less than this part of the model's time", low=0.0, high=1.0)  # fmt: skip


@dataclass(frozen=True)
class Budget:
    """What a run may use. "none" means no limit."""

    attempts: int = _setting(24, "candidates per card", low=1, high=1_000_000)
    total_attempts: int = _setting(400, "candidates over all cards", low=1, high=10_000_000)
    minutes: float | None = _setting(None, "wall time of the search in minutes", low=0.0)
    dollars: float | None = _setting(5.0, "money for language models, in US dollars; a call that could exceed it is not made", low=0.0)  # fmt: skip
    tokens: int | None = _setting(2_000_000, "tokens of language models, in and out", low=0)
    calls: int | None = _setting(None, "calls of language models", low=0)


@dataclass(frozen=True)
class Llm:
    """The language model, through LiteLLM. Keys are read from the environment, never from here."""

    model: str = _setting("", 'LiteLLM model that writes kernels, such as "openai/NAME"; empty: none is used')
    api_base: str = _setting("", "address of an OpenAI-compatible server; empty: the provider's own")
    temperature: float | None = _setting(None, '"none": the provider\'s default', low=0.0, high=2.0)
    max_tokens: int = _setting(8192, "longest reply, in tokens", low=256, high=1_000_000)
    timeout_s: float = _setting(300.0, "seconds to wait for a reply", low=1.0, high=3600.0)
    parallel: int = _setting(2, "calls in flight at once", low=1, high=64)
    price_in: float | None = _setting(None, 'US dollars per million prompt tokens; "none": LiteLLM\'s price list', low=0.0)  # fmt: skip
    price_out: float | None = _setting(None, 'US dollars per million reply tokens; "none": LiteLLM\'s price list', low=0.0)  # fmt: skip


@dataclass(frozen=True)
class Proposers:
    """Who writes candidates."""

    recipes: bool = _setting(True, "built-in kernels with tunables")
    llm: bool = _setting(True, "a language model, when llm.model names one")
    inbox: bool = _setting(False, "files that a person or an agent puts into the session's inbox")


@dataclass(frozen=True)
class Judge:
    """How candidates are tested and timed."""

    search_pairs: int = _setting(20, "timing pairs of a candidate during the search", low=5, high=10_000)
    confirm_pairs: int = _setting(100, "timing pairs of a confirmation", low=20, high=100_000)
    confirm_seconds: float = _setting(10.0, "longest timing of a confirmation, in seconds", low=0.5, high=3600.0)
    time_limit_s: float = _setting(20.0, "seconds one candidate may run before it is stopped", low=1.0, high=3600.0)
    other_cores: float | None = _setting(0.3, 'a CPU measurement counts only while other processes use less than this many cores; "none": always', low=0.0)  # fmt: skip
    model_pairs: int = _setting(40, "timing pairs of the whole model", low=5, high=10_000)
    model_seconds: float = _setting(30.0, "longest timing of the whole model, in seconds", low=1.0, high=36_000.0)


@dataclass(frozen=True)
class Sandbox:
    """What code from outside may do on this machine."""

    trust_host_code: bool = _setting(
        False, "your consent to run host code of a language model or the inbox below the full sandbox profile"
    )


@dataclass(frozen=True)
class Ui:
    """The screen."""

    theme: str = _setting("forge-dark", "theme of the screen: a built-in one, or a file in the themes folder")
    ascii: bool = _setting(False, "letters instead of glyphs")
    mouse: bool = _setting(True, "mouse support; off lets the terminal select text by itself")
    animation: bool = _setting(False, "moving and fading; costs tens of kilobytes a keypress over SSH")
    flush_hz: float = _setting(8.0, "screen updates a second while data arrives", low=0.5, high=30.0)
    follow: bool = _setting(True, "the tree's cursor follows the search")
    notify: str = _setting("blurred", "tell when long work ends", choices=("always", "blurred", "never"))
    on_hangup: str = _setting("keep", "what a run does when its terminal goes away", choices=("keep", "stop"))


@dataclass(frozen=True)
class Settings:
    """All settings. keys: action id -> keys, comma-separated ("session.pause" = "space,P"); checked by the screen."""

    run: Run = Run()
    search: Search = Search()
    budget: Budget = Budget()
    llm: Llm = Llm()
    proposers: Proposers = Proposers()
    judge: Judge = Judge()
    sandbox: Sandbox = Sandbox()
    ui: Ui = Ui()
    keys: dict[str, str] = field(default_factory=dict)

    def flat(self) -> dict[str, Any]:
        """key -> value, the keymap left out: what a run event stores."""
        return {entry.key: self.get(entry.key) for entry in entries()}

    def get(self, key: str) -> Any:
        """Value of "section.name". Raises KeyError for an unknown key."""
        section, _, name = key.partition(".")
        if key not in known():
            raise KeyError(key)
        return getattr(getattr(self, section), name)

    def with_value(self, key: str, value: Any) -> Settings:
        """A copy with one value changed. Raises ValueError when it doesn't fit, KeyError for an unknown key."""
        section, _, name = key.partition(".")
        fitted = known()[key].check(value)
        return dataclasses.replace(self, **{section: dataclasses.replace(getattr(self, section), **{name: fitted})})


@dataclass(frozen=True)
class Entry:
    """One setting as the settings screen shows it. kind: "bool", "int", "float" or "str"."""

    key: str
    section_doc: str
    kind: str
    optional: bool
    default: Any
    doc: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    restart: bool

    @property
    def environment(self) -> str:
        return "FORGE_" + self.key.upper().replace(".", "_")

    @property
    def allowed(self) -> str:
        """The range or the choices, in words."""
        if self.choices:
            return ", ".join(self.choices)
        if self.kind == "bool":
            return "true, false"
        kind = {"int": "whole number", "float": "number", "str": "text"}[self.kind]
        if self.low is not None and self.high is not None:
            kind += f" {self.low:g} to {self.high:g}"
        elif self.low is not None:
            kind += f" from {self.low:g}"
        return f'{kind} or "{NO_LIMIT}"' if self.optional else kind

    def check(self, value: Any) -> Any:
        """`value` (text, or a TOML value) as the declared type. Raises ValueError that says what is allowed."""
        if self.optional and (value is None or (isinstance(value, str) and value.strip().lower() == NO_LIMIT)):
            return None
        try:
            fitted = _convert(self.kind, value)
        except ValueError:
            raise ValueError(f"{value!r} is not allowed for {self.key}; allowed: {self.allowed}") from None
        too_low = self.low is not None and fitted < self.low
        too_high = self.high is not None and fitted > self.high
        if too_low or too_high or (self.choices and fitted not in self.choices):
            raise ValueError(f"{value!r} is not allowed for {self.key}; allowed: {self.allowed}")
        return fitted


def _convert(kind: str, value: Any) -> Any:
    if kind == "bool":
        words = {
            "true": True,
            "yes": True,
            "on": True,
            "1": True,
            "false": False,
            "no": False,
            "off": False,
            "0": False,
        }
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in words:
            return words[value.strip().lower()]
        raise ValueError
    if isinstance(value, bool):
        raise ValueError
    if kind == "str":
        if not isinstance(value, str) or any(not c.isprintable() for c in value):
            raise ValueError
        return value
    if kind == "int":
        if isinstance(value, int):
            return value
        if isinstance(value, str) and value.isascii():
            return int(value)
        raise ValueError
    if not isinstance(value, (int, float, str)):
        raise ValueError
    try:
        number = float(value)
    except OverflowError:
        raise ValueError from None
    if not math.isfinite(number):
        raise ValueError
    return number


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Every setting in the order of declaration."""
    found = []
    hints = typing.get_type_hints(Settings)
    for section in dataclasses.fields(Settings):
        cls = hints[section.name]
        if not dataclasses.is_dataclass(cls):
            continue
        kinds = typing.get_type_hints(cls)
        for item in dataclasses.fields(cls):
            kind, optional = _kind(kinds[item.name])
            meta = item.metadata
            found.append(
                Entry(
                    f"{section.name}.{item.name}",
                    (cls.__doc__ or "").strip(),
                    kind,
                    optional,
                    item.default,
                    meta["doc"],
                    meta["low"],
                    meta["high"],
                    meta["choices"],
                    meta["restart"],
                )
            )
    return tuple(found)


def _kind(hint: Any) -> tuple[str, bool]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = next(kind for kind in typing.get_args(hint) if kind is not type(None))
        return inner.__name__, True
    return hint.__name__, False


def known() -> dict[str, Entry]:
    """key -> entry."""
    return {entry.key: entry for entry in entries()}


def text_of(value: Any) -> str:
    """A value as TOML spells it."""
    if value is None:
        return f'"{NO_LIMIT}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    return repr(value)


def quoted(text: str) -> str:
    """A TOML basic string (toml.io v1.0, "String")."""
    out = []
    for char in text:
        if char in ('"', "\\"):
            out.append("\\" + char)
        elif ord(char) < 0x20 or ord(char) == 0x7F:
            out.append(f"\\u{ord(char):04X}")
        else:
            out.append(char)
    return '"' + "".join(out) + '"'


def docs() -> str:
    """A Markdown table of every setting."""
    lines = ["| setting | default | allowed | meaning |", "| --- | --- | --- | --- |"]
    for entry in entries():
        meaning = entry.doc + (" (takes effect with the next run)" if entry.restart else "")
        cells = (f"`{entry.key}`", f"`{text_of(entry.default)}`", entry.allowed, meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines.append('| `keys.ACTION` | | keys, comma-separated | keys of an action, such as `keys."session.pause"` |')
    return "\n".join(lines) + "\n"
