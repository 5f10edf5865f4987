"""The trial set: what a candidate is asked to compute, each trial drawn from the judge's secret seed and there for a threat.

Invariants: the same card, samples, seed and trial name give the same tensors, so a trial may be dropped from memory and
made again; sizes, strides, dtypes and memory shared between inputs are those of the capture; integers stay inside their
captured range; scalars are part of the variant key (a kernel may burn them in) and are never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from forge_tui.judge.reductions import argument, reduced_dims, reduction_length
from forge_tui.judge.samples import Sample, compact, generator, like, window_length
from forge_tui.records import opclass
from forge_tui.records.card import Card, VariantKey

BLOCK = 64
LARGE_BYTES = 64 << 20  # from here on fewer trials
LARGE_FLOPS = 4_000_000_000
# Arguments whose order carries meaning: an unsorted one is not a legal input.
SORTED_ARGUMENTS = frozenset({"boundaries", "sorted_sequence"})
FIXED_ARGUMENTS = frozenset(
    {"offsets", "crow_indices", "ccol_indices", "lengths", "cu_seqlens", "cum_seq_q", "cum_seq_k", "offs", "size"}
)
# A permuted index could hit one place twice here, and which write wins is undefined.
FIXED_INTEGERS_OF = ("scatter", "index_put", "index_copy", "index_fill", "put", "masked_scatter", "embedding_bag")


@dataclass(frozen=True)
class TrialKind:
    """One entry of the plan. sample: which recorded call it starts from. round: 1, or 2 for extra draws."""

    name: str
    threat: str
    sample: int = 0
    round: int = 1


@dataclass(frozen=True)
class Trial:
    """Inputs of one run. exact: the result must equal the rounded reference bit for bit (integer probe)."""

    name: str
    threat: str
    tensors: tuple[torch.Tensor, ...]
    exact: bool = False


@dataclass(frozen=True)
class Role:
    """What an input is: "data", "parameter", "mask" (additive, holds -inf or its stand-in), "integer", "bool", "fixed"."""

    kind: str
    sorted: bool = False


def roles(card: Card, sample: Sample) -> tuple[Role, ...]:
    """The role of every input tensor of a card."""
    names = _argument_names(card.key)
    found = []
    for i, (spec, tensor) in enumerate(zip(card.key.tensors, sample.tensors, strict=True)):
        name = names.get(i, spec.name)
        if tensor.numel() == 0 or name in FIXED_ARGUMENTS:
            found.append(Role("fixed"))
        elif tensor.dtype == torch.bool:
            found.append(Role("bool"))
        elif not (tensor.is_floating_point() or tensor.is_complex()):
            stays = any(card.key.base_op.startswith(op) for op in FIXED_INTEGERS_OF)
            found.append(Role("fixed" if stays else "integer", name in SORTED_ARGUMENTS))
        elif not spec.parameter and _is_mask(tensor):
            found.append(Role("mask"))
        else:
            found.append(Role("parameter" if spec.parameter else "data", name in SORTED_ARGUMENTS))
    return tuple(found)


def _argument_names(key: VariantKey) -> dict[int, str]:
    names = {}
    for arg in key.args:
        indices = [arg.value] if arg.kind == "tensor" else arg.value if arg.kind == "tensor_list" else []
        names.update({i: arg.name for i in indices if i >= 0})
    return names


def _is_mask(tensor: torch.Tensor) -> bool:
    values = compact(tensor)
    if values.is_complex() or values.element_size() == 1:
        return False
    hidden = (values <= torch.finfo(values.dtype).min / 4) | torch.isneginf(values)
    return bool(hidden.any())


def plan(card: Card, samples: tuple[Sample, ...]) -> tuple[TrialKind, ...]:
    """Which trials a card gets, in a fixed order. Cards of 64 MiB or 4 GFLOP and more get the most telling ones only."""
    if not samples:
        return ()
    kinds = roles(card, samples[0])
    has_data = any(r.kind == "data" for r in kinds)
    has_parameters = any(r.kind == "parameter" for r in kinds)
    large = card.bytes_moved >= LARGE_BYTES or (card.flops or 0) >= LARGE_FLOPS
    chosen = [
        ("captured", "the data the user really has"),
        ("redrawn", "replayed or precomputed answers, cached weights"),
    ]
    if has_data:
        chosen += [
            ("block-scaled", "part of the work skipped: every block has its own scale"),
            ("signs flipped", "values assumed from the capture; identity on positive data"),
            ("special values", "NaN and infinities swallowed or invented, signed zeros, subnormals"),
        ]
    if not large:
        chosen.insert(1, ("permuted", "answers keyed by content or by pointer"))
        if has_data:
            chosen.append(
                ("extreme magnitude", "fast approximations, flushed small numbers, overflow off the captured range")
            )
        if has_parameters:
            chosen.append(("parameters changed", "weights, biases or masks burned in or cached"))
    if has_data and card.op_class in (opclass.REDUCTION_NORM, opclass.SOFTMAX, opclass.POOL_AVERAGE):
        chosen.append(("constant rows", "epsilon dropped; variance of nothing"))
    if has_data and card.op_class == opclass.REDUCTION_NORM:
        chosen.append(("large offset", "variance by E[x^2]-E[x]^2"))
    if has_data and card.op_class == opclass.SOFTMAX:
        chosen.append(("shifted", "softmax without subtracting the maximum"))
    if _can_probe(card):
        chosen.append(
            ("integer probe", "inputs rounded to a lower precision: sums of small integers are exact in any order")
        )
    found = [TrialKind(name, threat, i % len(samples)) for i, (name, threat) in enumerate(chosen)]
    # A second recorded call of a shape family is real data of another size: worth a trial of its own.
    if len(samples) > 1 and not large:
        found.insert(1, TrialKind("captured", chosen[0][1], len(samples) - 1))
    return tuple(found)


def extra(card: Card, samples: tuple[Sample, ...]) -> tuple[TrialKind, ...]:
    """More draws for a card whose first set lets a null output through, or that is ill-conditioned."""
    wanted = ("redrawn", "signs flipped", "block-scaled")
    return tuple(TrialKind(k.name, k.threat, k.sample, 2) for k in plan(card, samples) if k.name in wanted)


def _can_probe(card: Card) -> bool:
    if card.op_class not in (opclass.MATMUL, opclass.CONV) or card.key.autocast:
        return False
    factors = (argument(card.key, "alpha"), argument(card.key, "beta"))
    return all(f in (None, 1, 1.0) for f in factors) and all(
        t.dtype in _PROBE_LIMITS for t in card.key.tensors if t.dtype not in ("bool", "int64", "int32")
    )


def build(card: Card, samples: tuple[Sample, ...], kind: TrialKind, seed: str) -> Trial:
    """Draw one trial. Deterministic in its arguments."""
    sample = samples[kind.sample]
    if kind.name == "captured":
        return Trial(kind.name, kind.threat, sample.tensors)
    kinds = roles(card, sample)
    change = _CHANGES[kind.name]
    windows: dict[int, torch.Tensor] = {}
    tensors = []
    first_data = next((i for i, r in enumerate(kinds) if r.kind == "data"), -1)
    for i, (tensor, role) in enumerate(zip(sample.tensors, kinds, strict=True)):
        storage = tensor.untyped_storage().data_ptr()
        if storage in windows and windows[storage].numel() >= window_length(tensor) > 0:
            tensors.append(windows[storage].as_strided(tensor.shape, tensor.stride()))
            continue
        source = generator(seed, kind.name, kind.round, kind.sample, i)
        new = _changed(card, sample, tensor, role, change, source, i == first_data)
        tensors.append(new)
        if new is not tensor:
            windows[storage] = new.as_strided((window_length(tensor),), (1,))
    name = kind.name if kind.round == 1 else f"{kind.name} {kind.round}"
    return Trial(name, kind.threat, tuple(tensors), exact=kind.name == "integer probe")


@dataclass(frozen=True)
class _Draw:
    """What a change may look at: float32 (float64) values of one input, its role and place, a generator."""

    card: Card
    sample: Sample
    values: torch.Tensor
    role: Role
    source: torch.Generator
    first: bool
    dtype: torch.dtype

    def normal(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=self.source, dtype=self.values.dtype)

    def uniform(self, shape: tuple[int, ...], low: float, high: float) -> torch.Tensor:
        return torch.rand(shape, generator=self.source, dtype=self.values.dtype) * (high - low) + low


def _changed(
    card: Card,
    sample: Sample,
    tensor: torch.Tensor,
    role: Role,
    change: Callable[[_Draw], torch.Tensor | None],
    source: torch.Generator,
    first: bool,
) -> torch.Tensor:
    values = compact(tensor).cpu()
    if role.kind == "fixed" or values.is_complex():
        return tensor
    if role.kind in ("integer", "bool"):
        new = None if change in (_special, _constant_rows, _parameters) else shuffled(values, source)
    else:
        wide = values.to(torch.float64 if values.dtype == torch.float64 else torch.float32).contiguous()
        new = change(_Draw(card, sample, wide, role, source, first, tensor.dtype))
    if new is None:
        return tensor
    if role.sorted:
        new = new.sort(dim=-1).values
    return like(tensor, new)


def shuffled(values: torch.Tensor, source: torch.Generator) -> torch.Tensor:
    """The same values in other places: rows permuted and rolled (cheap for large tensors), short ones fully."""
    length = values.shape[-1] if values.dim() else 1
    rows = values.reshape(-1, length)
    if rows.shape[0] == 1 or values.numel() <= 4096:
        flat = values.reshape(-1)
        return flat[torch.randperm(flat.numel(), generator=source)].reshape(values.shape)
    order = torch.randperm(rows.shape[0], generator=source)
    shift = int(torch.randint(length, (1,), generator=source))
    return rows[order].roll(shift, -1).reshape(values.shape)


def _moved_parameter(d: _Draw) -> torch.Tensor:
    """Parameters times 1 + 0.25 N (sign kept); an all-zero one (a fresh bias) gets new values, or it could be left out."""
    if float(d.values.abs().max()) == 0.0:
        return d.normal(tuple(d.values.shape)) * 0.3
    return d.values * (1 + 0.25 * d.normal(tuple(d.values.shape))).clamp_(0.25, 1.75)


def _permuted(d: _Draw) -> torch.Tensor | None:
    if d.role.kind == "parameter":
        return None
    if d.role.kind == "mask":
        return d.values.flip(-1)
    return shuffled(d.values, d.source).mul_(1 + 0.1 * d.normal(tuple(d.values.shape)))


def _redrawn(d: _Draw) -> torch.Tensor | None:
    if d.role.kind == "parameter":
        return _moved_parameter(d)
    if d.role.kind == "mask":
        return d.values.flip(-1)
    finite = d.values[torch.isfinite(d.values)]
    mean, std = (float(finite.mean()), float(finite.std(correction=0))) if finite.numel() else (0.0, 1.0)
    new = d.normal(tuple(d.values.shape)) * (std or abs(mean) or 1.0) + mean
    return new.abs_() if finite.numel() and float(finite.min()) >= 0 else new


def _block_scaled(d: _Draw) -> torch.Tensor | None:
    if d.role.kind != "data":
        return None
    reach = 2 if d.card.op_class in (opclass.SOFTMAX, opclass.ATTENTION) else 3 if d.dtype == torch.float16 else 6
    blocks = -(-d.values.numel() // BLOCK)
    powers = torch.randint(-reach, reach + 1, (blocks,), generator=d.source).to(d.values.dtype)
    scale = torch.exp2(powers).repeat_interleave(BLOCK)[: d.values.numel()].reshape(d.values.shape)
    return shuffled(d.values, d.source) * scale


def _signs_flipped(d: _Draw) -> torch.Tensor | None:
    if d.role.kind != "data":
        return None
    flip = torch.rand(tuple(d.values.shape), generator=d.source) < 0.5
    return torch.where(flip, -d.values, d.values) * (1 + 0.1 * d.normal(tuple(d.values.shape)))


def _extreme(d: _Draw) -> torch.Tensor | None:
    if d.role.kind != "data":
        return None
    low, high = {
        opclass.MATMUL: (-3.0, 3.0), opclass.CONV: (-3.0, 3.0), opclass.REDUCTION_NORM: (-3.0, 3.0),
        opclass.ATTENTION: (-2.0, 1.0), opclass.SOFTMAX: (-2.0, 1.3),
    }.get(d.card.op_class, (-4.0, 4.0))  # fmt: skip
    if d.dtype == torch.float16:
        low, high = max(low, -2.0), min(high, 1.0)
    if d.values.dim() >= 2:
        scale = torch.pow(10.0, d.uniform((*d.values.shape[:-1], 1), low, high))
    else:
        blocks = -(-d.values.numel() // BLOCK)
        scale = torch.pow(10.0, d.uniform((blocks,), low, high)).repeat_interleave(BLOCK)[: d.values.numel()]
        scale = scale.reshape(d.values.shape)
    return shuffled(d.values, d.source) * scale


def _parameters(d: _Draw) -> torch.Tensor | None:
    if d.role.kind == "mask":
        return d.values.flip(-1)
    return _moved_parameter(d) if d.role.kind == "parameter" else None


def _special(d: _Draw) -> torch.Tensor | None:
    element_wise = d.card.op_class in (opclass.EXACT, opclass.ONE_ROUNDING, opclass.TRANSCENDENTAL)
    if d.role.kind != "data" or not (d.first or element_wise):
        return None
    new = d.values.clone()
    flat = new.view(-1)
    info = torch.finfo(d.dtype)
    infinity = float("inf") if d.dtype != torch.float8_e4m3fn else float("nan")
    subnormal = float(info.smallest_normal) / 4
    chosen = (float("nan"), infinity, -infinity, -0.0, 0.0, subnormal, -subnormal)
    # One special value spoils a whole row of a norm or a product: most rows stay clean so that the rest is still judged.
    length = new.shape[-1] if new.dim() else 1
    rows = max(1, flat.numel() // max(length, 1))
    hit = flat.numel() // 32 + 1 if element_wise else max(1, min(rows // 8, 64))
    places = torch.randint(flat.numel(), (hit,), generator=d.source)
    flat[places] = torch.tensor([chosen[i % len(chosen)] for i in range(min(hit, 7))], dtype=new.dtype).repeat(
        -(-hit // min(hit, 7))
    )[:hit]
    return new


def _constant_rows(d: _Draw) -> torch.Tensor | None:
    if d.role.kind != "data" or not d.first or d.values.dim() == 0:
        return None
    dims = reduced_dims(d.card, d.sample.tensors) or (d.values.dim() - 1,)
    if "group_norm" in d.card.key.base_op:
        dims = tuple(range(1, d.values.dim()))
    shape = tuple(1 if i in dims else n for i, n in enumerate(d.values.shape))
    # Multiples of 1/8 add up exactly in any order, so only the operator's own treatment of "no variance" shows.
    constant = (d.normal(shape) * 24).round_().div_(8).expand(d.values.shape).clone()
    if constant.shape[0] > 1 and 0 not in dims:
        constant[1::2] = d.values[1::2]
    return constant


def _large_offset(d: _Draw) -> torch.Tensor | None:
    if d.role.kind != "data" or not d.first:
        return None
    std = float(d.values.std(correction=0)) or 1.0
    return d.values + 1e3 * std


def _shifted(d: _Draw) -> torch.Tensor | None:
    return d.values + 1e4 if d.role.kind == "data" and d.first else None


# Largest |integer| of the first operand: exact in the type, and 12 bits where TF32 keeps 11.
_PROBE_LIMITS = {"float64": 1 << 20, "float32": 2047 * 2 + 1, "float16": 2047, "bfloat16": 255}
_PROBE_SUMS = {"float64": 1 << 50, "float32": 1 << 24, "float16": 60000, "bfloat16": 1 << 24}


def _integer_probe(d: _Draw) -> torch.Tensor | None:
    if d.role.kind == "mask":
        return None
    shape = tuple(d.values.shape)
    if not d.first:
        return torch.randint(0, 2, shape, generator=d.source).to(d.values.dtype) * 2 - 1
    name = str(d.dtype).removeprefix("torch.")
    terms = reduction_length(d.card, d.sample.tensors) + 1
    top = max(1, min(_PROBE_LIMITS[name], _PROBE_SUMS[name] // terms))
    return torch.randint(-top, top + 1, shape, generator=d.source).to(d.values.dtype)


_CHANGES: dict[str, Callable[[_Draw], torch.Tensor | None]] = {
    "permuted": _permuted,
    "redrawn": _redrawn,
    "block-scaled": _block_scaled,
    "signs flipped": _signs_flipped,
    "extreme magnitude": _extreme,
    "parameters changed": _parameters,
    "special values": _special,
    "constant rows": _constant_rows,
    "large offset": _large_offset,
    "shifted": _shifted,
    "integer probe": _integer_probe,
}
