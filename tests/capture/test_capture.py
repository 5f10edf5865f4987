"""Capture: the model stays as it is, cards say what ran, inputs are what the operator saw."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forge_tui.capture.capture import capture
from forge_tui.capture.modekey import KEYS, ModeKey
from forge_tui.records.card import Card, TensorBlob
from forge_tui.records.codec import dumps, loads
from forge_tui.records.problem import HarnessProblem, UserInputError
from forge_tui.records.workload import Captured
from forge_tui.workload.workload import InputSet, Workload
from tests.capture.models import MODELS, InPlace

BUDGET = 64 << 20


def workload_of(model: nn.Module, *sets: InputSet, **more: Any) -> Workload:
    return Workload("test", "model", model, {"": model}, sets, **more)


def captured(name: str, folder: Path, **more: Any) -> Captured:
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    return capture(workload_of(model, InputSet("inputs", args, kwargs), **more), folder, BUDGET, runs=2)


def card(result: Captured, op: str) -> Card:
    found = [c for c in result.cards if c.key.op == op]
    assert found, f"{op} not in {[c.key.op for c in result.cards]}"
    return found[0]


def tensor_of(blob: TensorBlob, folder: Path) -> torch.Tensor:
    raw = (folder / blob.blob[:2] / blob.blob).read_bytes()
    assert hashlib.sha256(raw).hexdigest() == blob.blob
    flat = torch.frombuffer(bytearray(raw), dtype=getattr(torch, blob.dtype))
    return flat.as_strided(blob.sizes, blob.strides)


@pytest.mark.parametrize("name", list(MODELS))
def test_outputs_are_bit_equal_with_and_without_capture(name: str, tmp_path: Path) -> None:
    result = captured(name, tmp_path)
    assert result.bit_equal is True
    assert loads(Captured, dumps(result)) == loads(Captured, dumps(loads(Captured, dumps(result))))
    assert all(c.key.digest() == c.card_id and c.calls > 0 for c in result.cards)
    assert not any(torch._C._dispatch_tls_is_dispatch_key_included(torch._C._dispatch_key_parse(k)) for k in KEYS)


def test_inputs_are_saved_before_an_in_place_operator_changes_them(tmp_path: Path) -> None:
    result = captured("in place", tmp_path)
    relu = card(result, "aten::relu_")
    assert relu.key.mutates == (0,) and relu.key.outputs == () and relu.key.output_alias == ()
    stored = tensor_of(relu.samples[0].tensors[0], tmp_path)
    assert bool((stored < 0).any())
    torch.manual_seed(0)
    model, (x,), _ = MODELS["in place"]()
    assert torch.equal(stored, model.first(x).detach())
    clamp = card(result, "aten::clamp_")
    assert clamp.key.tensors[0].layout == "strided" and clamp.key.tensors[0].strides == (16, 2)
    assert clamp.samples[0].tensors[0].nbytes == (3 * 16 + 7 * 2 + 1) * 4


def test_methods_operators_and_imported_functions_are_all_seen(tmp_path: Path) -> None:
    result = captured("methods", tmp_path)
    ops = {c.key.op for c in result.cards}
    assert {
        "aten::matmul",
        "aten::gelu",
        "aten::mul.Tensor",
        "aten::add.Tensor",
        "aten::silu",
        "aten::softmax.int",
    } <= ops
    assert {"aten::transpose.int", "aten::slice.Tensor"} <= {n.op for n in result.not_seen}
    product = card(result, "aten::matmul")
    assert [t.parameter for t in product.key.tensors] == [False, True]
    assert product.samples[0].tensors[1].parameter == "w"
    assert product.flops == 2 * 5 * 8 * 8 and product.bytes_moved == 4 * (5 * 8 + 64 + 5 * 8)


def test_a_wrapped_number_is_an_argument_by_value(tmp_path: Path) -> None:
    result = captured("methods", tmp_path)
    plus = card(result, "aten::add.Tensor")
    assert [(a.kind, a.value) for a in plus.key.args if a.name == "other"] == [("number", ["int64", 1])]
    minus = card(result, "aten::sub.Tensor")
    assert [(a.kind, a.value) for a in minus.key.args if a.name == "other"] == [("number", ["float64", 2.5])]
    assert minus.key.tensors[0].layout == "strided"


def test_one_true_and_one_point_zero_are_three_variants(tmp_path: Path) -> None:
    class Numbers(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1) + (x + 1.0) + (x + True) + x.masked_fill(x > 0, float("-inf")).exp()

    result = capture(workload_of(Numbers(), InputSet("a", (torch.randn(4),))), tmp_path, BUDGET, runs=1)
    values = [a.value for c in result.cards for a in c.key.args if a.name == "other" and a.kind == "number"]
    assert sorted(map(str, values)) == ["['bool', True]", "['float64', 1.0]", "['int64', 1]"]
    fill = next(c for c in result.cards if c.key.base_op == "masked_fill")
    text = dumps(fill)
    assert '"-inf"' in text and float(next(a.value for a in loads(Card, text).key.args if a.name == "value")) == float(
        "-inf"
    )


def test_autocast_cards_are_the_calls_after_the_cast(tmp_path: Path) -> None:
    result = captured("autocast", tmp_path)
    linear = card(result, "aten::linear")
    assert [t.dtype for t in linear.key.tensors] == ["bfloat16"] * 3 and linear.key.autocast == ""
    assert card(result, "aten::relu").key.autocast == "bfloat16"
    assert card(result, "aten::softmax.int").key.tensors[0].dtype == "bfloat16"
    assert any(c.state == "refused" and "complex" in c.reason for c in result.cards)


def test_what_must_not_be_replaced_is_refused_with_its_reason(tmp_path: Path) -> None:
    reasons = {c.key.base_op: c.reason for c in captured("by value", tmp_path).cards if c.state == "refused"}
    assert "depends on values" in reasons["nonzero"] and "depends on values" in reasons["index"]
    assert "random" in reasons["rand_like"]
    assert "schema does not declare" in reasons["batch_norm"]
    recurrent = captured("recurrent", tmp_path)
    assert "container" in card(recurrent, "aten::lstm.data").reason
    assert card(recurrent, "aten::linear").state == "open"


def test_the_transformers_fast_path_stays_on(tmp_path: Path) -> None:
    result = captured("fast path", tmp_path)
    assert "container" in card(result, "aten::_transformer_encoder_layer_fwd").reason


def test_dropout_in_evaluation_is_no_card_and_attention_without_dropout_is_one(tmp_path: Path) -> None:
    class Attention(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            a = nn.functional.scaled_dot_product_attention(q, k, k)
            return nn.functional.dropout(a, 0.3, False) + nn.functional.scaled_dot_product_attention(
                q, k, k, dropout_p=0.5
            )

    inputs = InputSet("a", (torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)))
    result = capture(workload_of(Attention(), inputs), tmp_path, BUDGET, runs=1)
    attention = {c.state: c for c in result.cards if c.key.base_op == "scaled_dot_product_attention"}
    assert set(attention) == {"open", "refused"} and attention["open"].flops == 2 * 2 * 3 * 5 * 8
    assert any(n.op == "aten::dropout" and n.reason == "view" for n in result.not_seen)


def test_operators_that_the_users_file_registers_are_refused(tmp_path: Path) -> None:
    library = torch.library.Library("forge_test_ops", "FRAGMENT")
    library.define("plus_one(Tensor x) -> Tensor")
    library.impl("plus_one", lambda x: x + 1, "CompositeExplicitAutograd")

    class User(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.forge_test_ops.plus_one(x) * 2

    w = workload_of(User(), InputSet("a", (torch.ones(3),)), user_ops=frozenset({"forge_test_ops::plus_one"}))
    result = capture(w, tmp_path, BUDGET, runs=1)
    assert card(result, "forge_test_ops::plus_one").reason == "registered by the user's file"
    assert card(result, "aten::mul.Tensor").state == "open"
    library._destroy()


def test_nothing_to_optimise_says_what_was_seen(tmp_path: Path) -> None:
    class Views(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.rand_like(x).transpose(0, 1)

    with pytest.raises(UserInputError) as caught:
        capture(workload_of(Views(), InputSet("a", (torch.ones(2, 3),))), tmp_path, BUDGET, runs=1)
    line = str(caught.value)
    assert "no operator to optimise" in line and "random" in line and "aten::transpose.int" in line and "\n" not in line


def test_two_input_sets_count_as_one_run_and_fold_where_they_belong_together(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    sets = [InputSet(f"s{n}", (torch.randn(n, 8),)) for n in (6, 8, 1)]
    result = capture(workload_of(model, *sets), tmp_path, BUDGET, runs=1)
    relus = sorted((c for c in result.cards if c.key.base_op == "relu"), key=lambda c: c.calls)
    assert [c.calls for c in relus] == [1, 2]
    family = relus[1].key.tensors[0].dims[0]
    assert (family.lo, family.hi, family.multiple, family.symbol) == (6, 8, 2, "s0")
    assert relus[0].key.exact and len(relus[1].samples) == 2
    assert [b.sizes for s in relus[1].samples for b in s.tensors] == [(6, 8), (8, 8)]


def test_a_second_runtime_on_the_key_makes_capture_take_a_stand_in(tmp_path: Path) -> None:
    def pass_on(op: Any, *args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    owners = []
    for number, name in enumerate(KEYS):
        owner = torch.library.Library("_", "IMPL")
        owner.fallback(pass_on, name)
        owners.append(owner)
        if number + 1 < len(KEYS):
            with ModeKey(lambda keyset, op, *a, **k: None) as key:
                assert key.name == KEYS[number + 1]
            assert captured("methods", tmp_path).bit_equal is True
    with pytest.raises(HarnessProblem, match="no dispatcher key is free"):
        with ModeKey(lambda keyset, op, *a, **k: None):
            pass
    for owner in owners:
        owner._destroy()
    with ModeKey(lambda keyset, op, *a, **k: None) as again:
        assert again.name == KEYS[0]


def test_the_key_is_given_back_when_the_model_raises(tmp_path: Path) -> None:
    class Sometimes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if any(torch._C._dispatch_tls_is_dispatch_key_included(torch._C._dispatch_key_parse(k)) for k in KEYS):
                raise ValueError("tired")
            return torch.relu(x)

    with pytest.raises(UserInputError, match=r"the model while it was watched: test_capture.py:\d+: ValueError: tired"):
        capture(workload_of(Sometimes(), InputSet("a", (torch.ones(2),))), tmp_path, BUDGET, runs=2)
    with ModeKey(lambda keyset, op, *a, **k: None) as key:
        assert key.name == KEYS[0]
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_blobs_are_private_deduplicated_and_within_budget(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)])
    inputs = InputSet("a", (torch.randn(16, 64),))
    result = capture(workload_of(model, inputs), tmp_path, BUDGET, runs=1)
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 and p.parent.name == p.name[:2] for p in files)
    assert sum(p.stat().st_size for p in files) == result.stored_bytes
    linear = card(result, "aten::linear")
    assert linear.calls == 4 and len(linear.samples) == 3 and linear.modules == ("0.0", "1.0", "2.0", "3.0")
    assert [s.tensors[1].parameter for s in linear.samples] == ["0.0.weight", "3.0.weight", "2.0.weight"]
    poor = capture(workload_of(model, inputs), tmp_path / "poor", 20_000, runs=1)
    assert poor.stored_bytes <= 20_000 and any("budget" in n for n in poor.notes)
    kept = [t for c in poor.cards for s in c.samples for t in s.tensors]
    assert any(t.blob == "" for t in kept) and all(len(t.stats) == 4 for t in kept)


def test_memory_shared_between_arguments_is_recorded(tmp_path: Path) -> None:
    class Shared(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            y.mul_(y)
            return y @ y.t() + y.sum()

    result = capture(workload_of(Shared(), InputSet("a", (torch.randn(4, 4),))), tmp_path, BUDGET, runs=1)
    assert card(result, "aten::matmul").key.tensors[1].shares == 0
    assert "another argument reads" in card(result, "aten::mul_.Tensor").reason


def test_a_parameter_made_inside_forward_survives_capture(tmp_path: Path) -> None:
    class Makes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(nn.Parameter(x, requires_grad=False))

    assert capture(workload_of(Makes(), InputSet("a", (torch.randn(3),))), tmp_path, BUDGET, runs=1).bit_equal is True


def test_a_flood_of_variants_keeps_the_largest_and_names_the_rest(tmp_path: Path) -> None:
    class Numbers(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return sum((x[:1] + n for n in range(260)), start=torch.relu(x).sum())

    result = capture(workload_of(Numbers(), InputSet("a", (torch.ones(4096),))), tmp_path, BUDGET, runs=1)
    rest = [n for n in result.not_seen if n.reason.startswith("negligible")]
    assert len(result.cards) == 200 and result.bit_equal is True
    assert sum(c.calls for c in result.cards) + sum(n.calls for n in result.not_seen) == result.calls and rest


def test_a_model_that_differs_from_run_to_run_is_unknown_not_equal(tmp_path: Path) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n += 1
            return torch.relu(x) + self.n

    result = capture(workload_of(Counter(), InputSet("a", (torch.ones(2),))), tmp_path, BUDGET, runs=1)
    assert result.bit_equal is None and any("two plain runs" in n for n in result.notes)


def test_threads_started_by_the_model_are_mentioned(tmp_path: Path) -> None:
    class Threaded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            import threading

            out: list[torch.Tensor] = []
            thread = threading.Thread(target=lambda: out.append(torch.relu(x)))
            thread.start()
            thread.join()
            return torch.tanh(out[0])

    result = capture(workload_of(Threaded(), InputSet("a", (torch.ones(2),))), tmp_path, BUDGET, runs=1)
    assert [c.key.base_op for c in result.cards] == ["tanh"]
    assert any("thread" in n for n in result.notes)


def test_calls_with_gradients_on_are_refused(tmp_path: Path) -> None:
    model = InPlace()
    plain = workload_of(model, InputSet("a", (torch.randn(2, 16),)), own_grad=True)
    with pytest.raises(UserInputError, match="gradients on"):
        capture(plain, tmp_path, BUDGET, runs=1)
