"""The up block of a VAE decoder as image models use it: group norm, SiLU and 3x3 convolutions around a residual,
then nearest-neighbour upsampling. Random weights."""

# mypy: disable-error-code="misc"
# torch is untyped here, so its Module is Any to the type checker.

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class ResBlock(nn.Module):
    """norm, SiLU, convolution, twice; [B, cin, H, W] -> [B, cout, H, W]."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, cin, eps=1e-6), nn.Conv2d(cin, cout, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, cout, eps=1e-6), nn.Conv2d(cout, cout, 3, padding=1)
        self.shortcut = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return self.shortcut(x) + h


class UpBlock(nn.Module):
    """[B, C, H, W] latents -> [B, 3, 2H, 2W] pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(ResBlock(channels, channels), ResBlock(channels, channels // 2))
        self.grow = nn.Conv2d(channels // 2, channels // 2, 3, padding=1)
        self.norm, self.out = nn.GroupNorm(32, channels // 2, eps=1e-6), nn.Conv2d(channels // 2, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.grow(F.interpolate(self.blocks(x), scale_factor=2.0, mode="nearest"))
        return self.out(F.silu(self.norm(x)))


def build(batch: int = 1, size: int = 32, channels: int = 128) -> tuple[Any, tuple[Any, ...]]:
    """Model and one batch of square latents."""
    if channels % 64:
        raise ValueError(f"channels is a multiple of 64, not {channels}")
    torch.manual_seed(0)
    return UpBlock(channels).eval(), (torch.randn(batch, channels, size, size),)
