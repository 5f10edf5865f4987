"""What users write is loaded as written; what is wrong with it is said in one line."""

from __future__ import annotations

import os
import stat
import struct
import sys
from pathlib import Path

import pytest
import torch

from forge_tui.records.problem import MachineProblem, UserInputError
from forge_tui.records.workload import WorkloadSpec
from forge_tui.workload.checkpoint import read_safetensors
from forge_tui.workload.load import load, loaded_record

KERNELBENCH = """
import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 4)
        self.drop = nn.Dropout(0.5)
    def forward(self, x):
        return torch.softmax(self.drop(self.linear(x)), dim=-1)
def get_inputs():
    return [torch.randn(3, 8)]
def get_init_inputs():
    return [8]
"""


def written(folder: Path, text: str, name: str = "usermodel.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def refused(source: str, **options: object) -> str:
    with pytest.raises(UserInputError) as caught:
        load(WorkloadSpec(source, **options))  # type: ignore[arg-type]
    line = str(caught.value)
    assert "\n" not in line and len(line) < 600
    return line


@pytest.fixture(autouse=True)
def clean_imports() -> object:
    before, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("usermodel", "forge_workload", "neighbour")):
            del sys.modules[name]
    sys.path[:] = path


def test_a_kernelbench_file_runs_in_evaluation_mode_and_is_called_synthetic(tmp_path: Path) -> None:
    workload = load(WorkloadSpec(written(tmp_path, KERNELBENCH)))
    assert workload.kind == "kernelbench" and not workload.modules[""].training
    assert workload.synthetic == "random weights and inputs"
    record = loaded_record(workload)
    assert record.parameters == 36 and record.nbytes == 144 and "evaluation mode" in record.notes[0]
    assert torch.equal(workload.run(), workload.run())


@pytest.mark.parametrize(
    ("returned", "sets"),
    [
        ("(model, (x,))", 1),
        ("(model, x)", 1),
        ("(model, (), {'input': x})", 1),
        ("(model, {'input': x})", 1),
        ("(model, [(x,), (x[:1],), (x[:2],)])", 3),
        ("(model, {'short': (x[:1],), 'long': (x,)})", 2),
        ("(model, [((), {'input': x}), ((x,), {})])", 2),
        ("(lambda: model(x).detach(), {'net': model})", 1),
        ("{'run': lambda: model(x).detach(), 'modules': [model]}", 1),
    ],
)
def test_builders_may_return_any_of_the_documented_forms(tmp_path: Path, returned: str, sets: int) -> None:
    text = f"import torch\ndef make():\n    model = torch.nn.Linear(4, 2).eval()\n    x = torch.ones(3, 4)\n    return {returned}\n"
    workload = load(WorkloadSpec(written(tmp_path, text) + ":make"))
    assert len(workload.inputs) == sets == len(workload.run_all())
    assert set(workload.parameters()) == {"weight", "bias"}


def test_build_model_with_sample_inputs_is_a_form_of_its_own(tmp_path: Path) -> None:
    text = "import torch\ndef build_model():\n    return torch.nn.ReLU()\ndef sample_inputs():\n    return {'a': (torch.ones(2),), 'b': (torch.ones(5),)}\n"
    workload = load(WorkloadSpec(written(tmp_path, text)))
    assert [s.name for s in workload.inputs] == ["a", "b"] and workload.synthetic == ""


def test_a_model_that_writes_into_its_inputs_gets_fresh_ones_every_run(tmp_path: Path) -> None:
    text = "import torch\nclass M(torch.nn.Module):\n    def forward(self, x):\n        return x.add_(1).clone()\ndef make():\n    return M(), (torch.zeros(3),)\n"
    workload = load(WorkloadSpec(written(tmp_path, text) + ":make"))
    assert workload.fresh
    assert workload.run().tolist() == workload.run().tolist() == [1.0, 1.0, 1.0]


def test_a_file_that_prints_chdirs_and_changes_globals_leaves_the_process_usable(tmp_path: Path) -> None:
    text = (
        "import os, sys, signal, torch\nprint('hello')\nos.chdir('/')\nsys.argv[:] = ['other']\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntorch.set_default_dtype(torch.float64)\n" + KERNELBENCH
    )
    folder, argv, handler = Path.cwd(), list(sys.argv), __import__("signal").getsignal(15)
    try:
        workload = load(WorkloadSpec(written(tmp_path, text)))
        assert workload.run().dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert (Path.cwd(), sys.argv, __import__("signal").getsignal(15)) == (folder, argv, handler)


def test_neighbouring_modules_and_stdlib_names_can_be_used(tmp_path: Path) -> None:
    written(tmp_path, "import torch\ndef act(x):\n    return torch.relu(x)\n", "neighbour_layers.py")
    text = "import torch\nfrom neighbour_layers import act\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return act(x)\ndef get_inputs():\n    return [torch.ones(2)]\n"
    assert load(WorkloadSpec(written(tmp_path, text, "random.py"))).run().tolist() == [1.0, 1.0]
    import random

    assert hasattr(random, "shuffle")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import torch\nimport not_a_package_xyz\n", ["usermodel.py:2", "ModuleNotFoundError", "not_a_package_xyz"]),
        ("def broken(:\n", ["usermodel.py:1", "SyntaxError"]),
        ("import sys\nsys.exit(3)\n", ["usermodel.py:2", "stops the program", "code 3"]),
        ("raise KeyboardInterrupt\n", ["stops the program"]),
        ("x = 1\n", ["no workload", "get_inputs"]),
        ("def build_modle(): pass\ndef helper(): pass\n", ["build_modle", "build_model"]),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E\n", ["E: (no readable message)"]),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line_with_its_place(tmp_path: Path, text: str, words: list[str]) -> None:
    line = refused(written(tmp_path, text))
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return 3", ["returned a int", "(model, args)"]),
        ("return (torch.nn.ReLU(),)", ["returned 1 values"]),
        ("return (lambda: 1, None)", ["no modules to watch"]),
        ("return (lambda: 1, {'a': 3})", ["'a' is no torch.nn.Module"]),
        ("return (torch.nn.ReLU(), (3, 4))", ["holds no tensor"]),
        ("return (torch.nn.Linear(3, 4), (torch.ones(2, 5),))", ["the model on its inputs", "RuntimeError", "2x5"]),
        ("return (torch.nn.ReLU(), (torch.ones(2),), 5)", ["as kwargs"]),
        ("raise ValueError('no data\\nhere')", ["usermodel.py:3", "ValueError: no data here"]),
        ("import sys; sys.exit()", ["stops the program"]),
    ],
)
def test_what_is_wrong_with_a_builder_is_one_line(tmp_path: Path, body: str, words: list[str]) -> None:
    line = refused(written(tmp_path, f"import torch\ndef make():\n    {body}\n") + ":make")
    assert all(word in line for word in words), line


def test_wrong_paths_and_names_are_explained(tmp_path: Path) -> None:
    source = written(tmp_path, "def make_it(): pass\ndef other(): pass\n")
    assert "did you mean" in refused(str(tmp_path / "usermodle.py"))
    assert "did you mean make_it" in refused(source + ":makeit")
    assert "is a folder" in refused(str(tmp_path))
    assert "not a Python file" in refused(written(tmp_path, "x", "weights.bin"))
    assert "no module named 'nopackage.sub'" in refused("nopackage.sub:thing")
    assert "there is no example" in refused("example:nothing")
    assert "no option" in refused("example:recommender", options=("speed=9",))
    assert "whole number" in refused("example:recommender", options=("batch=x",))
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in refused(str(tmp_path / "binary.py"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    source = written(tmp_path, KERNELBENCH)
    Path(source).chmod(0)
    assert "can't be read" in refused(source)


@pytest.mark.parametrize(
    "step",
    [
        "loss = model(x).sum(); loss.backward()",
        "opt = torch.optim.SGD(model.parameters(), 0.1); model.zero_grad(); opt.step()",
        "try:\n            model(x).sum().backward()\n        except Exception:\n            pass",
    ],
)
def test_a_training_step_is_refused_as_inference_only(tmp_path: Path, step: str) -> None:
    text = f"import torch\ndef make():\n    model = torch.nn.Linear(4, 2)\n    x = torch.ones(3, 4)\n    def run():\n        {step}\n        return model(x).detach()\n    return run, model\n"
    assert "inference only" in refused(written(tmp_path, text) + ":make")


def test_outputs_that_require_gradients_are_refused_with_the_remedy(tmp_path: Path) -> None:
    text = "import torch\ndef make():\n    model = torch.nn.Linear(4, 2)\n    return (lambda: model(torch.ones(1, 4))), model\n"
    line = refused(written(tmp_path, text) + ":make")
    assert "inference only" in line and "no_grad" in line
    x = torch.ones(2, requires_grad=True)
    x.sum().backward()
    assert x.grad is not None


def test_operators_that_the_file_registers_are_noticed(tmp_path: Path) -> None:
    text = (
        "import torch\n@torch.library.custom_op('usermodel_ops::twice', mutates_args=())\n"
        "def twice(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n"
        "class Model(torch.nn.Module):\n    def forward(self, x):\n        return twice(x) + 1\n"
        "def get_inputs():\n    return [torch.ones(2)]\n"
    )
    assert "usermodel_ops::twice" in load(WorkloadSpec(written(tmp_path, text))).user_ops


def test_checkpoints_are_loaded_strictly(tmp_path: Path) -> None:
    source = written(tmp_path, KERNELBENCH)
    weights = {"linear.weight": torch.ones(4, 8), "linear.bias": torch.zeros(4)}
    torch.save({"state_dict": {f"module.{k}": v for k, v in weights.items()}}, tmp_path / "a.pt")
    workload = load(WorkloadSpec(source, weights=str(tmp_path / "a.pt")))
    assert workload.synthetic == "random inputs" and bool((workload.modules[""].linear.weight == 1).all())
    torch.save({"linear.weight": torch.ones(4, 9), "linear.bias": torch.zeros(4)}, tmp_path / "b.pt")
    assert "size mismatch" in refused(source, weights=str(tmp_path / "b.pt"))
    torch.save({"linear.weight": torch.ones(4, 8)}, tmp_path / "c.pt")
    assert "linear.bias" in refused(source, weights=str(tmp_path / "c.pt"))
    (tmp_path / "d.pt").write_bytes(b"no checkpoint")
    assert "can't be loaded as plain weights" in refused(source, weights=str(tmp_path / "d.pt"))
    assert "does not exist" in refused(source, weights=str(tmp_path / "e.pt"))


def test_a_pickle_in_a_checkpoint_never_runs(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.mkdir, (str(tmp_path / "ran"),))

    with (tmp_path / "evil.pt").open("wb") as file:
        pickle.dump(Evil(), file)
    refused(written(tmp_path, KERNELBENCH), weights=str(tmp_path / "evil.pt"))
    assert not (tmp_path / "ran").exists()


def test_safetensors_are_read_without_the_package_and_damage_is_named(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    weights = {
        "a": torch.randn(3, 5).bfloat16(),
        "b": torch.arange(7),
        "empty": torch.empty(0, 4),
        "one": torch.ones(()),
    }
    path = tmp_path / "w.safetensors"
    safetensors.save_file(weights, path)
    read = read_safetensors(path)
    assert all(torch.equal(read[k], v) and read[k].dtype == v.dtype for k, v in weights.items())
    whole = path.read_bytes()
    for damaged in (whole[:-3], whole[:6], struct.pack("<Q", 1 << 60) + whole[8:], whole[:8] + b"x" + whole[9:]):
        path.write_bytes(damaged)
        with pytest.raises(UserInputError, match="download it again"):
            read_safetensors(path)


def test_a_model_too_large_for_memory_is_a_machine_problem_with_sizes(tmp_path: Path) -> None:
    text = "import torch\ndef make():\n    return torch.nn.Linear(2**21, 2**21), (torch.ones(1, 2**21),)\n"
    with pytest.raises(MachineProblem) as caught:
        load(WorkloadSpec(written(tmp_path, text) + ":make"))
    assert "GiB" in str(caught.value) or "TiB" in str(caught.value)
    assert stat.S_ISREG(Path(__file__).stat().st_mode) and torch.ones(1 << 20).sum() == 1 << 20
