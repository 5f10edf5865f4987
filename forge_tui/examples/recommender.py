"""A recommender head in the manner of DLRM (Naumov et al. 2019): numbers bucketized into ids, bags of history ids,
single ids, pairwise dot products, a small network. Integer inputs are most of its work. Random weights."""

# mypy: disable-error-code="misc"
# torch is untyped here, so its Module is Any to the type checker.

from __future__ import annotations

from typing import Any

import torch
from torch import nn

ITEMS, USERS, BUCKETS, NUMBERS, HISTORY = 20_000, 5_000, 64, 8, 20


class Recommender(nn.Module):
    """numbers [B, 8] float, user [B] int64, history [B * 20] int64 with offsets [B] -> click probability [B]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("edges", torch.linspace(-2.5, 2.5, BUCKETS - 1))
        self.number_table = nn.Embedding(BUCKETS * NUMBERS, width)
        self.user_table = nn.Embedding(USERS, width)
        self.history_table = nn.EmbeddingBag(ITEMS, width, mode="mean")
        self.dense = nn.Sequential(nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        features = NUMBERS + 3
        self.register_buffer("pairs", torch.triu_indices(features, features, 1))
        self.top = nn.Sequential(nn.Linear(width + features * (features - 1) // 2, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(
        self, numbers: torch.Tensor, user: torch.Tensor, history: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        ids = torch.bucketize(numbers, self.edges) + torch.arange(NUMBERS, device=numbers.device) * BUCKETS
        dense = self.dense(numbers)
        features = torch.cat(
            (
                self.number_table(ids),
                self.user_table(user)[:, None],
                self.history_table(history, offsets)[:, None],
                dense[:, None],
            ),
            dim=1,
        )
        products = torch.bmm(features, features.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat((dense, products), dim=1))).squeeze(1)


def build(batch: int = 256, width: int = 32) -> tuple[Any, tuple[Any, ...]]:
    """Model and one batch of users."""
    torch.manual_seed(0)
    model = Recommender(width).eval()
    history = torch.randint(0, ITEMS, (batch * HISTORY,))
    user = torch.randint(0, USERS, (batch,))
    return model, (torch.randn(batch, NUMBERS), user, history, torch.arange(0, batch * HISTORY, HISTORY))
