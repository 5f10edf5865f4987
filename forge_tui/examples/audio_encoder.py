"""A small audio encoder of Whisper's shape (Radford et al. 2022): two 1-D convolutions with GELU bring 3000 mel frames
to 1500, sinusoidal positions, pre-norm transformer layers. Tiny widths, random weights."""

# mypy: disable-error-code="misc"
# torch is untyped here, so its Module is Any to the type checker.

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

MELS, FRAMES = 80, 3000


class EncoderLayer(nn.Module):
    """Pre-norm self-attention and a GELU network; [B, T, width] -> same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        h = self.norm1(x)
        q, k, v = (p(h).view(batch, time, self.heads, -1).transpose(1, 2) for p in (self.query, self.key, self.value))
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(a.transpose(1, 2).reshape(batch, time, width))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class AudioEncoder(nn.Module):
    """[B, 80, 3000] log-mel frames -> [B, 1500, width]."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(MELS, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        rate = torch.exp(-math.log(10000.0) / (width // 2 - 1) * torch.arange(width // 2).float())
        angle = torch.arange(FRAMES // 2).float()[:, None] * rate[None]
        self.register_buffer("positions", torch.cat((angle.sin(), angle.cos()), dim=1))
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).permute(0, 2, 1)
        x = x + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def build(batch: int = 1, width: int = 96, layers: int = 2, heads: int = 3) -> tuple[Any, tuple[Any, ...]]:
    """Model and one batch of 30-second mel spectrograms."""
    if width % (2 * heads):
        raise ValueError(f"width {width} is not a multiple of twice the number of heads ({heads})")
    torch.manual_seed(0)
    return AudioEncoder(width, layers, heads).eval(), (torch.randn(batch, MELS, FRAMES),)
