"""Languages by name: the built-in ones, and those of other packages through entry points "forge_tui.languages".

An entry point names something callable without arguments that gives a Language; its name is the language's name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import metadata

from forge_tui.languages.cpp import Cpp
from forge_tui.languages.cuda import Cuda
from forge_tui.languages.language import Language
from forge_tui.languages.triton import Triton
from forge_tui.records.problem import UserInputError

GROUP = "forge_tui.languages"
BUILT_IN: dict[str, Callable[[], Language]] = {"cpp": Cpp, "cuda": Cuda, "triton": Triton}


def all_languages() -> tuple[str, ...]:
    """Names of all languages, built-in ones first. Nothing of another package is imported for this."""
    outside = sorted({e.name for e in metadata.entry_points(group=GROUP)} - set(BUILT_IN))
    return (*BUILT_IN, *outside)


@functools.cache
def language(name: str) -> Language:
    """The language called `name`. Raises UserInputError when there is none or its package can't be loaded."""
    if name in BUILT_IN:
        return BUILT_IN[name]()
    for entry in metadata.entry_points(group=GROUP):
        if entry.name == name:
            try:
                made: Language = entry.load()()
            except (ImportError, AttributeError, TypeError) as error:
                raise UserInputError(f"language {name!r} of {entry.value} can't be loaded: {error}") from None
            return made
    raise UserInputError(f"unknown language {name!r}; known: {', '.join(all_languages())}")
