"""Whole models: eager, torch.compile and the cast side by side, found by live searches without a key.

`python tests/bench/models.py [--minutes 4] [NAME[:OPTION=VALUE,...] ...]` searches each shipped example in a session of its
own and prints one table; JSON goes to models.json in the current folder (one row per model, resumed where it exists).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ALL = ("minilm:batch=1", "smollm2:tokens=16", "decoder_block", "resnet50", "vae_block", "audio_encoder", "recommender")


def one(text: str, minutes: float, compile_s: float) -> dict[str, Any]:
    """Search one example and return its row."""
    name, _, options = text.partition(":")
    flags = [part for option in options.split(",") if option for part in ("--option", option)]
    settings = [
        f"budget.minutes={minutes}",
        "budget.attempts=16",
        f"run.compile_limit_s={compile_s}",
        "judge.confirm_seconds=4",
        "judge.model_pairs=80",
    ]
    settings += ["judge.model_seconds=40", "run.compile_cards=false", "run.max_cards=10"]
    command = [sys.executable, "-m", "forge_tui.cli", "run", f"example:{name}", *flags, "--headless", "--json"]
    command += [part for s in settings for part in ("--set", s)]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        environment = dict(os.environ, FORGE_HOME=home, PYTHONPATH=str(ROOT))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    row: dict[str, Any] = {"model": text, "exit": done.returncode, "seconds": round(time.monotonic() - started)}
    try:
        result = json.loads(done.stdout)
    except ValueError:
        return row | {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    return row | {"cards": result["cards"], "verdict": result["model"]}


def line(row: dict[str, Any]) -> str:
    verdict = row.get("verdict") or {}
    timing = verdict.get("timing") or {}
    champions = [c for c in row.get("cards", []) if c["champion"]]

    def number(value: float | None, form: str = "{:.2f}") -> str:
        return "unknown" if value is None else form.format(value)

    interval = (
        f"{number(timing.get('speedup'), '{:.3f}')} [{number(timing.get('low'), '{:.3f}')}, {number(timing.get('high'), '{:.3f}')}]"
        if timing
        else row.get("error", "no cast")
    )
    eager = timing.get("baseline_us")
    cast = timing.get("candidate_us")
    return (
        f"{row['model']:24} {number(eager and eager / 1e3):>9} {number(verdict.get('compile_ms')):>10} {number(cast and cast / 1e3):>9}  {interval:24} "
        f"{verdict.get('hits', 0)}/{verdict.get('calls', 0):<5} {len(champions):>2}  exit {row['exit']}  {row['seconds']} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=list(ALL))
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--compile-seconds", type=float, default=120.0)
    arguments = parser.parse_args()
    path = Path("models.json")
    rows: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}, {' '.join(sys.argv)}"
    )
    print(f"{'model':24} {'eager ms':>9} {'compile ms':>10} {'cast ms':>9}  {'cast over eager':24} hits     champions")
    for text in arguments.models:
        if text not in rows:
            rows[text] = one(text, arguments.minutes, arguments.compile_seconds)
            path.write_text(json.dumps(rows, indent=1))
        print(line(rows[text]), flush=True)


if __name__ == "__main__":
    main()
