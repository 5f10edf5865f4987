"""A card's secret trials with their references and limits: what the judge asks, expects and accepts.

    pool = TrialPool(card, blob_dir, seed)
    usable = pool.nulls()                       # the card is tested first
    for slot in pool.schedule():                # order and placement, drawn from the seed
        inputs = pool.trials[slot.trial].tensors    # copy into the worker's buffers
        result = pool.check(slot.trial, outputs)    # outputs in the order of pool.result_names

Invariants: everything follows from (card, blobs, seed), so what memory can't hold is dropped and made again; references
are computed before any candidate runs and from the judge's own copies; a pool of one seed serves the search of a card,
confirmation takes a new pool with a new seed. Running out of memory raises MachineProblem.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from forge_tui.judge import nulls, reductions, reference, rules, trials
from forge_tui.judge.compare import CheckResult, IndexRule, Scratch, SumRule, judge_outputs
from forge_tui.judge.rules import Bounds, Conditions
from forge_tui.judge.samples import compact, generator, like, load_samples
from forge_tui.judge.trials import Trial, TrialKind
from forge_tui.records import opclass
from forge_tui.records.card import Card
from forge_tui.records.problem import HarnessProblem
from forge_tui.records.verdict import FAILED, PASSED, UNKNOWN, Check

Results = tuple[torch.Tensor, ...]
FRESH, KEPT = "fresh", "kept"
_INDEX_OPS = {"argmax": False, "argmin": False, "max": False, "min": False, "topk": True, "sort": True, "argsort": True}


@dataclass(frozen=True)
class Slot:
    """One run. placement "fresh": new buffers; "kept": the previous slot's buffers with new contents (where sizes agree)."""

    trial: int
    placement: str


@dataclass(frozen=True)
class NullsResult:
    """checks: one per null output. usable False: no speed-up may be claimed from this card; line says why."""

    checks: tuple[Check, ...]
    usable: bool
    line: str

    def __iter__(self) -> Iterator[object]:
        return iter((self.checks, self.usable, self.line))


@dataclass(frozen=True)
class _Made:
    """One trial in memory."""

    trial: Trial
    eager: Results
    limits: tuple[Bounds, ...]
    reduced: str
    nbytes: int


class _Trials(Sequence[Trial]):
    """The pool's trials, made on demand."""

    def __init__(self, pool: TrialPool) -> None:
        self._pool = pool

    def __len__(self) -> int:
        return len(self._pool.kinds)

    def __getitem__(self, i):  # type: ignore[no-untyped-def]
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        return self._pool.made(range(len(self))[i]).trial


class TrialPool:
    """Trials of one card under one seed. memory_limit: bytes of trials, references and limits kept at once."""

    def __init__(
        self, card: Card, blob_dir: Path | str, seed: str, device: str = "cpu", memory_limit: int = 1 << 30
    ) -> None:
        self.card, self.seed, self.memory_limit = card, seed, memory_limit
        self.samples = load_samples(card, Path(blob_dir), seed, device)
        if not self.samples:
            raise HarnessProblem(f"card {card.card_id} has no recorded call")
        self.rule = rules.rule_for(card.op_class)
        self.result_names = reference.result_names(card.key)
        self._kept: dict[int, _Made] = {}  # in the order they were made
        self._scratch = Scratch()
        self._nulls: NullsResult | None = None
        self.kinds: list[TrialKind] = []
        self.dropped: list[tuple[str, str]] = []
        self.reduced = ""
        self.ill_conditioned = False
        self._weak = self.rule.kind == rules.WEAK
        self._add(trials.plan(card, self.samples))
        if self.ill_conditioned:
            self._add(trials.extra(card, self.samples))

    @property
    def trials(self) -> Sequence[Trial]:
        """Name, threat and input tensors of each trial. The tensors are the judge's own: copy, never write."""
        return _Trials(self)

    @property
    def weak(self) -> bool:
        """Judged by torch's default tolerances: no class, or no reference wider than the card's own type."""
        return self._weak

    @property
    def synthetic(self) -> tuple[str, ...]:
        """Names of inputs whose captured bytes were not kept."""
        return tuple(dict.fromkeys(name for sample in self.samples for name in sample.synthetic))

    @property
    def notes(self) -> tuple[str, ...]:
        """What the screen must say beside every verdict of this card."""
        found = []
        if self.weak:
            found.append("weak: judged by torch's default tolerances")
        if self.reduced:
            found.append(f"reduced reference: {self.reduced}")
        if self.ill_conditioned:
            found.append(
                "ill-conditioned: eager's own error is larger than rounding explains, so the bound is 1.25x eager"
            )
        if self.synthetic:
            found.append(f"synthetic data: {', '.join(self.synthetic)}")
        found += [f"trial {name!r} left out: {why}" for name, why in self.dropped]
        return tuple(found)

    def expect(self, i: int) -> tuple[Results, Results]:
        """(eager, reference) of trial i, in the order of `result_names`.

        References are float64, 0 where eager or the reference is not finite; for exact results they are eager itself.
        """
        made = self.made(i)
        return made.eager, tuple(_shaped(b, e) for b, e in zip(made.limits, made.eager, strict=True))

    def check(self, i: int, outputs: Sequence[torch.Tensor]) -> CheckResult:
        """Judge one run's results (any strides; logical values are compared). Leaves `outputs` as they are."""
        made = self.made(i)
        return judge_outputs(
            made.trial.name, outputs, made.limits, self.result_names, probe=made.trial.exact,
            sums=self._sums(made), index=self._index(made), scratch=self._scratch,
        )  # fmt: skip

    def schedule(self) -> tuple[Slot, ...]:
        """Every trial once in secret order, then pairs that tell a cache apart.

        Same pointer, new content: a slot that keeps its predecessor's buffers. New pointer, same content: a trial again
        in fresh buffers. The captured data comes again last, after everything else went through the kernel.
        """
        source = generator(self.seed, "schedule")
        order = torch.randperm(len(self.kinds), generator=source).tolist()
        slots = [
            Slot(i, KEPT if place and float(torch.rand((), generator=source)) < 0.5 else FRESH)
            for place, i in enumerate(order)
        ]
        if len(order) > 1:
            slots += [Slot(order[0], KEPT), Slot(order[0], FRESH), Slot(order[1], KEPT)]
        return tuple(slots)

    def nulls(self) -> NullsResult:
        """Test the card: every null output must be rejected in at least one trial, else more trials are drawn.

        Decided once per pool.
        """
        if self._nulls is None:
            found = self._null_checks()
            if any(c.outcome == FAILED for c in found):
                self._add(trials.extra(self.card, self.samples))
                found = self._null_checks()
            passed = [c.line.split(":")[0] for c in found if c.outcome == FAILED]
            rejected = sum(c.outcome == PASSED for c in found)
            if passed:
                line = f"undiscriminating: {passed[0]} passes as a right answer, so no speed-up is claimed"
            elif rejected == 0:
                line = "undiscriminating: no null output applies to this card"
            else:
                line = f"nulls rejected {rejected}/{rejected}"
            self._nulls = NullsResult(tuple(found), not passed and rejected > 0, line)
        return self._nulls

    def made(self, i: int) -> _Made:
        """Trial i with references and limits, from memory or made again."""
        known = self._kept.get(i)
        return known if known is not None else self._keep(i, self._make(self.kinds[i]))

    # Making trials.

    def _add(self, kinds: Sequence[TrialKind]) -> None:
        for kind in kinds:
            if kind in self.kinds:
                continue
            try:
                made = self._make(kind)
            except reference.OperatorRefused as refused:
                if kind.name == "captured":
                    raise HarnessProblem(f"eager can't repeat the recorded call: {refused}") from None
                self.dropped.append((kind.name, str(refused)))
                continue
            if made.trial.exact and not self._probe_holds(made):
                self.dropped.append((kind.name, "eager itself is not exact on small integers here"))
                continue
            self.reduced = self.reduced or made.reduced
            real = kind.name in ("captured", "permuted", "redrawn")
            self.ill_conditioned |= real and any(b.ill for b in made.limits)
            self._weak |= any(b.kind == rules.WEAK for b in made.limits)
            self.kinds.append(kind)
            self._keep(len(self.kinds) - 1, made)

    def _keep(self, i: int, made: _Made) -> _Made:
        # Every candidate goes through all trials: what doesn't fit takes turns in one place and the rest stays. Dropping
        # the least recently used would drop each trial just before it is needed.
        while self._kept and made.nbytes + sum(m.nbytes for m in self._kept.values()) > self.memory_limit:
            self._kept.popitem()
        self._kept[i] = made
        return made

    def _make(self, kind: TrialKind) -> _Made:
        trial = trials.build(self.card, self.samples, kind, self.seed)
        key = self.card.key
        eager = reference.eager(key, trial.tensors)
        if self.rule.kind == rules.EXACT:
            limits = tuple(rules.exact_bounds(self.rule, e) for e in eager)
            return self._weighed(trial, eager, limits, "")
        try:
            found = reference.reference(key, trial.tensors)
        except reference.OperatorRefused as refused:
            # Nothing wider runs: eager is all there is, and the card is weak.
            found = reference.Reference(eager, True, str(refused))
        wide = found.results
        if trial.exact:
            rounded = tuple(r.to(e.dtype) for r, e in zip(wide, eager, strict=True))
            limits = tuple(rules.exact_bounds(self.rule, r) for r in rounded)
            return self._weighed(trial, eager, limits, "")
        moved = None if found.reduced else self._moved(trial)
        conditions = Conditions(
            reductions.reduction_length(self.card, trial.tensors),
            reductions.accumulator_eps(self.card),
            reductions.several_roundings(key),
        )
        limits = tuple(
            rules.bounds(self.rule, e, r, moved[n] if moved else None, conditions)
            for n, (e, r) in enumerate(zip(eager, wide, strict=True))
        )
        return self._weighed(trial, eager, limits, found.line if found.reduced else "")

    def _moved(self, trial: Trial) -> Results | None:
        """R of the same inputs with their last bit (in the accumulator's type) randomly flipped; the rule's sensitivity."""
        key = self.card.key
        if self.rule.kind == rules.ULP and not reductions.several_roundings(key):
            return None
        unit = reductions.accumulator_eps(self.card) / 2
        moved = []
        for number, tensor in enumerate(trial.tensors):
            if not tensor.is_floating_point():
                moved.append(tensor)
                continue
            values = compact(tensor).double()
            source = generator(self.seed, "moved", trial.name, number)
            signs = torch.randint(0, 2, values.shape, generator=source, dtype=torch.int8).to(
                values.device, torch.float64
            )
            moved.append(like(tensor, values * (1 + (2 * signs - 1) * unit), torch.float64))
        try:
            return reference.reference(key, tuple(moved)).results
        except reference.OperatorRefused:
            return None

    @staticmethod
    def _weighed(trial: Trial, eager: Results, limits: tuple[Bounds, ...], reduced: str) -> _Made:
        held = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
            for t in (*trial.tensors, *eager, *(t for b in limits for t in b.tensors))
        }
        return _Made(trial, eager, limits, reduced, sum(held.values()))

    @staticmethod
    def _probe_holds(made: _Made) -> bool:
        return all(torch.equal(rules.plain(e), b.eager) for e, b in zip(made.eager, made.limits, strict=True))

    # Extra rules of single classes.

    def _sums(self, made: _Made) -> SumRule | None:
        key = self.card.key
        if self.card.op_class != opclass.SOFTMAX or key.base_op.lstrip("_") not in ("softmax", "safe_softmax"):
            return None
        dim = reductions.argument(key, "dim")
        if not isinstance(dim, int) or not made.eager or made.eager[0].dim() == 0:
            return None
        eager = made.eager[0]
        eps = rules.eps_of(eager.dtype)
        own = float((eager.double().sum(dim) - 1).abs().nan_to_num(0.0, 0.0, 0.0).max()) if eager.numel() else 0.0
        return SumRule(dim, max(8 * eps * math.sqrt(eager.shape[dim]), 2 * own))

    def _index(self, made: _Made) -> IndexRule | None:
        key = self.card.key
        if self.card.op_class != opclass.SELECTION or key.base_op not in _INDEX_OPS or not made.trial.tensors:
            return None
        dim = reductions.argument(key, "dim")
        if dim is None and key.base_op in ("topk", "sort", "argsort"):
            dim = -1
        return IndexRule(made.trial.tensors[0], dim, _INDEX_OPS[key.base_op])

    # Nulls.

    def _null_checks(self) -> list[Check]:
        found = []
        for name in nulls.NULLS:
            applied = 0
            by = ""
            for i in range(len(self.kinds)):
                made = self.made(i)
                if made.trial.exact:
                    continue  # the probe is stricter than any rule; nulls must fall to the ordinary trials
                before = self.made(i - 1).eager if i else None
                made_up = nulls.build(name, nulls.Setting(self.card, made.trial, made.eager, before, self.seed))
                if made_up is None:
                    continue
                applied += 1
                if not self.check(i, made_up).passed:
                    by = made.trial.name
                    break
            if by:
                found.append(Check("nulls", PASSED, f"{name}: rejected by trial {by!r}"))
            elif applied:
                found.append(Check("nulls", FAILED, f"{name}: accepted by all {applied} trials it applies to"))
            else:
                found.append(Check("nulls", UNKNOWN, f"{name}: {nulls.why_not(name, self.card)}"))
        return found


def _shaped(limits: Bounds, eager: torch.Tensor) -> torch.Tensor:
    if limits.error is None:
        return limits.eager.view(limits.shape) if limits.eager.dtype == eager.dtype else eager
    wide = limits.reference()
    return torch.view_as_complex(wide.view(*limits.shape, 2)) if eager.is_complex() else wide.view(limits.shape)
