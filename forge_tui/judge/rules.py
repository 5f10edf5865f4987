"""The error rule: how far a result may be from the float64 reference, as a multiple of eager's own error.

Source: KernelBench #165 shows what a fixed tolerance lets through; the multiple of eager's error follows torch dynamo's
`same` (2x in float32) and FlashAttention's tests. For one result C with reference R and eager E:

  whole    rms(C-R) <= m * max(rms(E-R), s) + f
  element  |C-R|   <= 2m * max(max|E-R|, 3s) + 2 eps |R| + 4f + one smallest step, at every element
  slices   the whole rule on rows, columns, channels and 64-element blocks, with 2m

m is 2 (3 below 1000 effective elements, 8 for a handful, 1.25 when eager itself is worse than rounding explains: "ill-conditioned").
s, the sensitivity, is what flipping the last bit of every input does to R in the type the operator accumulates in, times
the growth of a plain loop: eager may be exactly right in one row by luck, and an honest kernel there must not be held
to an error of zero.
f, the floor, is a fraction of one unit in the last place of R's rms. All limits depend on trial data only, so they are
computed once per trial; judging a candidate is one pass over its output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from forge_tui.judge.samples import dtype_name
from forge_tui.records import opclass
from forge_tui.records.dtype import EPS

EXACT, ULP, RATIO, WEAK = "exact", "ulp", "ratio", "weak"
BLOCK = 64
FEW, VERY_FEW = 1000, 16  # dynamo's `same` relaxes m to 3 below 1000 outputs and to 8 or 10 for a handful
TF32_EPS = 9.8e-4
ILL_M = 1.25

# torch.testing's defaults, for cards without a class or without a wider reference: dtype -> (rtol, atol).
# float64 is tighter than torch's 1e-7, which a result rounded to float32 would pass.
WEAK_TOLERANCE = {
    "float64": (1e-12, 1e-12), "float32": (1.3e-6, 1e-5), "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5),
    "float8_e4m3fn": (1.25e-1, 1e-2), "float8_e5m2": (2.5e-1, 1e-2),
}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """How one operator class is judged. ulps: float32 results this close to R pass whatever the ratio says."""

    op_class: str
    kind: str
    m: float = 2.0
    ulps: int = 0


RULES = {
    opclass.EXACT: Rule(opclass.EXACT, EXACT),
    opclass.INTEGER: Rule(opclass.INTEGER, EXACT),
    opclass.SELECTION: Rule(opclass.SELECTION, EXACT),
    opclass.ONE_ROUNDING: Rule(opclass.ONE_ROUNDING, ULP, ulps=1),
    opclass.TRANSCENDENTAL: Rule(opclass.TRANSCENDENTAL, RATIO, ulps=4),
    opclass.REDUCTION_NORM: Rule(opclass.REDUCTION_NORM, RATIO),
    opclass.SOFTMAX: Rule(opclass.SOFTMAX, RATIO),
    opclass.MATMUL: Rule(opclass.MATMUL, RATIO),
    opclass.CONV: Rule(opclass.CONV, RATIO),
    opclass.ATTENTION: Rule(opclass.ATTENTION, RATIO),
    opclass.POOL_AVERAGE: Rule(opclass.POOL_AVERAGE, RATIO),
}
WEAK_RULE = Rule("", WEAK)


def rule_for(op_class: str) -> Rule:
    """The rule of a class; cards without a class get torch's default tolerances and are labelled weak."""
    return RULES.get(op_class, WEAK_RULE)


@dataclass(frozen=True)
class Bounds:
    """Everything the rule needs about one result of one trial. Flat tensors are in logical (row-major) order.

    kind: the rule in force (a ratio rule without a wider reference falls back to "weak").
    eager: E, flat, own dtype. error: E - R, flat, float32 (float64 for float64 results), 0 where E or R is not finite; None
        for exact results. R is E - error: half the memory of R itself, and as exact, since the error is a few units at most.
    masked: bool, True where E or R is not finite; None when all are finite.
    codes: per element of E and of R rounded to the dtype 0 finite, 1 NaN, 2 +Inf, 3 -Inf; None when all are finite.
    limit: bound of rms(C-R). constant, slope: the element rule, constant + slope * |R|. slack: extra per element.
    slices: name -> bound of the rms of each slice.
    relative_error: eager's rms error over R's rms; None for exact results.
    """

    kind: str
    rule: Rule
    shape: tuple[int, ...]
    dtype: torch.dtype
    eager: torch.Tensor
    error: torch.Tensor | None = None
    masked: torch.Tensor | None = None
    codes: tuple[torch.Tensor, torch.Tensor] | None = None
    m: float = 2.0
    ill: bool = False
    rms_reference: float = 0.0
    rms_eager: float = 0.0
    limit: float = 0.0
    constant: float = 0.0
    slope: float = 0.0
    slack: torch.Tensor | None = None
    slices: dict[str, torch.Tensor] = field(default_factory=dict)
    relative_error: float | None = None

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        held = [self.eager, self.error, self.masked, self.slack, *(self.codes or ()), *self.slices.values()]
        return tuple(t for t in held if t is not None)

    def reference(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """R in float64, flat, from `start` to `stop`; 0 where E or R is not finite. E itself for exact results."""
        wide = self.eager[start:stop].to(torch.float64, copy=True)
        if self.error is not None:
            wide.sub_(self.error[start:stop])
        return wide if self.masked is None else wide.masked_fill_(self.masked[start:stop], 0.0)


@dataclass(frozen=True)
class Conditions:
    """What the rule has to know about the operator: K, the eps it accumulates in, several roundings by design."""

    reduction: int = 1
    accumulator_eps: float = EPS["float32"]
    several_roundings: bool = False


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Flat contiguous values in logical order; complex numbers as pairs, one-byte floats as float32."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_floating_point() and tensor.element_size() == 1:
        tensor = tensor.float()
    return tensor.detach().contiguous().view(-1)


def codes_of(flat: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 +Inf, 3 -Inf, per element."""
    return torch.isnan(flat).to(torch.int8) + torch.isposinf(flat).to(torch.int8) * 2 + torch.isneginf(flat) * 3


def eps_of(dtype: torch.dtype) -> float:
    """Distance from 1 to the next number; of the parts for complex types."""
    if dtype.is_complex:
        return EPS["float32" if dtype == torch.complex64 else "float64"]
    return EPS[dtype_name(dtype)]


def smallest_step(dtype: torch.dtype) -> float:
    """Distance between subnormal numbers of the type."""
    info = torch.finfo(dtype)
    return float(info.smallest_normal) * float(info.eps)


def ulp_distance(values: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Representable numbers between two flat tensors of one floating dtype; int64. NaN and Inf are the caller's affair."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    sides = []
    for side in (values, target):
        bits = side.view(integer).to(torch.int64)
        lowest = -(1 << (8 * side.element_size() - 1))
        sides.append(torch.where(bits < 0, lowest - bits, bits))
    return (sides[0] - sides[1]).abs_()


def slice_means(squares: torch.Tensor, shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Mean of `squares` (flat, float64) over rows, columns, channels and blocks of 64.

    Only slices of at least 64 elements: over fewer, the ratio of two honest errors has no bound.
    """
    n = squares.numel()
    found: dict[str, torch.Tensor] = {}
    if n < 2 * BLOCK:
        return found
    whole = n // BLOCK * BLOCK
    blocks = squares[:whole].view(-1, BLOCK).mean(1)
    found["block"] = torch.cat((blocks, squares[-BLOCK:].mean().view(1))) if whole != n else blocks
    length = shape[-1] if shape else 1
    rows = n // max(length, 1)
    if rows > 1 and length > BLOCK:
        found["row"] = blocks.view(rows, -1).mean(1) if length % BLOCK == 0 else squares.view(rows, length).mean(1)
    if rows >= BLOCK and length > 1:
        found["column"] = squares.view(rows, length).mean(0)
    if len(shape) >= 3 and shape[1] > 1 and n // shape[1] >= BLOCK:
        found["channel"] = squares.view(shape[0], shape[1], -1).mean((0, 2))
    return found


def exact_bounds(rule: Rule, expected: torch.Tensor) -> Bounds:
    """Bounds of a result that must equal `expected` (integers, moved values, the integer probe)."""
    return Bounds(EXACT, rule, tuple(expected.shape), expected.dtype, plain(expected))


def bounds(
    rule: Rule,
    eager: torch.Tensor,
    reference: torch.Tensor,
    moved: torch.Tensor | None,
    conditions: Conditions,
) -> Bounds:
    """The limits of one result.

    eager: E in the card's dtype. reference: R, same shape, wider where possible. moved: R of inputs with their last bits
    flipped, or None. Integer results and exact classes are compared to E alone.
    """
    if rule.kind == EXACT or not (eager.is_floating_point() or eager.is_complex()):
        return exact_bounds(rule, eager)
    flat, wide = plain(eager), plain(reference).double()
    eps, step = eps_of(eager.dtype), smallest_step(flat.dtype if not eager.is_complex() else eager.dtype.to_real())
    masked, codes = _not_finite(flat, wide)
    error = flat.to(torch.float64, copy=True).sub_(wide)
    if masked is not None:
        wide = wide.masked_fill(masked, 0.0)
        error.masked_fill_(masked, 0.0)
    n = max(wide.numel(), 1)
    shape = tuple(eager.shape) + ((2,) if eager.is_complex() else ())
    squares = wide * wide
    rms_reference = math.sqrt(float(squares.mean())) if wide.numel() else 0.0
    effective = _effective_count(squares, n)
    reference_slices = slice_means(squares, shape)
    largest = float(error.abs().max()) if wide.numel() else 0.0
    rms_eager = math.sqrt(float(torch.mul(error, error, out=squares).mean())) if wide.numel() else 0.0
    eager_slices = slice_means(squares, shape)
    sensitivity, moved_slices, moves = _sensitivity(wide, moved, masked, shape)
    growth = sequential_growth(conditions.reduction)
    sensitivity *= growth
    relative = rms_eager / rms_reference if rms_reference > 0 else 0.0
    explained = 4 * math.sqrt(conditions.reduction) * conditions.accumulator_eps + eps
    explained += 4 * sensitivity / rms_reference if rms_reference > 0 else 0.0
    ill = rule.kind == RATIO and relative > explained
    m = ILL_M if ill else max(rule.m, _few_m(effective))
    kind = rule.kind
    if kind == RATIO and reference.dtype == eager.dtype and eager.dtype not in (torch.float64, torch.complex128):
        kind = WEAK  # R was computed in the card's own type: eager's error against it means nothing
    slack = None
    if kind == ULP:
        several = conditions.several_roundings and moves is not None
        slack = moves.abs_().mul_(2).to(torch.float32) if several and moves is not None else None
    # What is off in a norm is off by a factor: its outliers carry it.
    slope = 2 * eps * (max(1.0, growth / 2) if eps <= EPS["float32"] else 1.0)
    floor, slice_floor = _floors(eps, effective, conditions.reduction)
    limits = {}
    for name, mean in reference_slices.items():
        if kind == WEAK:
            limits[name] = mean.sqrt()
            continue
        scale = eager_slices[name].sqrt()
        if moved_slices:
            scale = torch.maximum(scale, moved_slices[name].sqrt_().mul_(growth))
        # A mean that is off shifts a whole row of a norm, its small elements too.
        local = mean.sqrt().clamp_min_(rms_reference) if rule.op_class == opclass.REDUCTION_NORM else mean.sqrt()
        limits[name] = 2 * m * scale + slice_floor * local + (eps * eps * rms_reference + step)
    return Bounds(
        kind, rule, tuple(eager.shape), eager.dtype, flat, error.to(_error_dtype(flat)), masked, codes, m, ill, rms_reference, rms_eager,
        limit=m * max(rms_eager, sensitivity) + floor * rms_reference + step,
        constant=2 * m * max(largest, 3 * sensitivity) + 4 * floor * rms_reference + step, slope=slope, slack=slack, slices=limits, relative_error=relative,
    )  # fmt: skip


def _error_dtype(flat: torch.Tensor) -> torch.dtype:
    return torch.float64 if flat.dtype == torch.float64 else torch.float32


def _not_finite(
    eager: torch.Tensor, wide: torch.Tensor
) -> tuple[torch.Tensor | None, tuple[torch.Tensor, torch.Tensor] | None]:
    rounded = wide.to(eager.dtype)
    masked = ~(torch.isfinite(eager) & torch.isfinite(rounded))
    if not bool(masked.any()):
        return None, None
    return masked, (codes_of(eager), codes_of(rounded))


def _effective_count(squares: torch.Tensor, n: int) -> float:
    """How many elements carry the rms: n for equal ones, few when some outputs dwarf the rest (a softmax's peaks)."""
    top = float(squares.max()) if squares.numel() else 0.0
    if top == 0.0:
        return float(n)
    scaled = squares / top  # so that fourth powers neither overflow nor vanish
    total = float(scaled.sum())
    return total * total / float((scaled * scaled).sum())


def _few_m(effective: float) -> float:
    return 8.0 if effective <= VERY_FEW else 3.0 if effective < FEW else 1.0


def sequential_growth(terms: int) -> float:
    """How much a plain loop over `terms` may add to the sensitivity: rounding errors of partial sums grow with sqrt(n).

    Eager sums pairwise; a kernel with some dozen accumulators is honest too. Capped at 4096 terms (16x): TF32 inputs
    stay two orders of magnitude outside, one running sum over a million terms does not get in.
    """
    return max(1.0, math.sqrt(min(terms, 4096)) / 4)


def _floors(eps: float, effective: float, terms: int) -> tuple[float, float]:
    """Floors for the whole and for slices, as factors on R's rms.

    16 bits: half a unit at most, since whether accumulation ran in 16 or 32 bits must stay visible (3x and more).
    float32: 1 to 4 units: the next lower precision is 1000 away. float64: its reference is no better, so 8 units.
    """
    if eps <= EPS["float64"]:
        return 8 * eps, 8 * eps
    if eps <= EPS["float32"]:
        floor = eps * max(1.0, sequential_growth(terms) / 4)
        return floor, floor
    return (eps / 8 if effective >= FEW else eps / 2), eps / 2


def _sensitivity(
    wide: torch.Tensor, moved: torch.Tensor | None, masked: torch.Tensor | None, shape: tuple[int, ...]
) -> tuple[float, dict[str, torch.Tensor], torch.Tensor | None]:
    if moved is None or moved.numel() == 0:
        return 0.0, {}, None
    moves = plain(moved).to(torch.float64, copy=True).sub_(wide)
    if masked is not None:
        moves.masked_fill_(masked, 0.0)
    moves.nan_to_num_(0.0, 0.0, 0.0)
    squares = moves * moves
    return math.sqrt(float(squares.mean())), slice_means(squares, shape), moves
