"""What a recipe is: one operator family's kernel with its tunables. A new family is one module and one registry line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from forge_tui.records.candidate import Draft
from forge_tui.records.card import VariantKey
from forge_tui.records.plan import host_plan

Point = dict[str, Any]
Space = dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Source:
    """A rendered kernel: C++ text and the technique in a few words."""

    text: str
    technique: str


def _always(key: VariantKey, point: Point) -> bool:
    return True


@dataclass(frozen=True)
class Recipe:
    """One operator family.

    ops: operators it may serve, with overload ("aten::softmax.int").
    refuses: why this key can't be served, "" when it can.
    space: every tunable with its values for this key and thread limit, in a sensible order.
    starts: two to four good and different points of that space.
    source: the kernel text of a point.
    allowed: False for points that make no sense together (a block that needs more registers than there are).
    target: the bottleneck the kernel attacks, for the record.
    """

    name: str
    ops: frozenset[str]
    refuses: Callable[[VariantKey], str]
    space: Callable[[VariantKey, int], Space]
    starts: Callable[[VariantKey, int], list[Point]]
    source: Callable[[VariantKey, Point], Source]
    allowed: Callable[[VariantKey, Point], bool] = _always
    target: str = ""

    def fits(self, key: VariantKey) -> str:
        """The reason this recipe can't serve the key, or "" when it can."""
        if key.op not in self.ops:
            return f"{self.name} serves {', '.join(sorted(self.ops))}"
        devices = {t.device for t in (*key.tensors, *key.outputs)}
        if devices != {"cpu"}:
            return "tensors are not on the CPU"
        if key.autocast:
            return f"autocast to {key.autocast} is active"
        return self.refuses(key)

    def valid(self, key: VariantKey, point: Point, threads: int) -> bool:
        """True for a complete point of this key's space."""
        space = self.space(key, threads)
        return (
            point.keys() == space.keys()
            and all(point[name] in values for name, values in space.items())
            and self.allowed(key, point)
        )

    def first_points(self, key: VariantKey, threads: int) -> list[Point]:
        """Different starting points, best guess first."""
        points: list[Point] = []
        for point in self.starts(key, threads):
            if self.valid(key, point, threads) and point not in points:
                points.append(point)
        return points

    def neighbours(self, key: VariantKey, point: Point, threads: int) -> Iterator[Point]:
        """Points that differ from `point` in one tunable."""
        for name, values in self.space(key, threads).items():
            for value in values:
                other = {**point, name: value}
                if value != point.get(name) and self.valid(key, other, threads):
                    yield other

    def render(self, key: VariantKey, point: Point) -> Draft:
        """The candidate of a point. It carries no gain estimate: only the judge's clock knows."""
        source = self.source(key, point)
        return Draft(
            language="cpp",
            source=source.text,
            plan=host_plan(dict(point)),
            technique=source.technique,
            target=self.target,
            expected_gain=None,
            detail={"recipe": self.name, "point": dict(point)},
        )
