"""Where the panes go: three layouts, one focus, a zoom. Pure geometry, so that nothing overlaps by construction.

Invariant: the regions of shown panes cover the area exactly and never overlap.
"""

from __future__ import annotations

from dataclasses import dataclass

from forge_tui.tui.actions import PANES

WIDE, MIDDLE, NARROW = "wide", "middle", "narrow"


@dataclass(frozen=True)
class Place:
    """Cells of a pane, title line included. rule: a separating column at its left."""

    x: int
    y: int
    width: int
    height: int
    rule: bool = False


def layout_of(width: int, height: int) -> str:
    """The layout for a terminal size: five panes from 160x40, three from 100x28, else one."""
    if width >= 160 and height >= 40:
        return WIDE
    return MIDDLE if width >= 100 and height >= 28 else NARROW


def arrange(layout: str, width: int, height: int, focus: str, beside: str, zoomed: bool) -> dict[str, Place]:
    """Places of the panes that show.

    focus: the focused pane. beside: in the middle layout, the pane of the right column (the last focused of tree, source, profile).
    """
    if layout == NARROW or zoomed:
        return {focus: Place(0, 0, width, height)}
    if layout == MIDDLE:
        left = max(40, width * 45 // 100)
        top = height * 55 // 100
        return {
            "cards": Place(0, 0, left, top),
            "log": Place(0, top, left, height - top),
            beside: Place(left, 0, width - left, height, True),
        }
    right = min(100, max(64, width * 42 // 100))
    left = width - right
    cards = min(56, max(46, left * 42 // 100))
    log = max(8, height * 30 // 100)
    source = height * 52 // 100
    return {
        "cards": Place(0, 0, cards, height - log),
        "tree": Place(cards, 0, left - cards, height - log, True),
        "log": Place(0, height - log, left, log),
        "source": Place(left, 0, right, source, True),
        "profile": Place(left, source, right, height - source, True),
    }


def step(layout: str, focus: str, beside: str, direction: int) -> str:
    """The pane that tab goes to."""
    order = list(PANES)
    return order[(order.index(focus) + direction) % len(order)]
