"""What a tool's advice is worth: its promised gains against what came of them.

The published tools fire often and hit rarely (4 to 18% of firings end above 1.5x), and nobody compares promise with
result; here the prior of a node is the promised log gain times the rate at which that tool's promises came true.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

PRIOR_TRIES = 10.0  # firings the prior rate counts for


@dataclass(frozen=True)
class HitRate:
    """hits: firings followed by a gain. tries: all firings. realised: sum of log gains that followed."""

    hits: int = 0
    tries: int = 0
    realised: float = 0.0


def calibrated(rate: HitRate, prior: float = 0.1, prior_tries: float = PRIOR_TRIES) -> float:
    """Posterior mean of a hit rate that starts at `prior` as if from `prior_tries` firings."""
    return (prior * prior_tries + rate.hits) / (prior_tries + rate.tries)


def expected_gain(promised: float | None, rate: HitRate, usual: float = 1.2, prior: float = 0.1) -> float:
    """Expected log gain of following a tool. promised: factor (1.2 = 20% faster); `usual` where nothing was promised.

    Promises are capped at 4x: a tool that promises more is not more often right.
    """
    factor = min(4.0, max(1.0, promised if promised is not None else usual))
    return math.log(factor) * calibrated(rate, prior)


def node_priors(advice: Mapping[str, tuple[str, float | None]], rates: Mapping[str, HitRate]) -> dict[str, float]:
    """Priors for puct. advice: node id -> (tool, promised factor). rates: tool -> its record so far."""
    return {node: expected_gain(promised, rates.get(tool, HitRate())) for node, (tool, promised) in advice.items()}
