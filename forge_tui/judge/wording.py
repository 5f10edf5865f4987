"""What is wrong with a result, in words: which element or region, what it holds, what it should hold.

The lines go to people and to the model that repairs the kernel, so they name indices and values, not just a verdict.
"""

from __future__ import annotations

import math

import torch

from forge_tui.judge.rules import BLOCK, Bounds

CODES = ("finite", "NaN", "+Inf", "-Inf")


class Words:
    """Sentences about one result of one trial."""

    def __init__(self, trial: str, name: str, limits: Bounds) -> None:
        self.trial, self.name, self.limits = trial, name, limits

    def index(self, flat_index: int) -> tuple[int, ...]:
        shape = self.limits.shape + ((2,) if self.limits.dtype.is_complex else ())
        found = []
        for size in reversed(shape):
            found.append(flat_index % size)
            flat_index //= size
        return tuple(reversed(found))

    def values(self, flat: torch.Tensor, where: int) -> str:
        b = self.limits
        expected = b.reference(where, where + 1)[0] if b.error is not None else b.eager[where]
        text = f"{list(self.index(where))}: got {number(flat[where])}, expected {number(expected)}"
        return f"{text}, eager {number(b.eager[where])} (trial {self.trial!r})"

    def sentence(self, flat: torch.Tensor, wrong: torch.Tensor, where: int) -> str:
        count = int(wrong.sum())
        text = f"{self.name}: {share(count, flat.numel())} wrong, first at {self.values(flat, where)}"
        return text + self._same_everywhere(flat[wrong], count)

    def _same_everywhere(self, values: torch.Tensor, count: int) -> str:
        if count >= 8 and bool((values == values[0]).all()):
            return f"; all of them hold {number(values[0])}: never written?"
        return ""

    def place(self, flat: torch.Tensor, failing: dict[str, torch.Tensor], lead: str = "; wrong in") -> str:
        """The smallest named region that is wrong, when it is a small part of the output."""
        if not failing:
            return ""
        name = min(failing, key=lambda k: float(failing[k].float().mean()))
        wrong = failing[name]
        number, count = int(wrong.to(torch.uint8).argmax()), int(wrong.sum())
        if count * 2 > wrong.numel() and lead:
            return ""
        more = f" and {count - 1} more of {wrong.numel()}" if count > 1 else ""
        if name != "block":
            return f"{lead} {name} {number}{more}"
        start = min(number * BLOCK, flat.numel() - BLOCK)
        index = self.index(start)
        row = f" of row {list(index[:-1])}" if len(index) > 1 else ""
        text = f"{lead} block {index[-1] // BLOCK} (elements {index[-1]} on){row}{more}"
        return text + self._same_everywhere(flat[start : start + BLOCK], BLOCK)


def finite(value: float | None) -> float | None:
    """The value, or None for one that a record can't hold."""
    return value if value is not None and math.isfinite(value) else None


def number(value: torch.Tensor) -> str:
    """One element as text."""
    item = value.item()
    return f"{item:.6g}" if isinstance(item, float) else str(item)


def times(value: float, unit: float) -> str:
    """An error as a multiple of eager's."""
    return f"{value / unit:.3g}x eager's" if unit > 0 else f"{value:.3g} (eager's is 0)"


def share(count: int, n: int) -> str:
    """ "12 of 4096 outputs (0.293%)"."""
    return f"{count} of {n} outputs ({100 * count / n:.3g}%)"
