"""The whole-model accept test: right casts pass, wrong ones and unserved calls are named, everything is given back."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import castkit as kit
import pytest
import torch

from forge_tui.cast.accept import accept_test
from forge_tui.cast.keys import MODE_KEYS, free_mode_keys
from forge_tui.cast.outputs import compare, flatten
from forge_tui.cast.pairs import interval, measure_pairs
from forge_tui.records.workload import ModelVerdict

X = torch.randn(32, 64)
WRONG = kit.SOFTMAX.replace("y[c] /= sum", "y[c] = y[c] / sum + 1e-4f")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = torch.softmax(self.inner(x), -1)
        return {"probabilities": torch.softmax(y, -1), "best": y.argmax(-1), "count": 3}


def verdict_of(
    folder: Path, source: str, expected: int = 2, model: torch.nn.Module | None = None, run: Any = None
) -> ModelVerdict:
    path = kit.cast_file(
        folder / "accept.cast", kit.entry_of("softmax", kit.key_of("aten::softmax.int", X, -1), source)
    )
    model = model or Model()

    def plain(index: int) -> Any:
        with torch.no_grad():
            return model(X)

    return accept_test(run or plain, {"": model}, path, {"softmax": expected, "not exported": 9}, pairs=6, seconds=1.0)


def test_a_right_cast_passes_with_all_calls_served(tmp_path: Path) -> None:
    model = Model()
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    verdict = verdict_of(tmp_path, kit.SOFTMAX, model=model)
    assert verdict.outputs_ok is True and verdict.error_ratio is not None and verdict.error_ratio < 4
    assert (verdict.calls, verdict.hits, verdict.misses) == (4, 4, {})
    assert verdict.per_card == {"softmax": 4}
    assert verdict.tier == "C++ hooks" and "torch" in verdict.tier_reason
    assert verdict.timing is not None and 5 <= verdict.timing.pairs <= 6 and verdict.timing.low <= verdict.timing.high
    assert (verdict.timing.against, verdict.timing.call) == ("eager", "installed")
    assert verdict.detail is not None and verdict.detail["cards_not_in_the_cast"] == ["not exported"]
    assert "float64" in verdict.line
    assert type(model) is Model and "forward" not in model.__dict__
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)
    assert free_mode_keys() == list(MODE_KEYS)


def test_a_wrong_kernel_fails_by_outputs(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, WRONG)
    assert verdict.outputs_ok is False and "output 0: error" in verdict.line and not verdict.proven


def test_calls_that_are_not_served_are_counted_with_their_reason(tmp_path: Path) -> None:
    model = Model()

    def run(index: int) -> Any:
        with torch.no_grad():
            return model(X[:16].repeat(2, 1).t().contiguous().t())

    class Transposing(Model):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.softmax(x, -1), torch.softmax(x.contiguous(), -1)

    model = Transposing()
    verdict = verdict_of(tmp_path, kit.SOFTMAX, model=model, run=run)
    assert verdict.outputs_ok is True
    assert (verdict.calls, verdict.hits, verdict.misses) == (4, 2, {"stride": 2})
    assert "softmax 2/4" in verdict.line and not verdict.proven


def test_gradients_wanted_are_a_reason(tmp_path: Path) -> None:
    model = Model()
    verdict = verdict_of(tmp_path, kit.SOFTMAX, model=model, run=lambda index: model(X))
    assert verdict.hits == 0 and verdict.misses == {"gradients": 4}


def test_more_hits_than_expected_are_told_apart(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, kit.SOFTMAX, expected=1)
    assert (verdict.calls, verdict.hits) == (2, 2)
    assert verdict.detail is not None and verdict.detail["nested_or_unexpected_hits"] == 2


def test_without_a_float64_run_the_reason_is_said(tmp_path: Path) -> None:
    class Narrow(Model):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.softmax(x.float(), -1)

    verdict = verdict_of(tmp_path, kit.SOFTMAX, expected=1, model=Narrow())
    assert verdict.outputs_ok is True and verdict.error_ratio is None
    assert "no float64 run" in verdict.line and "casts its results down" in verdict.line

    class Mixed(Model):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.softmax(x, -1) @ torch.ones(64, 1)

    verdict = verdict_of(tmp_path, kit.SOFTMAX, expected=1, model=Mixed())
    assert verdict.outputs_ok is True and "RuntimeError" in verdict.line


def test_a_model_that_is_not_steady_is_unknown(tmp_path: Path) -> None:
    class Unsteady(Model):
        calls = 0

        def forward(self, x: torch.Tensor) -> Any:
            self.calls += 1
            return torch.softmax(x, -1) + self.calls

    verdict = verdict_of(tmp_path, kit.SOFTMAX, expected=1, model=Unsteady())
    assert verdict.outputs_ok is None and "two eager runs differ" in verdict.line


def test_random_models_see_the_same_numbers(tmp_path: Path) -> None:
    class Noisy(Model):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.softmax(x, -1) * torch.rand(64, dtype=x.dtype)

    verdict = verdict_of(tmp_path, kit.SOFTMAX, expected=1, model=Noisy())
    assert verdict.outputs_ok is True


def test_a_run_without_watched_modules(tmp_path: Path) -> None:
    path = kit.cast_file(
        tmp_path / "accept.cast", kit.entry_of("softmax", kit.key_of("aten::softmax.int", X, -1), kit.SOFTMAX)
    )

    def run() -> Any:
        with torch.no_grad():
            return torch.softmax(X, -1)

    verdict = accept_test(run, {}, path, {"softmax": 1}, pairs=5, seconds=0.5)
    assert verdict.outputs_ok is True and (verdict.calls, verdict.hits) == (2, 2)
    assert "no watched modules" in verdict.line


def test_everything_is_given_back_when_the_model_raises(tmp_path: Path) -> None:
    model = Model()
    calls: list[int] = []

    def run(index: int) -> Any:
        calls.append(1)
        if len(calls) > 4:
            raise KeyboardInterrupt
        with torch.no_grad():
            return model(X)

    with pytest.raises(KeyboardInterrupt):
        verdict_of(tmp_path, kit.SOFTMAX, model=model, run=run)
    assert type(model) is Model and free_mode_keys() == list(MODE_KEYS)


def test_results_are_found_in_nested_objects() -> None:
    class Output:
        def __init__(self) -> None:
            self.hidden = [torch.ones(2), {"deep": (torch.zeros(1), "text")}]
            self.me = self

    flat = flatten(({"a": Output()}, None, torch.nn.Linear(1, 1)))
    assert [v.tolist() if isinstance(v, torch.Tensor) else v for v in flat] == [[1, 1], [0], "text", None]


def test_comparison_sees_what_rounding_does_not_explain() -> None:
    x = torch.tensor([1.0, float("nan"), float("inf")])
    assert compare([x], [x], [x.double()]).ok is True
    assert "NaN" in compare([x], [torch.tensor([1.0, 0.0, float("inf")])], None).line
    assert compare([x], [torch.tensor([1.0, float("nan"), float("-inf")])], None).ok is False
    assert "shape" in compare([torch.ones(4)], [torch.ones(2, 2)], None).line
    assert "differs in 1 of 2" in compare([torch.tensor([1, 2])], [torch.tensor([1, 3])], None).line
    assert compare([1, "a"], [1, "a"], None).ok is None
    assert compare([torch.ones(2), 1], [torch.ones(2), 2], None).ok is False


def test_the_interval_holds_the_ratio_and_rejects_none() -> None:
    rng = random.Random(1)
    low, high = interval([0.1 + rng.gauss(0, 0.02) for _ in range(60)], rng)
    assert 1.05 < low <= 1.1052 <= high < 1.15
    counts = {"eager": 0, "cast": 0}

    def side(name: str) -> Any:
        def run(n: int) -> None:
            counts[name] += n

        return run

    timing = measure_pairs(side("eager"), side("cast"), 7, 60.0, 1, rng)
    assert timing.pairs == 7 and timing.batch > 1 and counts["cast"] == 1 + 7 * timing.batch
