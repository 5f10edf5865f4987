"""Running a search without a screen: run, resume, demo --headless."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from forge_tui.engine.commands import Commands
from forge_tui.engine.finish import summary
from forge_tui.engine.run import Run
from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError
from forge_tui.records.workload import WorkloadSpec
from forge_tui.settings.schema import Settings, known
from forge_tui.store.control import serve
from forge_tui.store.session import Session
from forge_tui.verbs import DONE, INTERRUPTED, NO_GAIN
from forge_tui.verbs.tables import interval, number, percent, plain, print_json, say, table


def spec_of(session: Session) -> WorkloadSpec:
    """What a stored session works on. Raises UserInputError when its database does not say."""
    from forge_tui.store.reader import Reader

    with Reader(session.path) as reader:
        spec = reader.workload()[0]
    if spec is None:
        raise UserInputError(f"{session.path} does not say which model it is for; start a new session")
    return spec


def settings_of(session: Session, settings: Settings, given: Collection[str] = ()) -> Settings:
    """Settings a session goes on with: those it last ran under, where nothing was given now (`given`: keys set by flags)."""
    from forge_tui.store.reader import Reader

    with Reader(session.path) as reader:
        stored = next((row.settings for row in reversed(reader.runs()) if row.settings), None) or {}
    for key, value in stored.items():
        if key in known() and key not in given and not key.startswith("ui."):
            settings = settings.with_value(key, value)
    return settings


def run_headless(session: Session, spec: WorkloadSpec, settings: Settings, as_json: bool) -> int:
    """Run a session to its end in this terminal. Returns the exit code; problems are raised."""
    return asyncio.run(_headless(session, spec, settings, as_json))


async def _headless(session: Session, spec: WorkloadSpec, settings: Settings, as_json: bool) -> int:
    started = time.monotonic()
    run = Run(session, spec, settings)
    run.services.unattended = True
    commands = Commands(run)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number_ in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number_, stopped.set)
    say(f"session {session.path}")
    narrator = Narrator(run)
    telling = asyncio.create_task(narrator.run())
    work = asyncio.create_task(_work(run, commands))
    stop = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            say(f"interrupted: stopping; go on with `forge-tui resume {session.path}`")
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            return INTERRUPTED
        work.result()
        await asyncio.sleep(0.3)  # log lines are written in batches
        narrator.tell()
        if run.services.stopping.startswith("problem: ") and run.verdict is None:
            raise MachineProblem(run.services.last_fault)
    finally:
        stop.cancel()
        telling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await telling
        result = summary(run.services, run.verdict)
        await run.close()
    if as_json:
        print_json(
            result | {"cast": str(run.cast_path) if run.cast_path else None, "seconds": time.monotonic() - started}
        )
    else:
        print(summary_text(run, result, time.monotonic() - started))
    if commands.quit_requested:
        return INTERRUPTED
    return DONE if run.verdict is not None and run.verdict.proven else NO_GAIN


async def _work(run: Run, commands: Commands) -> None:
    server = await serve(run.session, commands)
    try:
        await run.go()
    finally:
        await server.close()


class Narrator:
    """Log lines to stderr as they are stored."""

    def __init__(self, run: Run) -> None:
        self._reader = run.store.reader
        self._seen = 0

    def tell(self) -> None:
        """Print what is new."""
        rows = self._reader.log(levels=("info", "good", "warn", "bad"), after=self._seen, limit=1000)
        for row in rows:
            stamp = time.strftime("%H:%M:%S", time.localtime(row.at))
            say(f"{stamp} {row.candidate_id:5} {plain(row.text)}")
        self._seen = rows[-1].seq if rows else self._seen

    async def run(self) -> None:
        while True:
            await asyncio.to_thread(self.tell)
            await asyncio.sleep(0.3)


def summary_text(run: Run, result: dict[str, Any], seconds: float) -> str:
    """The closing table: every card that was worked on, then the whole model."""
    rows = [r for r in result["cards"] if r["state"] != "left alone"]
    lines = [
        table(
            ["operator card", "calls", "share", "eager us", "champion us", "speed-up (confirmed)", "installed >=", "tried", "rejected", "audit class"],
            [
                [
                    r["title"], str(r["calls"]), percent(r["share"]), number(r["eager_us"], "{:.1f}"), number(r["champion_us"], "{:.1f}", "-"),
                    interval(r["speedup"], r["low"], r["high"]) if r["champion"] else r["outcome"], number(r["installed_low"], "{:.2f}x", "-"),
                    str(r["candidates"]), str(r["rejected"]), r["audit_class"] or "-",
                ]
                for r in rows
            ],
            right=(1, 2, 3, 4, 7, 8),
        ),
        f"({sum(1 for r in result['cards'] if r['state'] == 'left alone')} small cards were left alone)",
        "",
    ]  # fmt: skip
    verdict = run.verdict
    if verdict is None:
        lines.append("whole model: not tested, there is no champion")
    else:
        lines += model_lines(run, verdict)
    if run.cast_path:
        lines.append(f"cast: {run.cast_path}")
    lines.append(f"session: {run.session.path}   {seconds:.0f} s")
    return "\n".join(lines)


def model_lines(run: Run, verdict: Any) -> list[str]:
    """The whole-model verdict in words and numbers."""
    timing = verdict.timing
    name = run.loaded.name if run.loaded else "model"
    outputs = {True: "right", False: "WRONG", None: "unknown"}[verdict.outputs_ok]
    compiled = (
        f"{verdict.compile_ms:.2f} ms"
        if verdict.compile_ms is not None
        else f"unknown ({verdict.compile_line or 'not measured'})"
    )
    if timing is None:
        speed = f"time unknown ({verdict.line})"
    else:
        speed = f"eager {timing.baseline_us / 1e3:.3f} ms, with the cast {timing.candidate_us / 1e3:.3f} ms: {timing.speedup:.3f}x [{timing.low:.3f}, {timing.high:.3f}] over {timing.pairs} pairs, {timing.threads} threads"
    misses = ", ".join(f"{k} {v}" for k, v in sorted(verdict.misses.items())) or "none"
    synthetic = f"   ({run.loaded.synthetic})" if run.loaded and run.loaded.synthetic else ""
    verdict_line = "proven gain" if verdict.proven else "no proven gain"
    return [
        f"whole model {name}{synthetic}: {verdict_line}",
        f"  {speed}",
        f"  torch.compile {compiled}",
        f"  outputs {outputs}: {verdict.line}",
        f"  served {verdict.hits} of {verdict.calls} matching calls ({verdict.tier}: {verdict.tier_reason}); misses: {misses}",
    ]


def new_session(name: str, spec: WorkloadSpec, path: str = "") -> Session:
    """Create a session, named after its model."""
    return Session.create(Path(path) if path else None, name, spec)


def session_name(source: str) -> str:
    """A short name from a model's source: example:minilm -> minilm, dir/my_model.py:build -> my_model."""
    text = source.removeprefix("example:")
    text = text.split(":")[0]
    stem = Path(text).stem if text.endswith(".py") or "/" in text else text.split(".")[-1]
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in stem).strip("-") or "session"


__all__ = ["HarnessProblem", "MachineProblem", "new_session", "run_headless", "session_name", "spec_of", "summary_text"]
