"""From recorded groups to cards: folding into families, choosing which calls to save, writing the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forge_tui.capture.costs import bytes_moved, flops
from forge_tui.capture.families import Member, fold
from forge_tui.capture.opclass import op_class
from forge_tui.capture.recorder import Group, Recorder
from forge_tui.records.card import Card, VariantKey

Place = tuple[int, int]  # group number, ordinal of the call within the group


@dataclass(frozen=True)
class Plan:
    """One future card. groups: the recorded groups it stands for, smallest sizes first."""

    key: VariantKey
    groups: tuple[int, ...]
    time_us: float
    refused: str
    samples: tuple[Place, ...]


def plan_cards(groups: Sequence[Group], times: dict[int, float]) -> list[Plan]:
    """Fold what was recorded into cards, most time first. Refused groups fold among themselves, by reason."""
    seen = [g for g in groups if g.key is not None and g.persistent]  # called in the last run, too
    plans: list[Plan] = []
    for reason in dict.fromkeys(g.refused for g in seen):
        chosen = [g for g in seen if g.refused == reason]
        members = [Member(aligned_key(g), frozenset(g.modules)) for g in chosen]
        for family in fold(members):
            inside = [chosen[i] for i in family.members]
            plans.append(
                Plan(
                    family.key,
                    tuple(g.number for g in inside),
                    sum(times[g.number] for g in inside),
                    reason,
                    sample_places(inside),
                )
            )
    return sorted(plans, key=lambda p: -p.time_us)


def aligned_key(group: Group) -> VariantKey:
    """The group's key with the alignment that every recorded call had."""
    key = group.key
    if key is None:
        raise ValueError(f"{group.operator} has no key")
    tensors = tuple(replace(t, alignment=a) for t, a in zip(key.tensors, group.alignments, strict=True))
    aligned = group.result_alignments if key.outputs else []
    outputs = tuple(replace(t, alignment=a) for t, a in zip(key.outputs, aligned, strict=True))
    return replace(key, tensors=tensors, outputs=outputs)


def sample_places(inside: Sequence[Group]) -> tuple[Place, ...]:
    """First, middle and last call of an exact card; the first call at the low, high and middle size of a family."""
    if len(inside) > 1:
        middle = inside[len(inside) // 2]
        return tuple(dict.fromkeys((g.number, 0) for g in (inside[0], inside[-1], middle)))
    count = len(inside[0].persistent)
    return tuple(dict.fromkeys((inside[0].number, n) for n in (0, count - 1, count // 2)))


def choose_samples(plans: Sequence[Plan], groups: Sequence[Group], budget: int) -> set[Place]:
    """Which calls to save: every card's first sample before any card's second, most time first, within the budget.

    A parameter that several calls use is counted once. A first sample is always visited: what doesn't fit then keeps
    its statistics.
    """
    left = budget
    counted: set[tuple[int, int]] = set()
    chosen: set[Place] = set()
    for turn in range(3):
        for plan in plans:
            if turn >= len(plan.samples) or plan.refused:
                continue
            number, ordinal = plan.samples[turn]
            group = groups[number]
            persistent = set(group.persistent[ordinal]) if ordinal < len(group.persistent) else set()
            cost = max(0, group.nbytes - sum(size for _, size in persistent & counted))
            if cost <= left or turn == 0:
                chosen.add((number, ordinal))
                left -= min(cost, left)
                counted |= persistent
    return chosen


def cards_of(
    plans: Sequence[Plan], recorder: Recorder, times: dict[int, float], total_us: float, synthetic: bool
) -> list[Card]:
    """The records, most time first. Two plans with one key (same variant from different states) stay apart by their key."""
    cards: dict[str, Card] = {}
    for plan in plans:
        inside = [recorder.groups[n] for n in plan.groups]
        samples = tuple(recorder.saved[place] for place in plan.samples if place in recorder.saved)
        modules = tuple(dict.fromkeys(m for g in inside for m in g.modules))
        card = Card(
            card_id=plan.key.digest(),
            key=plan.key,
            calls=sum(max(1, g.calls) for g in inside),
            modules=modules,
            samples=samples,
            op_class=op_class(plan.key),
            bytes_moved=bytes_moved(plan.key),
            flops=flops(plan.key),
            self_time_us=plan.time_us,
            share=plan.time_us / total_us if total_us else None,
            synthetic=synthetic,
            state="refused" if plan.refused else "open",
            reason=plan.refused,
        )
        known = cards.get(card.card_id)
        if known is not None:  # one key, once refused and once not (called with and without gradients)
            card = _joined(known, card)
        cards[card.card_id] = card
    return list(cards.values())


def _joined(first: Card, second: Card) -> Card:
    open_one = first if first.state == "open" else second
    return replace(
        open_one,
        calls=open_one.calls,
        modules=tuple(dict.fromkeys(first.modules + second.modules)),
        reason=open_one.reason or (second.reason if open_one is first else first.reason),
    )
