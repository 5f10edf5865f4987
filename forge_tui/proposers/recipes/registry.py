"""Which recipes there are, the first drafts of a card, and mutations of a candidate.

A new operator family is one module with a `RECIPE` and one line in `RECIPES`, or in `CUDA_RECIPES` for CUDA devices.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

from forge_tui.proposers.recipes import (
    attention,
    batch_norm,
    cuda_embedding,
    cuda_group_norm,
    cuda_group_norm_nhwc,
    cuda_linear,
    cuda_linear_tensor,
    cuda_pointwise,
    cuda_reduce,
    cuda_row_norm,
    cuda_softmax,
    embedding,
    group_norm,
    linear,
    max_pool,
    pointwise,
    row_mean,
    row_norm,
    softmax,
)
from forge_tui.proposers.recipes.recipe import Point, Recipe
from forge_tui.records.candidate import Candidate, Draft
from forge_tui.records.card import Card, VariantKey

RECIPES: tuple[Recipe, ...] = (
    pointwise.RECIPE,
    softmax.RECIPE,
    row_norm.RECIPE,
    group_norm.RECIPE,
    batch_norm.RECIPE,
    row_mean.RECIPE,
    max_pool.RECIPE,
    embedding.RECIPE,
    linear.RECIPE,
    attention.RECIPE,
)

CUDA_RECIPES: tuple[Recipe, ...] = (
    cuda_pointwise.RECIPE,
    cuda_softmax.RECIPE,
    cuda_row_norm.RECIPE,
    cuda_group_norm.RECIPE,
    cuda_group_norm_nhwc.RECIPE,
    cuda_reduce.RECIPE,
    cuda_embedding.RECIPE,
    cuda_linear.RECIPE,
    cuda_linear_tensor.RECIPE,
)


def _of_device(key: VariantKey) -> tuple[Recipe, ...]:
    """The recipes written for the device that all tensors are on; those of the CPU where they are on several."""
    kinds = {t.device.partition(":")[0] for t in (*key.tensors, *key.outputs)}
    return CUDA_RECIPES if kinds == {"cuda"} else RECIPES


def recipes_for(key: VariantKey) -> list[Recipe]:
    """Every recipe that can serve the key."""
    return [recipe for recipe in _of_device(key) if not recipe.fits(key)]


def refusals(key: VariantKey) -> list[str]:
    """Why the recipes written for this operator can't serve the key; empty when one can or none was written for it."""
    reasons = [recipe.fits(key) for recipe in _of_device(key) if key.op in recipe.ops]
    return [] if "" in reasons else reasons


def first_drafts(card: Card, threads: int) -> list[Draft]:
    """Good and different openings, best guess of each recipe first. threads: the limit both sides run under."""
    drafts = []
    queues = [(recipe, deque(recipe.first_points(card.key, threads))) for recipe in recipes_for(card.key)]
    while any(points for _, points in queues):
        for recipe, points in queues:
            if points:
                drafts.append(recipe.render(card.key, points.popleft()))
    return drafts


def mutate(card: Card, parent: Candidate, threads: int, rng: random.Random, seen: set[str]) -> Draft | None:
    """A draft that differs from the parent in one tunable, or in more once those are used up.

    seen: digests of the card's candidates; none of them is returned. A parent that no recipe wrote is followed by
    the recipes' openings. None when every point of every fitting recipe was seen.
    """
    for recipe, point in _outward(card.key, parent, threads, rng):
        draft = recipe.render(card.key, point)
        if digest(draft) not in seen:
            return draft
    return None


def digest(draft: Draft) -> str:
    """The digest that the draft's candidate will have."""
    return Candidate("", "", draft.language, "T3", draft.source, draft.plan, "recipe").digest()


def _outward(key: VariantKey, parent: Candidate, threads: int, rng: random.Random) -> Iterator[tuple[Recipe, Point]]:
    """Every point of the fitting recipes once: the parent's neighbours first, then ever further, then other recipes."""
    recipes = recipes_for(key)
    detail = parent.detail or {}
    origin = next((r for r in recipes if parent.proposer == "recipe" and r.name == detail.get("recipe")), None)
    if origin is not None and origin.valid(key, detail.get("point", {}), threads):
        yield from _spread(origin, key, [detail["point"]], threads, rng, False)
        recipes = [recipe for recipe in recipes if recipe is not origin]
    for recipe in recipes:
        yield from _spread(recipe, key, recipe.first_points(key, threads), threads, rng, True)


def _spread(
    recipe: Recipe, key: VariantKey, points: list[Point], threads: int, rng: random.Random, include: bool
) -> Iterator[tuple[Recipe, Point]]:
    """Breadth first from `points` over single changes, in an order that `rng` draws."""
    found = {_identity(p) for p in points}
    queue = deque(points)
    if include:
        yield from ((recipe, point) for point in points)
    while queue:
        near = [p for p in recipe.neighbours(key, queue.popleft(), threads) if _identity(p) not in found]
        rng.shuffle(near)
        for point in near:
            found.add(_identity(point))
            queue.append(point)
            yield recipe, point


def _identity(point: Point) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(point.items()))
