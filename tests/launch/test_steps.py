"""A plan in numbers, and binaries against it. No device."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from typing import Any

import pytest
from launch_cards import key, plan, scalar, spec

from forge_tui.launch.binary import Image, read_image
from forge_tui.launch.steps import KernelLaunch, Memset, Resolved, resolve
from forge_tui.records.card import Arg
from forge_tui.records.plan import Plan, PlanArg, Prepare, Step, Workspace
from forge_tui.records.problem import Problem

CARD = key(spec(4, 8), outputs=(spec(4),), scalars=(Arg("dim", "int", -1), Arg("other", "number", ["float64", 2.5])))
CUBIN = b"\x7fELF not read here"


def resolved(given: Plan, card: Any = CARD, data: bytes = CUBIN, sizes: Any = None) -> Resolved:
    image = read_image(data, given)
    assert isinstance(image, Image), image
    found = resolve(given, card, image, sizes)
    assert isinstance(found, Resolved), found
    return found


def refused(given: Plan, card: Any = CARD, data: bytes = CUBIN) -> str:
    image = read_image(data, given)
    found = resolve(given, card, image) if isinstance(image, Image) else image
    assert isinstance(found, Problem) and found.blame == "candidate"
    return found.line


def archive(**changed: Any) -> bytes:
    entry = {"name": "k", "symbol": "k_0d1", "file": "0.cubin", "shared": 2048, "block": 128, "num_ctas": 1,
             "global_scratch": 0, "global_scratch_align": 1, "profile_scratch": 0} | changed  # fmt: skip
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        made.writestr("0.cubin", CUBIN)
        made.writestr("report.json", json.dumps({"kernels": [entry]}))
    return buffer.getvalue()


def test_sizes_offsets_and_scalars_become_numbers() -> None:
    step = Step(
        "kernel", "k", ("ceildiv(in0_numel, 5)", "2", "1"), ("tile", "1", "1"), shared_bytes="tile * 4",
        args=(PlanArg("input", 0), PlanArg("workspace", offset="tile"), scalar("i32", index=0), scalar("f32", index=1), PlanArg("output")),
    )  # fmt: skip
    found = resolved(plan(step, workspace=Workspace("4 * out0_size0 + tile"), constants={"tile": 64})).steps[0]
    assert isinstance(found, KernelLaunch)
    assert (found.grid, found.block, found.shared_bytes) == ((7, 2, 1), (64, 1, 1), 256)
    kinds = [(p.kind, p.nbytes) for p in found.parameters]
    assert kinds == [("input", 8), ("workspace", 8), ("constant", 4), ("constant", 4), ("output", 8)]
    assert found.parameters[1].offset == 64
    assert found.parameters[2].data + found.parameters[3].data == struct.pack("<if", -1, 2.5)


def test_run_time_sizes_of_a_family_replace_the_example() -> None:
    family = key(spec(4, 8, symbol="rows"), outputs=(spec(4),))
    step = Step("kernel", "k", ("rows", "1", "1"), args=(PlanArg("input"), scalar("i64", "in0_numel")))
    found = resolved(plan(step), family, sizes=((100, 8),)).steps[0]
    assert isinstance(found, KernelLaunch) and found.grid == (100, 1, 1)
    assert found.parameters[1].data == struct.pack("<q", 800)


def test_a_memset_stays_inside_the_workspace() -> None:
    kernel = Step("kernel", "k")
    found = resolved(
        plan(Step("memset", offset="8", bytes="8", value=255), kernel, workspace=Workspace("16", zeroed=True))
    )
    assert found.steps[0] == Memset(0, 8, 8, 255) and found.zeroed_bytes == 16
    for offset, nbytes in (("9", "8"), ("0", "17"), ("0 - 1", "4"), ("0", "0 - 4")):
        line = refused(plan(Step("memset", offset=offset, bytes=nbytes), kernel, workspace=Workspace("16")))
        assert line.startswith("step 0: fills bytes")


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Step("host"), "host code"),
        (Step("kernel", "k", ("0", "1", "1")), "grid of 0x1x1"),
        (Step("kernel", "k", block=("2048", "1", "1")), "blocks of 2048x1x1"),
        (Step("kernel", "k", ("6", "1", "1"), cluster=("4", "1", "1")), "whole clusters"),
        (Step("kernel", "k", shared_bytes="0 - 1"), "shared memory"),
        (Step("kernel", "k", ("n", "1", "1")), "unknown symbol 'n'"),
        (Step("kernel", "k", args=(PlanArg("input", 3),)), "input 3 does not exist"),
        (Step("kernel", "k", args=(scalar("u8", "300"),)), "300 does not fit u8"),
        (Step("kernel", "k", args=(scalar("i32", index=9),)), "None is not a number"),
        (Step("kernel", "k", args=(PlanArg("tensor_map", 0, value="in", box=(8,)),)), "tensor map of in 0"),
    ],
)
def test_what_can_not_be_launched_is_refused_in_words(step: Step, words: str) -> None:
    assert words in refused(plan(step))


def test_negative_or_absurd_memory_is_refused() -> None:
    for workspace in (Workspace("0 - 1"), Workspace("4398046511104")):
        assert "a workspace of" in refused(plan(Step("kernel", "k"), workspace=workspace))
    assert "a workspace of" in refused(plan(Step("kernel", "k"), prepare=Prepare((), "0 - 5")))


def test_triton_kernels_get_two_null_pointers_that_no_plan_names() -> None:
    found = resolved(plan(Step("kernel", "k", ("3", "1", "1"), args=(PlanArg("input"),))), data=archive()).steps[0]
    assert isinstance(found, KernelLaunch)
    assert (found.block, found.shared_bytes, found.cluster) == ((128, 1, 1), 2048, (1, 1, 1))
    assert [p.data for p in found.parameters[1:]] == [bytes(8), bytes(8)]


def test_triton_scratch_lies_behind_the_workspace_one_slice_a_program() -> None:
    step = Step("kernel", "k", ("3", "2", "1"), args=(PlanArg("workspace"),))
    found = resolved(plan(step, workspace=Workspace("100")), data=archive(global_scratch=48, global_scratch_align=64))
    launch = found.steps[0]
    assert isinstance(launch, KernelLaunch)
    assert (launch.parameters[1].kind, launch.parameters[1].offset) == ("workspace", 256)
    assert found.workspace_bytes == 256 + 48 * 6
    own = Step("kernel", "k", ("3", "1", "1"), args=(PlanArg("triton_scratch", offset="16"),))
    assert resolved(plan(own)).workspace_bytes == 48


def test_clusters_of_triton_multiply_the_grid() -> None:
    found = resolved(plan(Step("kernel", "k", ("3", "1", "1"))), data=archive(num_ctas=2)).steps[0]
    assert isinstance(found, KernelLaunch) and (found.grid, found.cluster) == ((6, 1, 1), (2, 1, 1))


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 torn", b"#!/bin/sh", archive()[:80]])
def test_other_files_are_no_binaries(data: bytes) -> None:
    assert "neither a cubin nor an archive" in refused(plan(Step("kernel", "k")), data=data)


def test_an_archive_of_another_plan_is_refused() -> None:
    assert "other steps" in refused(plan(Step("kernel", "other")), data=archive())
