"""What one run may do: the part of the settings that the engine acts on, stored with the run."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from forge_tui.search.parameters import Parameters
from forge_tui.settings.schema import Settings


@dataclass(frozen=True)
class Options:
    """Options of a run. Times in seconds or minutes as named; None means no limit.

    python: the user's interpreter, for the model process and the judge.
    attempts: candidates per card; total_attempts: over all cards; minutes: wall time of the search.
    max_cards / min_share: only the cards with the largest share, and at least this part of the model.
    width: candidates in flight at once. repairs: LLM repairs of one rejected draft.
    """

    python: str = sys.executable
    device: str = "cpu"
    threads: int = 2
    strategy: str = "uct"
    attempts: int = 24
    total_attempts: int = 400
    minutes: float | None = None
    max_cards: int = 16
    min_share: float = 0.002
    width: int = 4
    repairs: int = 2
    seed: int = 0
    recipes: bool = True
    llm_model: str = ""
    llm_api_base: str = ""
    llm_temperature: float | None = None
    llm_max_tokens: int = 8192
    llm_timeout_s: float = 300.0
    llm_parallel: int = 2
    price_in: float | None = None
    price_out: float | None = None
    dollars: float | None = None
    tokens: int | None = 2_000_000
    calls: int | None = None
    sol_eps: float = 0.25
    no_gain: int = 12
    amdahl: float = 0.005
    search_pairs: int = 20
    confirm_pairs: int = 100
    confirm_seconds: float = 10.0
    time_limit_s: float = 20.0
    trust_host_code: bool = False
    other_cores: float | None = 0.3
    capture_bytes: int = 2 << 30
    compile_baseline: bool = True
    compile_cards: bool = True
    compile_limit_s: float = 120.0
    model_pairs: int = 40
    model_seconds: float = 30.0


def worker_python() -> str:
    """The interpreter that has torch: the one set up beside this environment, else our own."""
    named = Path(sys.prefix) / "worker-python"
    if named.is_file():
        text = named.read_text().strip()
        if text:
            return text
    return sys.executable


def options_from(settings: Settings) -> Options:
    """What the engine acts on, from the settings in force. Prices turn from per million tokens to per token."""
    run, search, budget, llm, judge = settings.run, settings.search, settings.budget, settings.llm, settings.judge
    use_llm = bool(llm.model) and settings.proposers.llm
    return Options(
        python=run.python or os.environ.get("FORGE_PYTHON") or worker_python(),
        device=run.device,
        threads=run.threads or len(os.sched_getaffinity(0)),
        strategy=search.strategy,
        attempts=budget.attempts,
        total_attempts=budget.total_attempts,
        minutes=budget.minutes,
        max_cards=run.max_cards,
        min_share=run.min_share,
        width=run.width,
        repairs=search.repairs,
        seed=run.seed,
        recipes=settings.proposers.recipes,
        llm_model=llm.model if use_llm else "",
        llm_api_base=llm.api_base,
        llm_temperature=llm.temperature,
        llm_max_tokens=llm.max_tokens,
        llm_timeout_s=llm.timeout_s,
        llm_parallel=llm.parallel,
        price_in=None if llm.price_in is None else llm.price_in / 1e6,
        price_out=None if llm.price_out is None else llm.price_out / 1e6,
        dollars=budget.dollars,
        tokens=budget.tokens,
        calls=budget.calls,
        sol_eps=search.sol_eps,
        no_gain=search.no_gain,
        amdahl=search.amdahl,
        search_pairs=judge.search_pairs,
        confirm_pairs=judge.confirm_pairs,
        confirm_seconds=judge.confirm_seconds,
        time_limit_s=judge.time_limit_s,
        other_cores=judge.other_cores,
        trust_host_code=settings.sandbox.trust_host_code,
        capture_bytes=run.capture_bytes,
        compile_baseline=run.compile_baseline,
        compile_cards=run.compile_cards,
        compile_limit_s=run.compile_limit_s,
        model_pairs=judge.model_pairs,
        model_seconds=judge.model_seconds,
    )


def parameters_from(settings: Settings) -> Parameters:
    """Constants of the tree rules, from the settings in force."""
    s = settings.search
    return Parameters(
        c=s.c,
        widen_k=s.widen_k,
        alpha_start=s.alpha_start,
        alpha_end=s.alpha_end,
        max_share=s.max_share,
        fail_reward=s.fail_reward,
        dead_end=s.dead_end,
        stagnation=s.stagnation,
    )
