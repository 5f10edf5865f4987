"""Doctor: what works on this machine, what does not, and the command that fixes it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forge_tui import __version__
from forge_tui.engine.options import options_from
from forge_tui.languages.registry import all_languages, language
from forge_tui.records.problem import Problem
from forge_tui.sandbox.profile import detect
from forge_tui.settings.load import load
from forge_tui.store.places import home, network_filesystem
from forge_tui.verbs.tables import print_json

KEYS = (
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "AZURE_API_KEY",
    "MISTRAL_API_KEY",
    "GROQ_API_KEY",
    "OPENROUTER_API_KEY",
    "DEEPSEEK_API_KEY",
    "FORGE_LLM_KEY",
)
PROBE = (
    "import json,sys,sysconfig,os,torch;p=os.path.join(sysconfig.get_paths()['include'],'Python.h');"
    "print(json.dumps({'python':sys.version.split()[0],'torch':torch.__version__,'cuda':torch.version.cuda,"
    "'gpu':torch.cuda.get_device_name(0) if torch.cuda.is_available() else '','headers':os.path.exists(p),"
    "'cxx':os.path.isdir(os.path.join(os.path.dirname(torch.__file__),'include','ATen'))}))"
)


@dataclass(frozen=True)
class Finding:
    """state: "ok", "note" (works, with less), "bad" (something is missing) or "unknown". fix: what to do, or ""."""

    what: str
    state: str
    line: str
    fix: str = ""


def doctor(arguments: argparse.Namespace) -> int:
    found = list(findings())
    if arguments.json:
        print_json(found)
    else:
        print(report(found))
    return 0 if all(f.state != "bad" for f in found) else 1


def report(found: list[Finding]) -> str:
    """The findings as text: one line each, the fix below."""
    lines = []
    for f in found:
        lines.append(f"{f.state:8} {f.what:22} {f.line}")
        if f.fix:
            lines.append(f"{'':8} {'':22} -> {f.fix}")
    return "\n".join(lines)


def findings() -> Iterator[Finding]:
    """Every check in turn. None of them changes anything."""
    yield Finding("forge_tui", "ok", f"{__version__}, Python {sys.version.split()[0]}")
    settings = load()
    for warning in settings.warnings:
        yield Finding("settings", "note", warning)
    yield from _worker(options_from(settings.settings).python)
    yield from _languages()
    profile = detect()
    off = ", ".join(f"{name}: {state}" for name, state in profile.layers.items() if state != "on")
    yield Finding(
        "sandbox",
        "ok" if profile.name == "full" else "note",
        f"profile {profile.name}" + (f" ({off})" if off else ""),
        "" if profile.name == "full" else profile.line,
    )
    yield from _places()
    yield from _gpu()
    present = [name for name in KEYS if os.environ.get(name)]
    yield Finding(
        "model keys",
        "ok" if present else "note",
        ", ".join(present) + " set (values are never shown)" if present else "none set: recipes work without one",
        "",
    )
    yield from _terminal()


def _worker(python: str) -> Iterator[Finding]:
    try:
        done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding(
            "torch interpreter",
            "bad",
            f"{python} can't be run: {error}",
            "set run.python to an interpreter that has torch",
        )
        return
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding(
            "torch interpreter",
            "bad",
            f"{python}: {last}",
            "set run.python to an interpreter that has torch, or run the README's first command",
        )
        return
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    yield Finding(
        "torch interpreter",
        "ok",
        f"{python}: Python {facts['python']}, torch {facts['torch']}, CUDA {facts['cuda'] or 'none'}",
    )
    if not facts["headers"]:
        yield Finding(
            "Python headers",
            "note",
            "missing: torch.compile can't build, its baseline reads unknown",
            "Debian and Ubuntu: apt install python3-dev",
        )
    if not facts["cxx"]:
        yield Finding(
            "torch headers",
            "note",
            "missing: casts use the Python dispatch tier (2 to 5 us a call)",
            "install a torch wheel that ships its headers",
        )


def _languages() -> Iterator[Finding]:
    for name in all_languages():
        found = language(name).probe()
        if isinstance(found, Problem):
            yield Finding(f"language {name}", "note" if name != "cpp" else "bad", found.line)
        else:
            yield Finding(
                f"language {name}",
                "ok" if found.runnable else "note",
                f"{found.version}, target {found.target[:60]}" + (f"; {found.line}" if found.line else ""),
            )


def _places() -> Iterator[Finding]:
    place = home()
    yield Finding(
        "sessions", "note" if place.line else "ok", f"{place.sessions}" + (f": {place.line}" if place.line else "")
    )
    parent = place.sessions
    while not parent.exists():
        parent = parent.parent
    free = shutil.disk_usage(parent).free / 1e9
    yield Finding(
        "disk",
        "ok" if free > 2 else "bad",
        f"{free:.1f} GB free where sessions are kept",
        "" if free > 2 else "free some space, or set FORGE_HOME to another disk",
    )
    kind = network_filesystem(Path.cwd())
    if kind:
        yield Finding("this folder", "note", f"on a network file system ({kind}); sessions are kept elsewhere")


def _gpu() -> Iterator[Finding]:
    if shutil.which("nvidia-smi") is None:
        yield Finding("NVIDIA GPU", "note", "none found (no nvidia-smi): CPU targets only")
        return
    query = ["nvidia-smi", "--query-gpu=index,name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("NVIDIA GPU", "unknown", f"nvidia-smi does not answer: {error}")
        return
    for line in done.stdout.strip().splitlines() or ["nvidia-smi lists no device"]:
        yield Finding("NVIDIA GPU", "ok" if done.returncode == 0 else "bad", line)


def _terminal() -> Iterator[Finding]:
    term, colour = os.environ.get("TERM", ""), os.environ.get("COLORTERM", "")
    depth = "true colour" if colour in ("truecolor", "24bit") else "256 colours" if "256" in term else "16 colours"
    yield Finding(
        "terminal", "ok", f"TERM={term or 'unset'}, {depth}" + (", inside tmux" if os.environ.get("TMUX") else "")
    )
    if os.environ.get("SSH_CONNECTION"):
        yield Finding("ssh", "note", "over SSH: `ssh -C` makes the screen 20 to 60 times lighter")
