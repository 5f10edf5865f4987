"""Reads a GGUF file (version 3) and expands its weights to float32: just what the SmolLM2 example needs.

The `gguf` package does the same in 2 s and more, most of it for the vocabulary; a demo waits for this.
Format: ggml's docs/gguf.md; block layouts: ggml-common.h (Q4_1, Q8_0).
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import torch

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8
_BLOCK = 32  # weights per quantised block


class GgufFile:
    """fields: metadata by key. tensor(name): float32, in torch's order of dimensions. Raises ValueError when damaged."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._at = 0
        self.fields: dict[str, Any] = {}
        try:
            self._read_header(path)
        except (struct.error, KeyError, UnicodeDecodeError) as error:
            raise ValueError(f"{path.name} is not a whole GGUF file ({error})") from None

    def _read_header(self, path: Path) -> None:
        magic, version, tensors, fields = self._take("<4sIQQ")
        if magic != b"GGUF" or version != 3:
            raise ValueError(f"{path.name} is not a GGUF file of version 3")
        for _ in range(fields):
            key = self._text()
            self.fields[key] = self._value(self._take("<I")[0])
        self._places: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(tensors):
            name = self._text()
            rank = self._take("<I")[0]
            sizes = self._take(f"<{rank}Q")
            kind, offset = self._take("<IQ")
            self._places[name] = (tuple(reversed(sizes)), kind, offset)
        align = int(self.fields.get("general.alignment", 32))
        self._data = (self._at + align - 1) // align * align

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors, in file order."""
        return tuple(self._places)

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, expanded to float32 in memory of its own."""
        sizes, kind, offset = self._places[name]
        count = 1
        for size in sizes:
            count *= size
        start = self._data + offset
        if kind == F32:
            return torch.frombuffer(self._view, dtype=torch.float32, count=count, offset=start).clone().view(sizes)
        if kind == F16:
            return torch.frombuffer(self._view, dtype=torch.float16, count=count, offset=start).float().view(sizes)
        width = {Q4_1: 20, Q8_0: 34}.get(kind)
        if width is None:
            raise ValueError(f"tensor {name} has GGUF type {kind}, which is not read here")
        raw = torch.frombuffer(self._view, dtype=torch.uint8, count=count // _BLOCK * width, offset=start)
        blocks = raw.view(-1, width)
        scale = blocks[:, :2].contiguous().view(torch.float16).float()
        out = torch.empty(len(blocks), _BLOCK, dtype=torch.float32)
        if kind == Q8_0:
            return out.copy_(blocks[:, 2:].view(torch.int8)).mul_(scale).view(sizes)
        low = blocks[:, 2:4].contiguous().view(torch.float16).float()
        packed = blocks[:, 4:]
        out[:, :16] = packed & 15
        out[:, 16:] = packed >> 4
        return out.mul_(scale).add_(low).view(sizes)

    def _take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._view, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _text(self) -> str:
        (length,) = self._take("<Q")
        text = self._view[self._at : self._at + length].decode()
        self._at += length
        return text

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            inner, count = self._take("<IQ")
            if inner in (_STRING, _ARRAY):
                return [self._value(inner) for _ in range(count)]
            return list(self._take(f"<{count}{_SCALARS[inner]}"))
        return self._take("<" + _SCALARS[kind])[0]
