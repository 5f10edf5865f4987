"""Trusted children: answers, problems, deaths and silence each come back as what they are."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forge_tui.engine.processes import Child, ProblemReply, child_environment
from forge_tui.records.problem import HarnessProblem, MachineProblem

SERVER = """
import os, sys, time
from forge_tui.records.serving import serve
from forge_tui.records.problem import UserInputError
def double(body, progress):
    progress(done=1, of=2)
    print("noise on stdout \\x1b[31m")
    return {"value": body["value"] * 2}
def fail(body, progress): raise UserInputError("no such file; give another")
def bug(body, progress): return 1 / 0
def die(body, progress): os._exit(9)
def sleep(body, progress): time.sleep(60)
def env(body, progress): return dict(os.environ)
serve({"double": double, "fail": fail, "bug": bug, "die": die, "sleep": sleep, "env": env})
"""


@asynccontextmanager
async def child(lines: list[str] | None = None) -> AsyncIterator[Child]:
    running = Child("test child", lambda name, line: lines.append(line) if lines is not None else None)
    await running.start(
        [sys.executable, "-c", SERVER], child_environment({"PYTHONPATH": str(Path(__file__).parents[2])})
    )
    try:
        yield running
    finally:
        await running.kill()


async def test_requests_are_answered_with_progress_and_output_is_drained_as_plain_text() -> None:
    lines: list[str] = []
    seen: list[dict[str, object]] = []
    async with child(lines) as c:
        assert await c.request("double", {"value": 4}, dict, 20, seen.append) == {"value": 8}
        await asyncio.sleep(0.2)
    assert seen == [{"done": 1, "of": 2}]
    assert any("noise on stdout" in line and "\x1b" not in line for line in lines)


async def test_problems_keep_their_blame_and_the_child_stays_up() -> None:
    async with child() as c:
        with pytest.raises(ProblemReply) as user:
            await c.request("fail", None, dict, 20)
        assert user.value.problem.blame == "user"
        with pytest.raises(ProblemReply) as harness:
            await c.request("bug", None, dict, 20)
        assert harness.value.problem.blame == "harness"
        assert "ZeroDivisionError" in harness.value.problem.line
        assert await c.request("double", {"value": 1}, dict, 20) == {"value": 2}


async def test_a_death_says_how_it_died() -> None:
    async with child() as c:
        with pytest.raises(HarnessProblem, match="exit 9"):
            await c.request("die", None, dict, 20)
        assert not c.alive


async def test_silence_is_ended_by_the_limit() -> None:
    async with child() as c:
        with pytest.raises(HarnessProblem, match="did not answer 'sleep' within"):
            await c.request("sleep", None, dict, 1.0)


async def test_a_missing_interpreter_is_a_machine_problem() -> None:
    with pytest.raises(MachineProblem, match="could not be started"):
        await Child("model process").start(["/nowhere/python"], {})


async def test_children_get_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    async with child() as c:
        seen = await c.request("env", None, dict, 20)
    assert "OPENAI_API_KEY" not in seen
    assert "canary" not in " ".join(map(str, seen.values()))
    assert os.environ["OPENAI_API_KEY"] == "canary"
