"""The order of driver calls, with a library that launches nothing."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from fake_driver import FakeLibrary
from launch_cards import key, plan, scalar, spec

from forge_tui.launch import driver
from forge_tui.launch.device import Device
from forge_tui.launch.driver import Driver, DriverError
from forge_tui.launch.graph import Graph, capture
from forge_tui.launch.program import Call, Program, load_program
from forge_tui.records.plan import Plan, PlanArg, Step, Workspace
from forge_tui.records.problem import MachineProblem, Problem

CARD = key(spec(4, 8), outputs=(spec(4),))
ARGS = (PlanArg("input"), PlanArg("output"), PlanArg("workspace", offset="16"), scalar("i32", "7"))
STEP = Step("kernel", "k", ("2", "1", "1"), ("64", "1", "1"), args=ARGS)
PLAN = plan(STEP, workspace=Workspace("64"))
CUBIN = b"\x7fELF"


def loaded(library: FakeLibrary, given: Plan = PLAN) -> Any:
    return load_program(Device(Driver(library), 0, 0, 1), CUBIN, given, CARD)


def bound(library: FakeLibrary, given: Plan = PLAN) -> Call:
    program = loaded(library, given)
    assert isinstance(program, Program), program
    call = program.bind([0x1000], [0x2000], 0x3000)
    assert isinstance(call, Call), call
    return call


def test_a_launch_passes_the_addresses_on_the_stream_it_was_given() -> None:
    library = FakeLibrary({"k": [8, 8, 8, 4]})
    call = bound(library)
    for stream in (0x77, 0x88):
        assert call.launch(stream) is None
    launches = [c for c in library.calls if c[0] == "cuLaunchKernelEx"]
    assert [c[4] for c in launches] == [0x77, 0x88] and launches[0][1:4] == ((2, 1, 1), (64, 1, 1), 0)
    passed = next(c for c in library.calls if c[0] == "parameters")
    assert b"".join(passed[1:]) == struct.pack("<QQQi", 0x1000, 0x2000, 0x3010, 7)
    assert not [n for n in library.names if "Synchronize" in n]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [([8, 8, 8], "takes 3 parameters, the plan passes 4"), ([8, 8, 8, 8], "parameter 3 of k has 8 bytes, the plan passes 4"), ([], "takes 0")],
)  # fmt: skip
def test_a_plan_that_differs_from_the_binary_is_refused_before_any_launch(sizes: list[int], words: str) -> None:
    library = FakeLibrary({"k": sizes})
    problem = loaded(library)
    assert isinstance(problem, Problem) and problem.kind == "bad plan" and words in problem.line
    assert "cuLaunchKernelEx" not in library.names
    assert library.names.count("cuModuleUnload") == 1, "a refused binary does not stay loaded"


def test_a_missing_kernel_and_an_unloadable_binary_have_their_own_words() -> None:
    problem = loaded(FakeLibrary({}))
    assert isinstance(problem, Problem) and problem.kind == "bad plan" and "k is not in the binary" in problem.line
    problem = loaded(FakeLibrary({"k": []}, {"cuModuleLoadData": 209}))
    assert isinstance(problem, Problem) and problem.kind == "load error" and "CUDA_ERROR_OF_THE_TEST" in problem.line


def test_zeroing_and_memsets_come_before_the_kernels_that_use_them() -> None:
    library = FakeLibrary({"k": [8, 8, 8, 4]})
    call = bound(
        library, plan(Step("memset", offset="4", bytes="8", value=3), STEP, workspace=Workspace("64", zeroed=True))
    )
    assert call.launch(5) is None
    wanted = [n for n in library.names if n in ("cuMemsetD8Async", "cuLaunchKernelEx")]
    assert wanted == ["cuMemsetD8Async", "cuMemsetD8Async", "cuLaunchKernelEx"]
    fills = [c for c in library.calls if c[0] == "cuMemsetD8Async"]
    assert [(c[1].value, c[2].value, c[3].value, c[4].value) for c in fills] == [(0x3000, 0, 64, 5), (0x3004, 3, 8, 5)]


def test_large_shared_memory_clusters_and_cooperation_reach_the_driver() -> None:
    library = FakeLibrary({"k": [8, 8, 8, 4]})
    step = Step(
        "kernel", "k", ("32", "1", "1"), ("64", "1", "1"), ("16", "1", "1"), "100000", cooperative=True, dependent_launch=True, args=ARGS
    )  # fmt: skip
    assert bound(library, plan(step, workspace=Workspace("64"))).launch(1) is None
    assert library.attributes == {8: 100_000, 14: 1}
    launch = next(c for c in library.calls if c[0] == "cuLaunchKernelEx")
    assert [number for number, _ in launch[5]] == [2, 4, 6] and launch[5][1][1] == 16
    small = FakeLibrary({"k": [8, 8, 8, 4]})
    bound(small)
    assert small.attributes == {}


def test_more_shared_memory_than_the_device_has_is_refused() -> None:
    step = Step("kernel", "k", shared_bytes="300000", args=ARGS)
    problem = loaded(FakeLibrary({"k": [8, 8, 8, 4]}), plan(step, workspace=Workspace("64")))
    assert isinstance(problem, Problem) and "this device gives a block 232448" in problem.line


@pytest.mark.parametrize(
    ("inputs", "outputs", "workspace", "words"),
    [
        ([], [0x2000], 0x3000, "0 inputs were given, the card has 1"),
        ([0x1000], [0x2008], 0x3000, "output 0 is at 0x2008; the card says aligned to 16"),
        ([0x1000], [0x2000], 0, "needs 64 bytes of workspace"),
        ([0x1000], [0x2000], 0x3010, "aligned to 256"),
    ],
)
def test_wrong_buffers_are_the_harness_own_fault(
    inputs: list[int], outputs: list[int], workspace: int, words: str
) -> None:
    program = loaded(FakeLibrary({"k": [8, 8, 8, 4]}))
    problem = program.bind(inputs, outputs, workspace)
    assert isinstance(problem, Problem) and problem.blame == "harness" and words in problem.line


@pytest.mark.parametrize(
    ("code", "blame", "kind"),
    [(700, "candidate", "crash"), (702, "candidate", "timeout"), (720, "candidate", "launch error"), (2, "machine", "memory"), (1, "candidate", "launch error")],
)  # fmt: skip
def test_launch_errors_say_who_is_to_blame(code: int, blame: str, kind: str) -> None:
    problem = bound(FakeLibrary({"k": [8, 8, 8, 4]}, {"cuLaunchKernelEx": code})).launch(1)
    assert problem is not None and (problem.blame, problem.kind) == (blame, kind)


def test_a_batch_is_captured_once_and_launched_as_a_whole() -> None:
    library = FakeLibrary({"k": [8, 8, 8, 4]})
    call = bound(library)
    graph = capture(Device(Driver(library), 0, 0, 1), [call] * 3, 9)
    assert isinstance(graph, Graph) and graph.calls == 3
    assert library.names.count("cuLaunchKernelEx") == 3
    assert graph.launch(9) is None and library.names[-1] == "cuGraphLaunch"


def test_a_failed_launch_under_capture_still_ends_the_capture() -> None:
    library = FakeLibrary({"k": [8, 8, 8, 4]}, {"cuLaunchKernelEx": 1})
    problem = capture(Device(Driver(library), 0, 0, 1), [bound(library)], 9)
    assert isinstance(problem, Problem) and problem.kind == "launch error"
    assert "cuStreamEndCapture" in library.names and "cuGraphDestroy" in library.names


def test_without_a_driver_the_machine_is_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LIBRARY", "libcuda-that-is-not-here.so.1")
    with pytest.raises(MachineProblem, match="no NVIDIA driver"):
        driver.load()


def test_an_old_driver_is_named_by_what_it_lacks() -> None:
    class Old:
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    with pytest.raises(MachineProblem, match="too old: it has no cuLaunchKernelEx"):
        Driver(Old()).call("cuLaunchKernelEx")


def test_a_driver_error_keeps_the_drivers_own_name() -> None:
    with pytest.raises(DriverError, match=r"cuInit: CUDA_ERROR_OF_THE_TEST \(3\)"):
        Driver(FakeLibrary({}, {"cuInit": 3})).call("cuInit", 0)
