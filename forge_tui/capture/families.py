"""Folds exact variant keys into shape families.

Two keys belong together when they come from the same place in the model and differ only in dimensions that change
together: a decode loop's growing length. One symbol per family. Invariants: every member's sizes are admitted by the
family key; sizes 0 and 1 and the sizes of parameters stay exact (broadcasting and the weight decide the kernel); a
size seen alone stays an exact key; a family's example is its smallest member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from forge_tui.records.card import Dim, TensorSpec, VariantKey
from forge_tui.records.codec import dumps

SYMBOL = "s0"
# The next size of a family is at most this many times the one before (or 2 larger): lengths grow in small steps, while
# a doubling is usually another place in the same forward (64 and 128 channels, 3000 and 1500 frames).
WIDEST_STEP = 1.5
PAIRS_LOOKED_AT = 300  # neighbours in call order differ in the interesting way; all pairs of 400 keys would be 80,000
Position = tuple[int, int, int]  # 0 input or 1 output, tensor, dimension


@dataclass(frozen=True)
class Member:
    """An exact key as it was captured, with the module paths it came from."""

    key: VariantKey
    modules: frozenset[str]


@dataclass(frozen=True)
class Fold:
    """One card's key and the members it stands for, smallest first."""

    key: VariantKey
    members: tuple[int, ...]


def fold(members: Sequence[Member]) -> list[Fold]:
    """Group exact keys into families; what fits none stays alone. Order follows the first member."""
    by_form: dict[Any, list[int]] = {}
    for number, member in enumerate(members):
        by_form.setdefault(form(member.key), []).append(number)
    folds: list[Fold] = []
    for numbers in by_form.values():
        folds += _fold_alike([(n, members[n]) for n in numbers])
    return sorted(folds, key=lambda f: min(f.members))


def form(key: VariantKey) -> Any:
    """Everything of a key that members of one family must have in common."""
    return (
        key.op, dumps(key.args), key.mutates, key.output_alias, key.autocast, key.flags,
        tuple(_spec_form(t) for t in key.tensors), tuple(_spec_form(t) for t in key.outputs),
    )  # fmt: skip


def _spec_form(spec: TensorSpec) -> Any:
    fixed = spec.sizes if spec.parameter else tuple(n if n <= 1 else -1 for n in spec.sizes)
    return (
        spec.name, spec.dtype, spec.layout, spec.device, spec.parameter, spec.shares, fixed,
        spec.strides if spec.layout == "strided" else _odd_strides(spec),
    )  # fmt: skip


def _odd_strides(spec: TensorSpec) -> tuple[int, ...]:
    """Strides that don't follow from the sizes (only dimensions of one element have such), -1 elsewhere.

    They move no address, but a guard compares them: members of one family must agree in them.
    """
    order = list(range(len(spec.dims) - 1, -1, -1))
    if spec.layout == "channels_last":
        order = [1, *range(len(spec.dims) - 1, 1, -1), 0]
    odd, running = [-1] * len(order), 1
    for d in order:
        if spec.strides[d] != running:
            odd[d] = spec.strides[d]
        running *= max(1, spec.sizes[d])
    return tuple(odd)


def _fold_alike(numbered: list[tuple[int, Member]]) -> list[Fold]:
    sizes = {number: _sizes(member.key) for number, member in numbered}
    members = dict(numbered)
    free = list(sizes)
    folds: list[Fold] = []
    for moving in _moving_sets(numbered, sizes):
        buckets: dict[Any, list[tuple[int, int]]] = {}
        for number in free:
            values = {sizes[number][p] for p in moving if p[0] == 0}
            if len(values) != 1:
                continue
            rest = tuple(sorted((p, n) for p, n in sizes[number].items() if p not in moving))
            buckets.setdefault(rest, []).append((values.pop(), number))
        for bucket in buckets.values():
            for cluster in _clusters(sorted(bucket), members):
                family = _family([members[n].key for _, n in cluster], [v for v, _ in cluster], moving)
                if family is not None:
                    folds.append(Fold(family, tuple(n for _, n in cluster)))
                    taken = {n for _, n in cluster}
                    free = [n for n in free if n not in taken]
    return folds + [Fold(members[n].key, (n,)) for n in free]


def _sizes(key: VariantKey) -> dict[Position, int]:
    found: dict[Position, int] = {}
    for side, specs in enumerate((key.tensors, key.outputs)):
        for t, spec in enumerate(specs):
            if not spec.parameter:
                found.update({(side, t, d): n for d, n in enumerate(spec.sizes)})
    return found


def _moving_sets(
    numbered: list[tuple[int, Member]], sizes: dict[int, dict[Position, int]]
) -> list[frozenset[Position]]:
    """Sets of positions in which pairs of keys differ by one size only, most frequent first."""
    seen: Counter[frozenset[Position]] = Counter()
    order = [number for number, _ in numbered]
    modules = {number: member.modules for number, member in numbered}
    pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 : i + 1 + max(1, PAIRS_LOOKED_AT // len(order))]]
    for a, b in pairs:
        moving = frozenset(p for p in sizes[a] if sizes[a][p] != sizes[b][p])
        inputs = [p for p in moving if p[0] == 0]
        one_size = len({sizes[a][p] for p in inputs}) == 1 == len({sizes[b][p] for p in inputs})
        if one_size and modules[a] & modules[b]:
            seen[moving] += 1
    return [moving for moving, _ in sorted(seen.items(), key=lambda item: (-item[1], sorted(item[0])))]


def _clusters(bucket: list[tuple[int, int]], members: dict[int, Member]) -> list[list[tuple[int, int]]]:
    """Runs of neighbouring sizes (value, number) that come from a common module; at least two different sizes each."""
    runs: list[list[tuple[int, int]]] = []
    for value, number in bucket:
        last = runs[-1][-1] if runs else None
        near = last is not None and (value <= last[0] * WIDEST_STEP or value - last[0] <= 2)
        if near and last is not None and members[number].modules & members[last[1]].modules:
            runs[-1].append((value, number))
        else:
            runs.append([(value, number)])
    return [run for run in runs if len({value for value, _ in run}) > 1]


def _family(keys: list[VariantKey], values: list[int], moving: frozenset[Position]) -> VariantKey | None:
    """The family key over `keys` (smallest first), or None when an output size is no simple function of the symbol."""
    ranges: dict[Position, Dim] = {}
    for position in moving:
        seen = [_sizes(key)[position] for key in keys]
        if seen == values:
            text = SYMBOL
        else:
            text = _affine(values, seen)
            if not text or position[0] == 0:
                return None
        step = 0
        for size in seen:
            step = gcd(step, size)
        ranges[position] = Dim(min(seen), max(seen), max(1, step), text)
    low = keys[0]

    def widened(side: int, specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        every = [(key.tensors, key.outputs)[side] for key in keys]
        return tuple(
            replace(
                spec,
                dims=tuple(ranges.get((side, t, d), dim) for d, dim in enumerate(spec.dims)),
                alignment=min(specs_of[t].alignment for specs_of in every),
            )
            for t, spec in enumerate(specs)
        )

    return replace(low, tensors=widened(0, low.tensors), outputs=widened(1, low.outputs))


def _affine(values: list[int], seen: list[int]) -> str:
    """Text of a*s0+b (in records.expr's language) through all points, or ""."""
    span = values[-1] - values[0]
    rise = seen[-1] - seen[0]
    if span <= 0 or rise % span or rise // span < 1:
        return ""
    factor = rise // span
    offset = seen[0] - factor * values[0]
    if any(factor * v + offset != s for v, s in zip(values, seen, strict=True)):
        return ""
    scaled = SYMBOL if factor == 1 else f"{factor}*{SYMBOL}"
    return scaled + (f"+{offset}" if offset > 0 else f"-{-offset}" if offset < 0 else "")
