"""Folders depend on each other in one direction, and the screen's process stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "forge_tui"
# room -> rooms it may import (records are allowed everywhere)
ALLOWED: dict[str, set[str]] = {
    "records": set(),
    "sandbox": set(),
    "machine": set(),
    "settings": set(),
    "languages": {"sandbox"},
    "launch": set(),
    "store": set(),
    "workload": {"examples"},
    "examples": set(),
    "capture": {"workload", "cast", "examples", "machine"},
    "judge": {"sandbox", "cast", "machine", "launch"},
    "verbs": {"engine", "store", "settings", "tui", "cast", "examples", "languages", "sandbox"},
    "cast": set(),
    "proposers": {"llm"},
    "llm": set(),
    "search": set(),
    "engine": {"sandbox", "settings", "languages", "store", "proposers", "llm", "search", "cast", "examples"},
    "tui": {"store", "settings", "engine"},
}
HEAVY = {"torch", "triton", "cupy", "litellm", "openai", "numpy", "pydantic", "transformers"}
# Rooms whose modules may import torch at the top: they run in the user's interpreter.
TORCH_ROOMS = {"workload", "capture", "judge", "cast", "examples"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return found


def top_level_imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return found


def room_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_rooms_import_only_what_lies_below_them(path: Path) -> None:
    room = room_of(path)
    if room not in ALLOWED:
        return
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] != "forge_tui" or len(parts) < 2:
            continue
        assert parts[1] in ALLOWED[room] | {room, "records"}, f"{room} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_packages_stay_out_of_module_tops(path: Path) -> None:
    heavy = {name.split(".")[0] for name in top_level_imports(path)} & HEAVY
    if room_of(path) in TORCH_ROOMS:
        heavy -= {"torch"}
    assert not heavy, f"{path.name} imports {sorted(heavy)} at the top"


@pytest.mark.parametrize("module", ["forge_tui.cli", "forge_tui.tui.app", "forge_tui.engine.run"])
def test_the_ui_process_never_imports_heavy_packages(module: str) -> None:
    code = f"import {module}, sys; print(' '.join(sorted(m.split('.')[0] for m in sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


def test_the_command_line_does_not_import_textual_until_it_needs_a_screen() -> None:
    code = "import forge_tui.cli, sys; print(' '.join(sorted(m.split('.')[0] for m in sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"textual", "rich", "sqlite_utils", "pygments"} & set(done.stdout.split())
