"""Nothing compiles while the judge measures, and neither side waits for ever."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tui.engine.gate import MachineGate


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=20))
def test_the_judge_is_always_alone(plan: list[tuple[bool, int]]) -> None:
    async def scenario() -> None:
        gate = MachineGate()
        inside: list[str] = []

        async def one(alone: bool, steps: int) -> None:
            async with gate.exclusive() if alone else gate.shared():
                inside.append("judge" if alone else "compile")
                assert inside.count("judge") == 0 or len(inside) == 1
                for _ in range(steps):
                    await asyncio.sleep(0)
                inside.remove("judge" if alone else "compile")

        await asyncio.wait_for(asyncio.gather(*(one(*p) for p in plan)), 5)

    asyncio.run(scenario())


async def test_a_waiting_judge_is_not_starved_by_new_compiles() -> None:
    gate = MachineGate()
    order: list[str] = []

    async def compile_one(name: str) -> None:
        async with gate.shared():
            await asyncio.sleep(0.01)
            order.append(name)

    async def judge() -> None:
        async with gate.exclusive():
            order.append("judge")

    first = asyncio.create_task(compile_one("a"))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(judge())
    await asyncio.sleep(0)
    late = asyncio.create_task(compile_one("b"))
    await asyncio.gather(first, waiting, late)
    assert order == ["a", "judge", "b"]


async def test_a_cancelled_waiter_leaves_the_gate_open() -> None:
    gate = MachineGate()
    async with gate.shared():
        waiting = asyncio.create_task(_enter(gate))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with asyncio.timeout(1), gate.exclusive():
        pass


async def test_a_gpu_target_compiles_and_judges_side_by_side() -> None:
    gate = MachineGate(exclusive_needed=False)
    async with asyncio.timeout(1), gate.shared(), gate.exclusive(), gate.exclusive():
        pass


async def _enter(gate: MachineGate) -> None:
    async with gate.exclusive():
        pass
