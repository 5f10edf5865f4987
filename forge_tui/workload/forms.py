"""The forms a workload may be written in, turned into one: what to call, modules to watch, input sets.

Forms of a builder's result: (model, args) · (model, args, kwargs) · (run, modules) · {"run": ..., "modules": ...}.
args: a tuple or list (one set), a dict of keyword arguments (one set), or several sets as a list of tuples/dicts or a
dict name -> tuple. One set of several may also be ((args...), {kwargs}).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from forge_tui.records.problem import UserInputError
from forge_tui.workload.importing import attribute, guarded
from forge_tui.workload.workload import InputSet, tensors_in

FORMS = (
    "Model with get_inputs and get_init_inputs, build_model with sample_inputs, run with modules, "
    "or a function that returns (model, args, kwargs) named as file.py:function"
)
BUILDERS = ("build", "workload", "get_model", "make_model", "main_workload")


@dataclass(frozen=True)
class Built:
    """The one form all others are turned into. kind: "kernelbench", "model" or "callable"."""

    kind: str
    call: Callable[..., Any]
    modules: dict[str, torch.nn.Module]
    inputs: tuple[InputSet, ...]
    random_inputs: bool = False


def from_module(module: ModuleType, where: str) -> Built:
    """Find the workload in a user's file that names no function. Raises UserInputError listing the accepted forms."""
    names = vars(module)
    if callable(names.get("Model")) and callable(names.get("get_inputs")):
        return kernelbench(module, where)
    if callable(names.get("build_model")) and callable(names.get("sample_inputs")):
        with guarded(f"{where}: build_model()"):
            model = module.build_model()
        with guarded(f"{where}: sample_inputs()"):
            inputs = module.sample_inputs()
        return interpret((model, inputs), f"{where}: build_model() and sample_inputs()")
    if callable(names.get("run")) and (names.get("modules") is not None or names.get("MODULES") is not None):
        return interpret((names["run"], names.get("modules") or names.get("MODULES")), f"{where}: run and modules")
    for name in BUILDERS:
        if callable(names.get(name)):
            return from_function(module, name, where)
    if callable(names.get("Model")):
        raise UserInputError(
            f"{where} defines Model but no get_inputs(); add a function that returns its example inputs"
        )
    public = [n for n, v in names.items() if callable(v) and not n.startswith("_") and is_own(v, module)]
    seen = f"it defines {', '.join(sorted(public)[:6])}" if public else "it defines no function"
    raise UserInputError(f"{where} holds no workload ({seen}); expected {FORMS}")


def from_function(module: ModuleType, name: str, where: str) -> Built:
    """Call the builder `name` and read what it returns. Raises UserInputError."""
    builder = attribute(module, name)
    if isinstance(builder, torch.nn.Module):
        raise UserInputError(
            f"{where}:{name} is a model without inputs; name a function that returns (model, args, kwargs)"
        )
    if not callable(builder):
        raise UserInputError(f"{where}:{name} is a {type(builder).__name__}, not a function that returns (model, args)")
    with guarded(f"{where}:{name}()"):
        built = builder()
    return interpret(built, f"{where}:{name}()")


def kernelbench(module: ModuleType, where: str) -> Built:
    """Model(*get_init_inputs()) on get_inputs(). Source of the form: KernelBench (Ouyang et al. 2025), level files."""
    with guarded(f"{where}: get_init_inputs()"):
        init = module.get_init_inputs() if callable(getattr(module, "get_init_inputs", None)) else []
    with guarded(f"{where}: Model(...)"):
        if isinstance(init, Mapping):
            model = module.Model(**init)
        elif len(init) == 2 and isinstance(init[0], (list, tuple)) and isinstance(init[1], Mapping):
            model = module.Model(*init[0], **init[1])
        else:
            model = module.Model(*init)
    if not isinstance(model, torch.nn.Module):
        raise UserInputError(f"{where}: Model is not a torch.nn.Module; derive it from torch.nn.Module")
    with guarded(f"{where}: get_inputs()"):
        before = torch.get_rng_state()
        inputs = module.get_inputs()
        random = not torch.equal(before, torch.get_rng_state())
    return Built("kernelbench", model, {"": model}, input_sets(inputs, f"{where}: get_inputs()"), random)


def interpret(built: Any, where: str) -> Built:
    """Read a builder's result. Raises UserInputError that says what was returned and what is expected."""
    if isinstance(built, Mapping) and callable(built.get("run")):
        return _callable(built["run"], built.get("modules"), where)
    if not isinstance(built, (tuple, list)) or not 2 <= len(built) <= 3:
        what = f"{len(built)} values" if isinstance(built, (tuple, list)) else f"a {type(built).__name__}"
        raise UserInputError(f"{where} returned {what}; return (model, args), (model, args, kwargs) or (run, modules)")
    first = built[0]
    if not isinstance(first, torch.nn.Module):
        if not callable(first):
            raise UserInputError(
                f"{where} returned a {type(first).__name__} first; expected a torch.nn.Module or a run() function"
            )
        return _callable(first, built[1], where)
    if len(built) == 3:
        args, kwargs = built[1], built[2]
        if not isinstance(kwargs, Mapping):
            raise UserInputError(f"{where} returned a {type(kwargs).__name__} as kwargs; return a dict")
        args = (args,) if isinstance(args, torch.Tensor) else tuple(args or ())
        return Built("model", first, {"": first}, (InputSet("inputs", args, dict(kwargs)),))
    return Built("model", first, {"": first}, input_sets(built[1], where))


def input_sets(given: Any, where: str) -> tuple[InputSet, ...]:
    """One or several input sets out of what the user returned. Raises UserInputError."""
    if isinstance(given, torch.Tensor):
        return (InputSet("inputs", (given,)),)
    if isinstance(given, Mapping):
        if given and all(isinstance(v, (tuple, list)) and not _numbers(v) for v in given.values()):
            return tuple(_one(str(name), value) for name, value in given.items())
        return (InputSet("inputs", (), {str(k): v for k, v in given.items()}),)
    if isinstance(given, (tuple, list)):
        several = isinstance(given, list) and given and all(isinstance(v, (tuple, dict)) for v in given)
        if several:
            return tuple(_one(f"set {number}", value) for number, value in enumerate(given))
        return (InputSet("inputs", tuple(given)),)
    raise UserInputError(f"{where} returned a {type(given).__name__} as inputs; return a tuple of arguments")


def is_own(value: Any, module: ModuleType) -> bool:
    """Defined in the module rather than imported into it."""
    return getattr(value, "__module__", None) == module.__name__


def _callable(run: Any, modules: Any, where: str) -> Built:
    if isinstance(modules, torch.nn.Module):
        watched = {"": modules}
    elif isinstance(modules, Mapping):
        watched = {str(name): module for name, module in modules.items()}
    elif isinstance(modules, (list, tuple)):
        watched = {f"{type(m).__name__}{number}": m for number, m in enumerate(modules)}
    else:
        raise UserInputError(f"{where} gives no modules to watch beside run(); return (run, {{name: module}})")
    wrong = [name for name, module in watched.items() if not isinstance(module, torch.nn.Module)]
    if wrong or not watched:
        what = f"{wrong[0]!r} is no torch.nn.Module" if wrong else "the modules are empty"
        raise UserInputError(f"{where}: {what}; return (run, {{name: module}})")
    if len(watched) == 1:
        watched = {"": next(iter(watched.values()))}
    return Built("callable", run, watched, (InputSet("run"),))


def _one(name: str, value: Any) -> InputSet:
    if isinstance(value, Mapping):
        return InputSet(name, (), {str(k): v for k, v in value.items()})
    if len(value) == 2 and isinstance(value[0], (tuple, list)) and isinstance(value[1], dict):
        return InputSet(name, tuple(value[0]), {str(k): v for k, v in value[1].items()})
    return InputSet(name, tuple(value))


def _numbers(value: Any) -> bool:
    """A list argument such as sizes=[3, 4]: plain values without a tensor, so no input set of its own."""
    return not tensors_in(list(value))
