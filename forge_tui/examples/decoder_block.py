"""A decoder stack as current language models write it: F.rms_norm, rotary attention with an explicit causal softmax,
gated GELU (tanh). Random weights; the shapes are SmolLM2's."""

# mypy: disable-error-code="misc"
# torch is untyped here, so its Module is Any to the type checker.

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Norm(nn.Module):
    """RMSNorm over the last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width) + 0.1 * torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-6)


class Attention(nn.Module):
    """Causal self-attention that writes its softmax out; x is [B, T, width], cos and sin are [T, width / heads]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        weights = torch.softmax(scores + mask, dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, time, width))


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding, half-split form."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Layer(nn.Module):
    """Attention and a gated feed-forward network, each behind a norm and around a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        hidden = width * 8 // 3
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.attention = Attention(width, heads)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), cos, sin, mask)
        h = self.norm2(x)
        return x + self.down(F.gelu(self.gate(h), approximate="tanh") * self.up(h))


class Decoder(nn.Module):
    """[B, T, width] -> [B, T, width]."""

    def __init__(self, width: int, heads: int, layers: int, tokens: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = Norm(width)
        half = width // heads // 2
        angle = torch.outer(torch.arange(tokens).float(), 10000.0 ** (-torch.arange(half).float() / half)).repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        self.register_buffer("mask", torch.full((tokens, tokens), float("-inf")).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, self.mask)
        return self.norm(x)


def build(
    batch: int = 1, tokens: int = 128, layers: int = 2, width: int = 576, heads: int = 9
) -> tuple[Any, tuple[Any, ...]]:
    """Model and one batch of hidden states."""
    if width % (2 * heads):
        raise ValueError(f"width {width} is not a multiple of twice the number of heads ({heads})")
    torch.manual_seed(0)
    model = Decoder(width, heads, layers, tokens).eval()
    return model, (torch.randn(batch, tokens, width),)
