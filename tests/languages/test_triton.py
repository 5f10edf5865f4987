"""Triton candidates: what is admitted, what the sandboxed ahead-of-time compile gives, and how refusals read."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tui.languages import triton_source
from forge_tui.languages.language import Compiled, Toolchain
from forge_tui.languages.triton import Triton
from forge_tui.records.card import Arg, Dim, TensorSpec, VariantKey
from forge_tui.records.plan import Plan, PlanArg, Step
from forge_tui.records.problem import Problem

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed (extra: triton)"
)

RELU = """
import triton
import triton.language as tl

@triton.jit
def relu(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.where(v > 0, v, tl.where(v != v, v, 0.0)), mask=i < n)
"""
SPEC = TensorSpec("self", (Dim(4096, 4096),), "float32", "strided", (1,), "cuda:0")
KEY = VariantKey("aten::relu", (Arg("self", "tensor", 0),), (SPEC,), (SPEC,), output_alias=(-1,))
ARGS = (PlanArg("input"), PlanArg("output"), PlanArg("scalar", ctype="i32", value="in0_numel"))


def plan(args: tuple[PlanArg, ...] = ARGS, kernel: str = "relu", **constants: int) -> Plan:
    step = Step("kernel", kernel, ("ceildiv(in0_numel, BLOCK)", "1", "1"), args=args)
    return Plan(1, (step,), constants=constants or {"BLOCK": 1024})


def test_a_plain_kernel_module_is_admitted() -> None:
    assert triton_source.faults(RELU) == []
    assert triton_source.kernels(RELU) == {"relu": (("x", False), ("y", False), ("n", False), ("BLOCK", True))}


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("import os\n" + RELU, "import of os"),
        ("from triton import *\n" + RELU, "import from triton"),
        (RELU + "\nprint('hello')\n", "Expr is not allowed"),
        (RELU.replace("@triton.jit", "@triton.autotune(configs=[], key=[])\n@triton.jit"), "exactly the decorator"),
        (
            RELU.replace("@triton.jit", "@triton.jit(do_not_specialize=open('/etc/passwd').read())"),
            "exactly the decorator",
        ),
        (RELU.replace("BLOCK: tl.constexpr", "BLOCK: tl.constexpr, z=print(1)"), "defaults"),
        (RELU.replace("BLOCK: tl.constexpr", "BLOCK: exit()"), "only annotation"),
        (RELU + "\nX = (lambda: 1)()\n", "plain constants"),
        (RELU + "\nX = 2 ** 99999999\n", "plain constants"),
        (RELU.replace("tl.program_id(0)", "tl.__class__.__bases__"), "__class__ is not allowed"),
        ("class A:\n    pass\n" + RELU, "ClassDef"),
        ("x = 1\n", "no @triton.jit function"),
        ("def f(:\n", "not Python"),
    ],
)
def test_what_would_run_at_import_is_refused(source: str, part: str) -> None:
    assert any(part in line for line in triton_source.faults(source))


@given(st.text(max_size=300))
def test_any_text_is_admitted_or_refused_with_a_line(text: str) -> None:
    assert triton_source.faults(text)


@pytest.mark.parametrize(
    ("bad", "part"),
    [
        (plan(kernel="other"), "no @triton.jit function is called other"),
        (plan(ARGS[:2]), "takes 3 run-time parameters"),
        (plan(N=3), "needs a value for the constant BLOCK"),
    ],
)
def test_a_plan_that_does_not_fit_the_kernel_is_refused_before_compiling(bad: Plan, part: str) -> None:
    problem = Triton().audit(RELU, bad, KEY)
    assert problem is not None and problem.kind == "bad plan" and part in problem.line


@needs_triton
async def test_a_kernel_compiles_ahead_of_time_without_a_gpu(tmp_path: Path) -> None:
    lang = Triton()
    toolchain = lang.probe()
    assert isinstance(toolchain, Toolchain)
    done = await lang.compile(RELU, plan(BLOCK=1024, num_warps=8), KEY, toolchain, tmp_path)
    assert isinstance(done, Compiled), done
    kernel = done.report["kernels"][0]
    assert kernel["block"] == 256 and kernel["symbol"] == "relu"
    assert zipfile.ZipFile(done.path).read("0.cubin")[:4] == b"\x7fELF"


@needs_triton
async def test_float32_products_are_not_rounded_to_tf32_unless_the_session_allows_it(tmp_path: Path) -> None:
    source = RELU.replace("tl.where(v > 0, v, tl.where(v != v, v, 0.0))", "v").replace(
        "    tl.store", "    a = tl.reshape(v, (32, 32))\n    v = tl.reshape(tl.dot(a, a), (BLOCK,))\n    tl.store"
    )
    lang = Triton()
    toolchain = lang.probe()
    assert isinstance(toolchain, Toolchain)
    strict = await lang.compile(source, plan(), KEY, toolchain, tmp_path)
    assert isinstance(strict, Compiled) and not strict.report["kernels"][0]["reduced_precision_dot"]


@needs_triton
async def test_a_compile_error_shows_the_candidates_own_line(tmp_path: Path) -> None:
    lang = Triton()
    toolchain = lang.probe()
    assert isinstance(toolchain, Toolchain)
    done = await lang.compile(
        RELU.replace("tl.where(v > 0, v,", "tl.where(v > nowhere, v,"), plan(), KEY, toolchain, tmp_path
    )
    assert isinstance(done, Problem) and done.kind == "compile error"
    assert "nowhere" in done.line + done.detail
    assert str(tmp_path) not in done.detail
