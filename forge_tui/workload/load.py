"""`load`: from a WorkloadSpec to a Workload that has run once on each of its input sets."""

from __future__ import annotations

import contextlib
import copy
import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from forge_tui.examples import catalogue
from forge_tui.records.problem import UserInputError
from forge_tui.records.workload import Loaded, WorkloadSpec
from forge_tui.workload import forms, importing
from forge_tui.workload.checkpoint import load_into, read_checkpoint
from forge_tui.workload.importing import guarded
from forge_tui.workload.memory import limited_memory
from forge_tui.workload.workload import SEED, InputSet, Workload, moved, tensors_in

TRAINING = "inference only for now: {what}; give a forward pass under torch.no_grad()"


def load(spec: WorkloadSpec) -> Workload:
    """Build the workload and run it once per input set.

    Raises UserInputError (one line: what is wrong, what to do) or MachineProblem (too little memory, with sizes).
    """
    torch.set_num_threads(max(1, spec.threads))
    if spec.device.startswith("cuda") and not torch.cuda.is_available():
        raise UserInputError(
            f"device {spec.device} is not available to torch {torch.__version__} here; use --device cpu"
        )
    torch.manual_seed(SEED)
    before, modules_before = importing.registered_operators(), frozenset(sys.modules)
    with limited_memory() if spec.device == "cpu" else contextlib.nullcontext():
        with _weights_watched() as seen:
            built, name, synthetic = _build(spec)
        notes = _prepare(built, spec)
        if spec.weights:
            load_into(built.modules, read_checkpoint(Path(spec.weights)), Path(spec.weights).name)
        if not spec.source.startswith("example:"):
            synthetic = _synthetic(built, random_weights=seen["random"] and not seen["loaded"] and not spec.weights)
        if spec.device != "cpu":
            built = _on_device(built, spec.device)
        workload = Workload(
            name, built.kind, built.call, built.modules, built.inputs, synthetic,
            importing.added_operators(before, modules_before), notes, own_grad=built.kind == "callable",
        )  # fmt: skip
        _check_inputs(workload)
        workload.fresh = any([_first_run(workload, index) for index in range(len(workload.inputs))])
    torch.set_num_threads(max(1, spec.threads))
    return workload


def loaded_record(workload: Workload) -> Loaded:
    """The record about a workload that goes to the engine."""
    tensors = list(workload.parameters().values())
    versions = {"python": sys.version.split()[0], "torch": str(torch.__version__)}
    for package in ("transformers", "diffusers", "numpy"):
        if package in sys.modules:
            versions[package] = str(getattr(sys.modules[package], "__version__", "unknown"))
    return Loaded(
        workload.name, workload.kind,
        parameters=sum(t.numel() for t in tensors if isinstance(t, torch.nn.Parameter)),
        nbytes=sum(t.numel() * t.element_size() for t in tensors),
        input_sets=tuple(s.name for s in workload.inputs),
        synthetic=workload.synthetic, versions=versions, notes=workload.notes,
    )  # fmt: skip


def _build(spec: WorkloadSpec) -> tuple[forms.Built, str, str]:
    if spec.source.startswith("example:"):
        return _example(spec)
    if spec.options:
        raise UserInputError(f"options such as {spec.options[0]!r} belong to examples; a file of your own has none")
    target, _, function = spec.source.rpartition(":")
    if not target or "/" in function or "\\" in function:
        target, function = spec.source, ""
    if not target.endswith(".py") and not function and not Path(target).exists():
        raise UserInputError(
            f"{target!r} is no file; give file.py, file.py:function, package.module:function or example:NAME"
        )
    module = importing.load_module(target)
    where = Path(target).name if target.endswith(".py") else target
    built = forms.from_function(module, function, where) if function else forms.from_module(module, where)
    return built, f"{where.removesuffix('.py')}{':' + function if function else ''}", ""


def _example(spec: WorkloadSpec) -> tuple[forms.Built, str, str]:
    name = spec.source.removeprefix("example:")
    example = catalogue.find(name)
    if example is None:
        known = ", ".join(e.name for e in catalogue.EXAMPLES)
        raise UserInputError(f"there is no example {name!r}; there are {known}")
    try:
        options = catalogue.parse_options(example, spec.options)
    except ValueError as error:
        raise UserInputError(str(error)) from None
    try:
        with guarded(f"example {name}"):
            built = importlib.import_module(example.module).build(**options)
    except UserInputError as error:
        if "No module named" in str(error) or "ModuleNotFoundError" in str(error):
            raise UserInputError(f"example {name} needs packages: pip install {' '.join(example.needs)}") from None
        raise
    return forms.interpret(built, f"example {name}"), f"example:{name}", example.synthetic


def _prepare(built: forms.Built, spec: WorkloadSpec) -> tuple[str, ...]:
    """Evaluation mode for a model that we call ourselves; run() callables keep the user's modes."""
    notes = []
    for name, module in built.modules.items():
        training = any(part.training for part in module.modules())
        if training and built.kind != "callable":
            module.eval()
            notes.append("the model was in training mode; it is measured in evaluation mode")
        elif training:
            notes.append(f"module {name or type(module).__name__} is in training mode, as run() left it")
    return tuple(notes)


def _synthetic(built: forms.Built, random_weights: bool) -> str:
    parts = [word for word, made_up in (("weights", random_weights), ("inputs", built.random_inputs)) if made_up]
    has_parameters = any(True for m in built.modules.values() for _ in m.parameters())
    parts = [p for p in parts if p != "weights" or has_parameters]
    return f"random {' and '.join(parts)}" if parts else ""


def _on_device(built: forms.Built, device: str) -> forms.Built:
    if built.kind == "callable":
        return built
    with guarded(f"moving the model to {device}"):
        for module in built.modules.values():
            module.to(device)
        inputs = tuple(InputSet(s.name, moved(s.args, device), moved(s.kwargs, device)) for s in built.inputs)
    return replace(built, inputs=inputs)


def _check_inputs(workload: Workload) -> None:
    if workload.kind == "callable":
        return
    for inputs in workload.inputs:
        if not tensors_in((inputs.args, inputs.kwargs)):
            raise UserInputError(
                f"{workload.name}: input set {inputs.name!r} holds no tensor; return example tensors, "
                "or a run() callable with the modules to watch"
            )


def _first_run(workload: Workload, index: int) -> bool:
    """Run one set; True when the model changed its inputs (it then gets copies from now on). Raises UserInputError."""
    chosen = workload.inputs[index]
    given = tensors_in((chosen.args, chosen.kwargs))
    pristine: InputSet | None
    try:
        pristine = copy.deepcopy(chosen)
    except Exception:  # noqa: BLE001 - the user's objects may raise anything when copied; then they are used as they are
        pristine = None
    label = "run()" if workload.kind == "callable" else f"the model on input set {chosen.name!r}"
    if len(workload.inputs) == 1 and workload.kind != "callable":
        label = "the model on its inputs"
    with _training_refused() as refused:
        with guarded(label):
            torch.manual_seed(SEED)
            result = workload.call_on(chosen)
    if refused:
        raise UserInputError(TRAINING.format(what=refused[0]))
    if workload.own_grad and any(t.requires_grad for t in tensors_in(result)):
        raise UserInputError(TRAINING.format(what="the outputs of run() require gradients"))
    if pristine is None:
        return False
    kept = tensors_in((pristine.args, pristine.kwargs))
    changed = len(kept) != len(given) or any(not _same(a, b) for a, b in zip(given, kept, strict=True))
    if changed or _has_objects((chosen.args, chosen.kwargs)):
        workload.inputs = (*workload.inputs[:index], pristine, *workload.inputs[index + 1 :])
        return True
    return False


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != torch.strided:
        return a is b
    if a.is_floating_point() or a.is_complex():
        return bool(torch.equal(torch.nan_to_num(a.detach()), torch.nan_to_num(b.detach())))
    return bool(torch.equal(a, b))


def _has_objects(value: Any) -> bool:
    """True when an argument is an object with state (a cache): one run may change it in ways that tensors don't show."""
    if isinstance(value, (torch.Tensor, int, float, str, bool, type(None), torch.dtype, torch.device, torch.nn.Module)):
        return False
    if isinstance(value, dict):
        return any(_has_objects(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return any(_has_objects(v) for v in value)
    return not callable(value)


@contextlib.contextmanager
def _weights_watched() -> Iterator[dict[str, bool]]:
    """Notice whether a build drew random numbers, and whether it loaded weights from somewhere."""
    seen = {"random": False, "loaded": False}
    kept = {"load_state_dict": torch.nn.Module.load_state_dict, "load": torch.load}

    def load_state_dict(*args: Any, **kwargs: Any) -> Any:
        seen["loaded"] = True
        return kept["load_state_dict"](*args, **kwargs)

    def load_file(*args: Any, **kwargs: Any) -> Any:
        seen["loaded"] = True
        return kept["load"](*args, **kwargs)

    before = torch.get_rng_state()
    torch.nn.Module.load_state_dict, torch.load = load_state_dict, load_file
    try:
        yield seen
    finally:
        torch.nn.Module.load_state_dict, torch.load = kept["load_state_dict"], kept["load"]
        seen["random"] = not torch.equal(before, torch.get_rng_state())


class _NoBackward:
    """Stands in for autograd's engine: a backward pass is noted and refused."""

    def __init__(self, tried: list[str]) -> None:
        self._tried = tried

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        self._tried.append("a backward pass was started")
        raise UserInputError(TRAINING.format(what=self._tried[-1]))


@contextlib.contextmanager
def _training_refused() -> Iterator[list[str]]:
    """Any backward pass or optimiser step inside raises; the list says what was tried, even when the user catches it.

    The engine is replaced rather than torch.autograd's functions: torch.compile indexes those by identity.
    """
    tried: list[str] = []

    def refuse_step(*args: Any, **kwargs: Any) -> None:
        tried.append("an optimizer step was made")
        raise UserInputError(TRAINING.format(what=tried[-1]))

    hook = register_optimizer_step_pre_hook(refuse_step)
    engine = torch.autograd.Variable._execution_engine
    torch.autograd.Variable._execution_engine = _NoBackward(tried)
    try:
        yield tried
    finally:
        torch.autograd.Variable._execution_engine = engine
        hook.remove()
