"""Imports the user's file or module, survives what it does, and says in one line what went wrong.

Invariants: the working folder, argv and signal handlers are put back; SystemExit and KeyboardInterrupt raised by the
file become UserInputError; nothing the file registers with torch goes unnoticed.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import torch

from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError
from forge_tui.workload.memory import memory_problem, readable

BACKENDS = ("CPU", "CUDA", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "AutogradCPU", "AutogradCUDA")
_INTERNAL = (os.sep + "torch" + os.sep, "<frozen importlib", "forge_tui" + os.sep)


def load_module(target: str) -> ModuleType:
    """The module of a path "file.py" or a dotted name. Raises UserInputError."""
    looks_like_path = target.endswith(".py") or os.sep in target or Path(target).exists()
    return load_file(Path(target)) if looks_like_path else load_named(target)


def load_file(path: Path) -> ModuleType:
    """Import a Python file under its own name, its folder on the import path. Raises UserInputError."""
    if not path.exists():
        near = difflib.get_close_matches(path.name, _neighbours(path.parent), n=1, cutoff=0.6)
        hint = f"did you mean {path.with_name(near[0])}?" if near else "give the path of a Python file"
        raise UserInputError(f"{path} does not exist; {hint}")
    if path.is_dir():
        raise UserInputError(f"{path} is a folder; give a Python file inside it, or package.module:function")
    if path.suffix != ".py":
        raise UserInputError(f"{path} is not a Python file; give a .py file, package.module:function or example:NAME")
    try:
        path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UserInputError(f"{path} can't be read ({error.strerror}); check its permissions") from None
    except UnicodeDecodeError:
        raise UserInputError(f"{path} is not Python text (it is not UTF-8)") from None
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UserInputError(f"{path} is not a Python file; give a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with guarded(f"importing {path.name}"):
        spec.loader.exec_module(module)
    return module


def load_named(name: str) -> ModuleType:
    """Import a dotted module as the user's shell would, the working folder included. Raises UserInputError."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        known = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        known = None
    if known is None:
        raise UserInputError(f"no module named {name!r}; give a path ending in .py, or install the package")
    with guarded(f"importing {name}"):
        return importlib.import_module(name)


def attribute(module: ModuleType, name: str) -> Any:
    """The attribute `name`, or a UserInputError with the nearest names."""
    if hasattr(module, name):
        return getattr(module, name)
    names = [n for n in vars(module) if not n.startswith("_")]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = (
        f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(sorted(names)[:8]) or 'nothing public'}"
    )
    where = Path(getattr(module, "__file__", None) or module.__name__).name
    raise UserInputError(f"{where} has no {name!r}; {hint}")


@contextlib.contextmanager
def guarded(doing: str) -> Iterator[None]:
    """Run user code: its exceptions become one line, process state it must not change is put back."""
    folder, argv = Path.cwd(), list(sys.argv)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except (UserInputError, HarnessProblem, MachineProblem):
        raise
    except (SystemExit, KeyboardInterrupt) as error:
        code = f" (code {error.code})" if isinstance(error, SystemExit) and error.code is not None else ""
        place = user_frames(error.__traceback__)
        raise UserInputError(f"{doing}: {place}the code stops the program{code}; guard it with __main__") from None
    except BaseException as error:  # noqa: BLE001 - the border to the user's code: anything may come out of it
        problem = memory_problem(error, doing)
        raise (problem or UserInputError(f"{doing}: {told(error)}")) from None
    finally:
        with contextlib.suppress(OSError):
            os.chdir(folder)
        sys.argv[:] = argv
        for number, handler in handlers.items():
            if handler is not None:
                with contextlib.suppress(ValueError, OSError):
                    signal.signal(number, handler)


def told(error: BaseException) -> str:
    """ "model.py:12 > layers.py:7: ValueError: text" on one line, capped."""
    text = readable(error)
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{Path(error.filename).name}:{error.lineno}: "
        text = error.msg or text
    else:
        where = user_frames(error.__traceback__)
    line = " ".join(f"{where}{type(error).__name__}: {text}".split())
    return line if len(line) <= 400 else line[:397] + "..."


def user_frames(trace: TracebackType | None, keep: int = 3) -> str:
    """The traceback's frames in the user's own code as "file.py:12 > file.py:7: ", innermost last."""
    frames = [
        f
        for f in traceback.extract_tb(trace)
        if not any(part in f.filename for part in _INTERNAL) and not f.filename.startswith("<")
    ]
    own = [f for f in frames if "site-packages" not in f.filename] or frames
    if not own:
        return ""
    return " > ".join(f"{Path(f.filename).name}:{f.lineno}" for f in own[-keep:]) + ": "


def registered_operators() -> dict[str, frozenset[str]]:
    """What is registered with torch's dispatcher now: all names, and the names per backend key."""
    dispatcher = torch._C
    found = {"": frozenset(str(n) for n in dispatcher._dispatch_get_all_op_names())}
    for key in BACKENDS:
        found[key] = frozenset(str(n) for n in dispatcher._dispatch_get_registrations_for_dispatch_key(key))
    return found


def added_operators(before: dict[str, frozenset[str]], modules_before: frozenset[str]) -> frozenset[str]:
    """Operators registered since `before` by something other than torch and well-known extensions."""
    after = registered_operators()
    added: set[str] = set()
    for key, names in after.items():
        added |= names - before.get(key, frozenset())
    loaded = {name.split(".")[0] for name in set(sys.modules) - modules_before}
    # A package that comes with its own operators (torchvision::nms) is the user's library, not the user's file.
    libraries = {name for name in loaded if name in ("torchvision", "torchaudio", "torchao", "xformers", "flash_attn")}
    return frozenset(
        name for name in added if name.split("::")[0] not in libraries | {"prims", "quantized", "inductor", "profiler"}
    )


def _module_name(path: Path) -> str:
    """The file's own name, so that its neighbours can import it back; prefixed where that would hide a module."""
    stem = path.stem
    if not stem.isidentifier() or stem in sys.stdlib_module_names:
        return f"forge_workload_{abs(hash(str(path.resolve()))):x}"
    loaded = sys.modules.get(stem)
    if loaded is not None and Path(getattr(loaded, "__file__", None) or "") != path.resolve():
        return f"forge_workload_{stem}"
    try:
        found = importlib.util.find_spec(stem)
    except (ImportError, ValueError):
        found = None
    if found is not None and found.origin and Path(found.origin).resolve() != path.resolve():
        return f"forge_workload_{stem}"
    return stem


def _neighbours(folder: Path) -> list[str]:
    try:
        return [p.name for p in folder.iterdir() if p.suffix == ".py"]
    except OSError:
        return []
