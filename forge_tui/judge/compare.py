"""One candidate result against the limits of its trial, with words a person or a model can act on.

Invariants: shape and dtype are compared before any number; NaN is never a wildcard; a comparison that can't run for
want of memory is a machine problem and says nothing about the candidate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from forge_tui.judge.rules import (
    BLOCK,
    EXACT,
    ULP,
    WEAK,
    WEAK_TOLERANCE,
    Bounds,
    codes_of,
    plain,
    slice_means,
    ulp_distance,
)
from forge_tui.judge.samples import dtype_name
from forge_tui.judge.wording import CODES, Words, finite, number, share, times
from forge_tui.records.problem import Problem
from forge_tui.records.verdict import FAILED, PASSED, UNKNOWN, Check, TrialError

CHUNK = 1 << 17  # elements per step: the float64 temporaries stay in the second-level cache


class Scratch:
    """A float64 buffer that is kept between comparisons: fresh pages cost more than the arithmetic on them."""

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None

    def take(self, n: int, device: torch.device) -> torch.Tensor:
        """At least n uninitialised elements, cut to n."""
        if self._buffer is None or self._buffer.numel() < n or self._buffer.device != device:
            self._buffer = torch.empty(n, dtype=torch.float64, device=device)
        return self._buffer[:n]


@dataclass(frozen=True)
class CheckResult:
    """What one trial says. problem None: passed. checks: "meta", "nonfinite", "error", "slices", "integer probe"."""

    errors: tuple[TrialError, ...]
    checks: tuple[Check, ...]
    problem: Problem | None = None

    @property
    def passed(self) -> bool:
        return self.problem is None


@dataclass(frozen=True)
class SumRule:
    """Softmax: outputs are not negative and sum to 1 along `dim` within 8 eps sqrt(n), or as well as eager's do."""

    dim: int
    allowed: float


@dataclass(frozen=True)
class IndexRule:
    """Selection: an index is judged by the value it picks, so ties are free. source: the input picked from."""

    source: torch.Tensor
    dim: int | None
    distinct: bool


def judge_outputs(
    trial: str,
    outputs: Sequence[torch.Tensor],
    limits: Sequence[Bounds],
    names: Sequence[str],
    *,
    probe: bool = False,
    sums: SumRule | None = None,
    index: IndexRule | None = None,
    scratch: Scratch | None = None,
) -> CheckResult:
    """Judge all results of one run. outputs, limits and names go in the order of `reference.result_names`."""
    if len(outputs) != len(limits):
        line = f"{len(outputs)} results arrived, the card has {len(limits)}"
        return CheckResult((), (Check("meta", UNKNOWN, line),), Problem("harness", "results", line))
    scratch = scratch or Scratch()
    errors: list[TrialError] = []
    checks: list[Check] = []
    problem: Problem | None = None
    for place, (output, limit, name) in enumerate(zip(outputs, limits, names, strict=True)):
        try:
            one = _Comparison(trial, place, name, output, limit, probe, scratch).run(sums, index)
        except (RuntimeError, MemoryError) as error:
            text = str(error)
            if not isinstance(error, MemoryError) and "memory" not in text:
                raise
            line = "unknown: out of memory while comparing the result"
            return CheckResult(
                tuple(errors), (Check("error", UNKNOWN, line),), Problem("machine", "out of memory", line)
            )
        errors += one.errors
        checks += one.checks
        problem = problem or one.problem
    return CheckResult(tuple(errors), _merged(checks), problem)


def _merged(checks: list[Check]) -> tuple[Check, ...]:
    """One check per name: failed if any failed, with the first failing line."""
    found: dict[str, Check] = {}
    for check in checks:
        known = found.get(check.name)
        if known is None or (check.outcome == FAILED and known.outcome != FAILED):
            found[check.name] = check
    return tuple(found.values())


class _Comparison:
    """One result of one trial."""

    def __init__(
        self, trial: str, number: int, name: str, output: torch.Tensor, limits: Bounds, probe: bool, scratch: Scratch
    ) -> None:
        self.trial, self.number, self.name, self.output, self.limits = trial, number, name, output, limits
        self.probe, self.scratch = probe, scratch
        self.checks: list[Check] = []
        self.words = Words(trial, name, limits)

    def run(self, sums: SumRule | None, index: IndexRule | None) -> CheckResult:
        b = self.limits
        if tuple(self.output.shape) != b.shape or self.output.dtype != b.dtype:
            got = f"{dtype_name(self.output.dtype)} {list(self.output.shape)}"
            line = f"{self.name} is {got}, expected {dtype_name(b.dtype)} {list(b.shape)} (trial {self.trial!r})"
            self.checks.append(Check("meta", FAILED, line))
            return CheckResult((), tuple(self.checks), Problem("candidate", "numeric", line))
        self.checks.append(Check("meta", PASSED))
        flat = plain(self.output)
        if flat.numel() == 0:
            return self._passed("error", TrialError(self.trial, self.number, None, None, None))
        if b.kind == EXACT:
            return self._exact(flat, index)
        spoiled = self._nonfinite(flat)
        if spoiled is not None:
            return self._failed("nonfinite", spoiled, "non-finite", None)
        if b.kind == ULP:
            return self._ulp(flat)
        if b.kind == WEAK:
            return self._weak(flat)
        return self._ratio(flat, sums)

    # Exact classes.

    def _exact(self, flat: torch.Tensor, index: IndexRule | None) -> CheckResult:
        wrong = flat != self.limits.eager
        if flat.is_floating_point():
            wrong &= ~(torch.isnan(flat) & torch.isnan(self.limits.eager))
        if index is not None and not flat.is_floating_point() and bool(wrong.any()):
            wrong = self._wrong_picks(index)
        if not bool(wrong.any()):
            return self._passed("integer probe" if self.probe else "error", self._error(flat, None, 0.0, passed=True))
        where = int(wrong.to(torch.uint8).argmax())
        line = self.words.sentence(flat, wrong, where)
        if self.probe:
            line += "; small integers add up exactly in any order, so inputs or sums were rounded"
        return self._failed(
            "integer probe" if self.probe else "error", line, "numeric", self._error(flat, where, None, False)
        )

    def _wrong_picks(self, rule: IndexRule) -> torch.Tensor:
        got, source = self.output.to(torch.int64), rule.source
        want = self.limits.eager.view(self.limits.shape).to(torch.int64)
        dim = rule.dim
        if dim is None:
            source, got, want, dim = source.reshape(-1), got.reshape(-1), want.reshape(-1), 0
        keep = got.dim() == source.dim()
        legal = (got >= 0) & (got < source.shape[dim])
        safe = torch.where(legal, got, torch.zeros_like(got))
        left, right = (safe, want) if keep else (safe.unsqueeze(dim), want.unsqueeze(dim))
        picked, wanted = source.gather(dim, left), source.gather(dim, right)
        same = picked == wanted
        if picked.is_floating_point():
            same |= torch.isnan(picked) & torch.isnan(wanted)
        wrong = ~legal | ~(same if keep else same.squeeze(dim))
        if rule.distinct and keep:
            ordered = got.sort(dim).values
            repeated = (ordered.narrow(dim, 1, got.shape[dim] - 1) == ordered.narrow(dim, 0, got.shape[dim] - 1)).any()
            if bool(repeated):
                wrong = torch.ones_like(wrong)
        return wrong.reshape(-1)

    # Rounded classes.

    def _nonfinite(self, flat: torch.Tensor) -> str | None:
        codes = self.limits.codes
        if codes is None:
            # The sum is finite only if all elements are, except when it overflows: then look closely.
            if math.isfinite(float(flat.sum(dtype=torch.float64))):
                self.checks.append(Check("nonfinite", PASSED))
                return None
            expected = torch.zeros(flat.numel(), dtype=torch.int8, device=flat.device)
            got = codes_of(flat)
            wrong = got != 0
        else:
            got, expected = codes_of(flat), codes[0]
            # Where eager and the reference differ (eager overflowed, or spread a NaN) both are accepted.
            wrong = (got != expected) & (got != codes[1])
        count = int(wrong.sum())
        if count == 0:
            self.checks.append(Check("nonfinite", PASSED))
            return None
        where = int(wrong.to(torch.uint8).argmax())
        got_word, want_word = CODES[int(got[where])], CODES[int(expected[where])]
        return (
            f"{self.name} is {got_word} where eager is {want_word} at {list(self.words.index(where))} "
            f"({count} of {flat.numel()} places, trial {self.trial!r}): got {number(flat[where])}, "
            f"eager {number(self.limits.eager[where])}"
        )

    def _ulp(self, flat: torch.Tensor) -> CheckResult:
        b = self.limits
        assert b.error is not None
        squares = self.scratch.take(flat.numel(), flat.device)
        wrong = torch.zeros(flat.numel(), dtype=torch.bool, device=flat.device)
        for start in range(0, flat.numel(), CHUNK):
            piece, wide = flat[start : start + CHUNK], b.reference(start, start + CHUNK)
            slack = b.error[start : start + CHUNK].abs().mul_(2)
            if b.slack is not None:
                slack = torch.maximum(slack, b.slack[start : start + CHUNK])
            d = piece.to(torch.float64, copy=True).sub_(wide)
            if b.masked is not None:
                d.masked_fill_(b.masked[start : start + CHUNK], 0.0)
            torch.mul(d, d, out=squares[start : start + CHUNK])
            beyond = d.abs_() > slack
            if bool(beyond.any()):
                beyond &= ulp_distance(piece, wide.to(flat.dtype)) > b.rule.ulps
                if b.masked is not None:
                    beyond &= ~b.masked[start : start + CHUNK]
                wrong[start : start + CHUNK] = beyond
        rms = math.sqrt(float(squares.mean()))
        if not bool(wrong.any()):
            return self._passed("error", self._error(flat, int(squares.argmax()), rms, True))
        where = int(wrong.to(torch.uint8).argmax())
        line = self.words.sentence(flat, wrong, where) + f"; one rounding allows {b.rule.ulps} unit in the last place"
        return self._failed("error", line, "numeric", self._error(flat, where, rms, False))

    def _weak(self, flat: torch.Tensor) -> CheckResult:
        b = self.limits
        rtol, atol = WEAK_TOLERANCE[dtype_name(b.dtype)] if not b.dtype.is_complex else WEAK_TOLERANCE["float32"]
        blocks = b.slices.get("block")
        scale: torch.Tensor | float = b.rms_reference
        if blocks is not None:
            scale = blocks.repeat_interleave(BLOCK)[: flat.numel()]
        wide = b.reference()
        allowed = wide.abs().mul_(rtol).add_(scale * atol)
        d = flat.to(torch.float64, copy=True).sub_(wide)
        to_eager = (flat.double() - b.eager.double()).abs_()
        if b.masked is not None:
            d.masked_fill_(b.masked, 0.0)
            to_eager.masked_fill_(b.masked, 0.0)
        wrong = (d.abs() > allowed) & (to_eager > allowed)
        rms = math.sqrt(float((d * d).mean()))
        if not bool(wrong.any()):
            return self._passed("error", self._error(flat, int(d.abs_().argmax()), rms, True))
        where = int(wrong.to(torch.uint8).argmax())
        line = self.words.sentence(flat, wrong, where) + "; torch's default tolerance (weak card)"
        return self._failed("error", line, "numeric", self._error(flat, where, rms, False))

    def _ratio(self, flat: torch.Tensor, sums: SumRule | None) -> CheckResult:
        b = self.limits
        n = flat.numel()
        squares = self.scratch.take(n, flat.device)
        count, first = 0, -1
        for start in range(0, n, CHUNK):
            wide = b.reference(start, start + CHUNK)
            d = flat[start : start + CHUNK].to(torch.float64, copy=True).sub_(wide)
            if b.masked is not None:
                d.masked_fill_(b.masked[start : start + CHUNK], 0.0)
            torch.mul(d, d, out=squares[start : start + CHUNK])
            beyond = d.abs_() > wide.abs().mul_(b.slope).add_(b.constant)
            here = int(beyond.sum())
            if here and first < 0:
                first = start + int(beyond.to(torch.uint8).argmax())
            count += here
        rms = math.sqrt(float(squares.mean()))
        means = slice_means(squares, b.shape + ((2,) if b.dtype.is_complex else ()))
        failing = {name: (mean.sqrt() > b.slices[name]) for name, mean in means.items()}
        failing = {name: wrong for name, wrong in failing.items() if bool(wrong.any())}
        worst = self._worst(squares, means)
        too_large = not rms <= b.limit
        if (count or failing or too_large) and self._close_enough(flat):
            count, failing, too_large = 0, {}, False
        ratio = f"rms error {times(rms, b.rms_eager)}"
        if count or too_large:
            where = first if first >= 0 else worst
            lead = f"{share(count, n)} outside the bound, first at" if count else "worst at"
            line = (
                f"{self.name}: {ratio} (limit {times(b.limit, b.rms_eager)}); {lead} {self.words.values(flat, where)}"
            )
            line += self.words.place(flat, failing)
            return self._failed("error", line, "numeric", self._error(flat, worst, rms, False))
        self.checks.append(Check("error", PASSED, ratio))
        if failing:
            line = f"{self.name}: the whole is within the bound ({ratio}), but not{self.words.place(flat, failing, '')}"
            line += f"; worst at {self.words.values(flat, worst)}"
            return self._failed("slices", line, "numeric", self._error(flat, worst, rms, False))
        if means:
            self.checks.append(Check("slices", PASSED, f"{sum(m.numel() for m in means.values())} slices"))
        error = self._error(flat, worst, rms, True)
        if sums is not None:
            line = self._sum_line(sums)
            if line:
                return self._failed("error", line, "numeric", error)
        return CheckResult((error,), tuple(self.checks))

    def _close_enough(self, flat: torch.Tensor) -> bool:
        """Float32 of a class that allows a few units in the last place: then the ratio to a lucky eager says nothing."""
        b = self.limits
        if not b.rule.ulps or b.dtype != torch.float32:
            return False
        distance = ulp_distance(flat, b.reference().float())
        if b.masked is not None:
            distance.masked_fill_(b.masked, 0)
        return int(distance.max()) <= b.rule.ulps

    def _sum_line(self, rule: SumRule) -> str:
        if bool((self.output < 0).any()):
            return f"{self.name}: a probability is negative (trial {self.trial!r})"
        off = (self.output.double().sum(rule.dim) - 1).abs_()
        worst = float(off.nan_to_num_(0.0, 0.0, 0.0).max())
        if worst > rule.allowed:
            return f"{self.name}: a row sums to 1 only within {worst:.3g}, allowed {rule.allowed:.3g} (trial {self.trial!r})"
        return ""

    def _worst(self, squares: torch.Tensor, means: dict[str, torch.Tensor]) -> int:
        blocks = means.get("block")
        if blocks is None:
            return int(squares.argmax())
        start = min(int(blocks.argmax()) * BLOCK, squares.numel() - BLOCK)
        return int(start + int(squares[start : start + BLOCK].argmax()))

    def _error(self, flat: torch.Tensor, where: int | None, rms: float | None, passed: bool) -> TrialError:
        b = self.limits
        eager_rms = None if b.kind == EXACT else b.rms_eager
        ratio = rms / eager_rms if rms is not None and eager_rms else None
        if where is None:
            return TrialError(self.trial, self.number, rms, eager_rms, ratio, passed=passed)
        expected = b.reference(where, where + 1)[0]
        return TrialError(
            self.trial, self.number, finite(rms), eager_rms, finite(ratio), self.words.index(where),
            finite(float(flat[where])), finite(float(expected)), finite(float(b.eager[where])), passed,
        )  # fmt: skip

    def _passed(self, check: str, error: TrialError) -> CheckResult:
        self.checks.append(Check(check, PASSED))
        return CheckResult((error,), tuple(self.checks))

    def _failed(self, check: str, line: str, kind: str, error: TrialError | None) -> CheckResult:
        self.checks.append(Check(check, FAILED, line))
        error = error or TrialError(self.trial, self.number, None, self.limits.rms_eager, None, passed=False)
        return CheckResult((error,), tuple(self.checks), Problem("candidate", kind, line))
