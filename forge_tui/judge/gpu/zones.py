"""Byte patterns on a device: filled, and checked at many places with a handful of kernels."""

from __future__ import annotations

import torch

WORD = 8


def fill(memory: torch.Tensor, start: int, stop: int, pattern: bytes) -> None:
    """Fill bytes [start, stop) of `memory` (uint8) with the four-byte `pattern`, whose phase is fixed to byte 0."""
    first, last = min(stop, -(-start // 4) * 4), max(start, stop // 4 * 4)
    if first < last:
        value = int.from_bytes(pattern, "little", signed=True)
        memory[first:last].view(torch.int32).fill_(value)
    for low, high in ((start, first), (max(first, last), stop)):
        for position in range(low, high):
            memory[position] = pattern[position % 4]


class Zones:
    """Where a two-byte pattern must stay. The check costs a few kernels, however many zones there are."""

    def __init__(self, memory: torch.Tensor, zones: list[tuple[int, int]], pattern: bytes) -> None:
        if len(pattern) != 2:
            raise ValueError("a zone's pattern has two bytes")
        self._memory, self.zones = memory, zones
        words, edges = [], []
        for start, stop in zones:
            first, last = -(-start // WORD), stop // WORD
            if first < last:
                words.append(torch.arange(first, last))
                edges += [*range(start, first * WORD), *range(last * WORD, stop)]
            else:
                edges += range(start, stop)
        device = memory.device
        self._words = torch.cat(words).to(device) if words else torch.empty(0, dtype=torch.int64, device=device)
        self._edges = torch.tensor(edges, dtype=torch.int64, device=device)
        self._word = int.from_bytes(pattern * 4, "little", signed=True)
        self._expected = torch.tensor([pattern[e % 2] for e in edges], dtype=torch.uint8, device=device)

    def broken(self) -> int:
        """Number of the first zone that changed, -1 when all are intact."""
        words = self._memory.view(torch.int64)[self._words] != self._word
        edges = self._memory[self._edges] != self._expected
        if not bool(words.any() | edges.any()):
            return -1
        places = [int(self._words[words][0]) * WORD] if bool(words.any()) else []
        places += [int(self._edges[edges][0])] if bool(edges.any()) else []
        place = min(places)
        return next(i for i, (start, stop) in enumerate(self.zones) if start // WORD * WORD <= place < stop)
