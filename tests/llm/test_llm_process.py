"""The LLM process over real HTTP on loopback: outcomes, accounting, secrets, and the spool."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from openai_server import reply_text, serve

from forge_tui.engine.processes import Child
from forge_tui.llm.reply import parse_reply
from forge_tui.llm.spool import spooled
from forge_tui.records.boot import boot_command
from forge_tui.records.codec import dumps
from forge_tui.records.llm import LlmReply, LlmRequest

GOOD = reply_text("int forge_launch(const forge_args*) { return 0; }")


def ask(number: int, base: str, model: str = "openai/scripted", timeout_s: float = 10.0) -> LlmRequest:
    return LlmRequest(
        f"c{number}",
        "card",
        "generate",
        model,
        ({"role": "user", "content": "write it"},),
        "v1",
        0.5,
        512,
        base,
        timeout_s,
    )


async def started(spool: Path, prices: dict[str, list[float]] | None = None) -> Child:
    child = Child("llm process")
    environment = {
        **os.environ,
        "OPENAI_API_KEY": "sk-secret-canary-123456",
        "ANTHROPIC_API_KEY": "ant-canary-987654321",
    }
    await child.start(boot_command(sys.executable, "forge_tui.llm.process"), environment)
    await child.request("hello", {"spool": str(spool), "prices": prices or {}}, dict, 60)
    return child


async def test_each_kind_of_answer_comes_back_under_its_name(tmp_path: Path) -> None:
    script = [
        {"text": GOOD, "usage": [120, 80]},
        {"text": "", "finish": "length"},
        {"status": 429, "text": "slow down"},
        {"status": 401, "text": "Incorrect API key provided: sk-secret-canary-123456"},
        {"raw": "this is not json"},
        {"text": "late", "delay": 3},
    ]
    with serve(script) as served:
        child = await started(tmp_path / "spool", {"openai/scripted": [1e-6, 2e-6]})
        try:
            replies = [
                await child.request("complete", ask(n, served.base, timeout_s=1.0 if n == 5 else 10.0), LlmReply, 30)
                for n in range(6)
            ]
        finally:
            await child.close()
    good, empty, limited, denied, broken, late = replies
    assert good.state == "replied" and parse_reply(good, "cpp").outcome == "ok"
    assert good.cost_usd == pytest.approx(120e-6 + 160e-6)
    assert parse_reply(empty, "cpp").outcome == "empty"
    assert limited.state == "failed" and limited.retryable and "RateLimitError" in limited.line
    assert denied.state == "failed" and not denied.retryable
    assert broken.state == "failed"
    assert late.state == "failed" and late.retryable
    assert len(served.requests) == 6, "one request per call: retries are the engine's to count"
    assert not any("canary" in dumps(reply) for reply in replies)
    assert "canary" not in "".join(p.read_text() for p in (tmp_path / "spool").iterdir())
    assert spooled(tmp_path / "spool").keys() == {f"c{n}" for n in range(6)}


async def test_a_reply_that_no_file_can_hold_is_still_answered(tmp_path: Path) -> None:
    with serve(
        [{"text": "half \ud800 a pair"}, {"raw": '{"id": "x", "object": "chat.completion", "choices": []}'}]
    ) as served:
        child = await started(tmp_path)
        try:
            odd = await child.request("complete", ask(1, served.base), LlmReply, 30)
            empty = await child.request("complete", ask(2, served.base), LlmReply, 30)
        finally:
            await child.close()
    assert odd.state == "replied" and odd.text.startswith("half ")
    assert empty.state == "failed"


async def test_an_unknown_price_is_unknown_rather_than_zero(tmp_path: Path) -> None:
    with serve([{"text": GOOD}]) as served:
        child = await started(tmp_path)
        try:
            price = await child.request("price", {"model": "openai/nobody-knows-this"}, dict, 30)
            known = await child.request("price", {"model": "gpt-4o"}, dict, 30)
            reply = await child.request("complete", ask(1, served.base), LlmReply, 30)
        finally:
            await child.close()
    assert price == {"input": None, "output": None}
    assert known["input"] > 0
    assert reply.cost_usd is None


async def test_a_reply_is_on_disk_even_if_nobody_was_there_to_take_it(tmp_path: Path) -> None:
    import asyncio

    with serve([{"text": GOOD, "delay": 0.5}]) as served:
        child = await started(tmp_path)
        waiting = asyncio.ensure_future(child.request("complete", ask(9, served.base), LlmReply, 30))
        for _ in range(100):
            await asyncio.sleep(0.05)
            if spooled(tmp_path):
                break
        waiting.cancel()
        await child.kill()
    assert spooled(tmp_path)["c9"].text == GOOD
