"""Records survive the border, and what does not fit is refused with the field's name."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tui.records.candidate import Candidate, Parent
from forge_tui.records.card import Arg, Card, Dim, TensorSpec, VariantKey
from forge_tui.records.codec import RecordError, dumps, from_json, loads, to_json
from forge_tui.records.plan import Plan, PlanArg, Step, Workspace, host_plan
from forge_tui.records.verdict import Timing, Verdict

dims = st.builds(Dim, lo=st.shared(st.integers(0, 9), key="d"), hi=st.shared(st.integers(0, 9), key="d"))
specs = st.lists(st.integers(0, 8), max_size=4).map(
    lambda sizes: TensorSpec("x", tuple(Dim(s, s) for s in sizes), "float32", "strided", tuple(1 for _ in sizes))
)
keys = st.builds(
    VariantKey,
    op=st.just("aten::add.Tensor"),
    args=st.lists(st.builds(Arg, name=st.text(max_size=5), kind=st.just("int"), value=st.integers()), max_size=3).map(
        tuple
    ),
    tensors=st.lists(specs, max_size=3).map(tuple),
    outputs=st.lists(specs, max_size=2).map(tuple),
)


@given(keys)
def test_a_variant_key_survives_the_border_with_its_identity(key: VariantKey) -> None:
    again = loads(VariantKey, dumps(key))
    assert again == key
    assert again.digest() == key.digest()


def test_unknown_missing_and_mistyped_fields_are_named() -> None:
    with pytest.raises(RecordError, match=r"Dim\.hi: missing"):
        from_json(Dim, {"lo": 1})
    with pytest.raises(RecordError, match="unknown field 'extra'"):
        from_json(Dim, {"lo": 1, "hi": 1, "extra": 2})
    with pytest.raises(RecordError, match=r"Dim\.lo: expected a whole number"):
        from_json(Dim, {"lo": True, "hi": 1})
    with pytest.raises(RecordError, match="is not a range"):
        from_json(Dim, {"lo": 5, "hi": 1})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda c: st.lists(c) | st.dictionaries(st.text(), c),
        max_leaves=20,
    )
)
def test_any_json_is_a_record_or_one_clear_error(data: object) -> None:
    for kind in (Card, Candidate, Plan, Verdict, VariantKey):
        try:
            from_json(kind, data)
        except RecordError as error:
            assert "\n" not in str(error)


def test_a_number_that_is_not_finite_reads_unknown_rather_than_a_value() -> None:
    assert to_json({"x": math.inf, "y": math.nan}) == {"x": None, "y": None}


def test_blank_differences_do_not_make_a_new_candidate() -> None:
    one = Candidate("n1", "c", "cpp", "T3", "int f();\n", host_plan(), "recipe")
    two = Candidate("n2", "c", "cpp", "T3", "\nint f();   \n\n", host_plan(), "llm", (Parent("n1"),))
    assert one.digest() == two.digest()
    assert one.digest() != Candidate("n3", "c", "cpp", "T3", "int g();", host_plan(), "llm").digest()


def test_a_plan_refuses_what_a_launcher_could_not_run() -> None:
    with pytest.raises(RecordError, match="plan version 2"):
        from_json(Plan, {"version": 2, "steps": [{"kind": "host"}]})
    with pytest.raises(RecordError, match="unknown step kind"):
        from_json(Plan, {"version": 1, "steps": [{"kind": "shell"}]})
    with pytest.raises(ValueError, match="power of two"):
        Workspace("16", 3)
    with pytest.raises(ValueError, match="unknown scalar type"):
        Step("kernel", "k", args=(PlanArg("scalar", ctype="int"),))


@pytest.mark.parametrize(
    ("low", "high", "noise", "expected"),
    [
        (1.1, 1.2, 0.01, "faster"),
        (1.01, 1.2, 0.001, "same"),
        (1.1, 1.2, 0.05, "same"),
        (0.8, 0.9, 0.01, "slower"),
        (1.04, 1.2, None, "same"),
    ],
)
def test_faster_means_the_low_end_clears_the_noise(low: float, high: float, noise: float | None, expected: str) -> None:
    assert Timing(1, 1, 1, low, high, 20, 1, "batch", noise=noise).verdict == expected


def test_an_installed_call_that_is_unknown_makes_no_champion() -> None:
    timing = Timing(2, 1, 2, 1.9, 2.1, 20, 1, "batch", noise=0.01)
    verdict = Verdict("n1", "c1", "confirmed", "correct", timing=timing, confirmation=True)
    assert not verdict.champion_worthy
    assert Verdict(
        "n1", "c1", "confirmed", "correct", timing=timing, installed=timing, confirmation=True
    ).champion_worthy
