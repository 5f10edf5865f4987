"""Odd models that the capture tests run; written unlike the shipped examples on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, silu


class InPlace(nn.Module):
    """Writes over its own activations: a relu that must be stored before it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.act(self.first(x))
        h += x
        h.mul_(0.5)[:, ::2].clamp_(max=1.0)
        return h


class Methods(nn.Module):
    """Tensor methods, operators and functions imported by name."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("scale", torch.rand(8))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = x @ self.w
        z = gelu(y) * self.scale + 1
        return {"out": silu(z).softmax(-1), "more": [z.transpose(0, 1)[::2] - 2.5, None], "n": 3}


class KeywordOnly(nn.Module):
    """Takes keyword arguments only; drops out in evaluation mode."""

    def forward(self, *, left: torch.Tensor, right: torch.Tensor, flip: bool = False) -> torch.Tensor:
        if flip:
            left, right = right, left
        return nn.functional.dropout(torch.cat([left, right], dim=-1), 0.5, self.training).sum(-1, keepdim=True)


class Recurrent(nn.Module):
    """A packed bidirectional LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = self.lstm(packed)
        out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        return self.head(out)


class Autocast(nn.Module):
    """Enters autocast itself; also leaves real numbers for a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.relu(self.linear(x)).softmax(-1)
        z = torch.fft.rfft(y.float())
        return torch.view_as_real(z * z.conj()).sum(-1)


class ByValue(nn.Module):
    """Result sizes that depend on values, random numbers, and a batch norm that updates its statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.norm.train()
        kept = x[x[:, 0] > 0]
        places = (x > 0).nonzero()
        noise = torch.rand_like(x)
        return self.norm(x).sum() + kept.sum() + places.float().mean() + noise.mean() * 0


class Fast(nn.Module):
    """nn.TransformerEncoder: takes a fused path in evaluation mode that hooks and modes must not switch off."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.encoder(x))


def _made(
    kind: type[nn.Module], *args: torch.Tensor, **kwargs: Any
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    return kind().eval(), args, kwargs


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]] = {
    "in place": lambda: _made(InPlace, torch.randn(4, 16)),
    "methods": lambda: _made(Methods, torch.randn(5, 8)),
    "keyword only": lambda: _made(KeywordOnly, left=torch.randn(3, 4), right=torch.randn(3, 2), flip=True),
    "recurrent": lambda: _made(Recurrent, torch.randn(3, 7, 8), torch.tensor([7, 3, 5])),
    "autocast": lambda: _made(Autocast, torch.randn(4, 16)),
    "by value": lambda: _made(ByValue, torch.randn(6, 8)),
    "fast path": lambda: _made(Fast, torch.randn(2, 5, 32)),
}
