"""A built workload: what to run, on which inputs, and which modules to watch."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

SEED = 20  # the global generator's state at the start of every run, so that two runs draw the same numbers


@dataclass(frozen=True)
class InputSet:
    """One set of example arguments. Never handed to the model itself when the model changes its inputs."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass
class Workload:
    """What `load` returns.

    call: the model or the user's run(). modules: watched roots by name ("" for the only one).
    user_ops: operator names ("ns::op.overload") that the user's file registered or overrode.
    own_grad: run() chooses its own grad mode; a model is called under torch.no_grad().
    fresh: inputs must be copied before every run, because the model changes them.
    """

    name: str
    kind: str
    call: Callable[..., Any]
    modules: dict[str, torch.nn.Module]
    inputs: tuple[InputSet, ...]
    synthetic: str = ""
    user_ops: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    own_grad: bool = False
    fresh: bool = False

    def fresh_inputs(self, set_index: int = 0) -> InputSet:
        """The set's arguments as the user gave them: copied when the model writes into them, else the originals."""
        chosen = self.inputs[set_index]
        return copy.deepcopy(chosen) if self.fresh else chosen

    def prepare(self, set_index: int = 0) -> InputSet:
        """Everything of a run that is not the user's: arguments and the random state. Kept outside every clock."""
        random.seed(SEED)
        torch.manual_seed(SEED)
        return self.fresh_inputs(set_index)

    def call_on(self, inputs: InputSet) -> Any:
        """The user's code on prepared arguments; returns its result."""
        if self.own_grad:
            return self.call(*inputs.args, **inputs.kwargs)
        with torch.no_grad():
            return self.call(*inputs.args, **inputs.kwargs)

    def run(self, set_index: int = 0) -> Any:
        """One call of the user's code on one input set; returns its result."""
        return self.call_on(self.prepare(set_index))

    def run_all(self) -> list[Any]:
        """One run of the workload: every input set once, in order."""
        return [self.run(index) for index in range(len(self.inputs))]

    def parameters(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers of the watched modules by full name, each tensor once."""
        found: dict[str, torch.Tensor] = {}
        seen: set[int] = set()
        for root, module in self.modules.items():
            prefix = f"{root}." if root else ""
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    found[prefix + name] = tensor
        return found


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor inside nested lists, tuples, mappings and simple objects, in a stable order, each once."""
    found: list[torch.Tensor] = []
    _walk(value, found, set(), 0)
    return found


def _walk(value: Any, found: list[torch.Tensor], seen: set[int], depth: int) -> None:
    if depth > 12 or id(value) in seen:
        return
    if isinstance(value, torch.Tensor):
        seen.add(id(value))
        found.append(value)
    elif isinstance(value, Mapping):
        seen.add(id(value))
        for item in value.values():
            _walk(item, found, seen, depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        seen.add(id(value))
        for item in value:
            _walk(item, found, seen, depth + 1)
    elif not isinstance(value, (torch.nn.Module, type)) and isinstance(getattr(value, "__dict__", None), dict):
        seen.add(id(value))
        for item in vars(value).values():
            _walk(item, found, seen, depth + 1)


def moved(value: Any, device: str) -> Any:
    """The same nested value with its tensors on `device`; containers are rebuilt, other objects kept."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if type(value) in (list, tuple):
        return type(value)(moved(item, device) for item in value)
    if type(value) is dict:
        return {key: moved(item, device) for key, item in value.items()}
    return value
