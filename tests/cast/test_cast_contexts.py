"""The states a model may run in: in none of them a wrong result or an error, and in each what states.py promises."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import castkit as kit
import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from forge_tui import cast
from forge_tui.cast.installed import Installed

F = torch.nn.functional
torch.manual_seed(0)
X, W, B = torch.randn(8, 8), torch.randn(8, 8), torch.randn(8)
EXP = kit.HEAD + (
    f'extern "C" int forge_launch(const forge_args* a){{ {kit.LOOP} float* y=(float*)a->outputs[0].data;'
    "for(int64_t i=0;i<n;++i) y[i]=expf(x[i]); return 0; }"
)


def typed(x: torch.Tensor) -> torch.Tensor:
    return F.linear(F.softmax(x, -1), W, B)


def generic(x: torch.Tensor) -> torch.Tensor:
    return F.linear(torch.exp(x), W, B)


class Subclass(torch.Tensor):
    pass


def no_grad(f: Any) -> Any:
    with torch.no_grad():
        return f(X)


def inference_mode(f: Any) -> Any:
    with torch.inference_mode():
        return f(X).clone()


def inference_tensors(f: Any) -> Any:
    with torch.inference_mode():
        return f(X.clone()).clone()


def grad_mode_without_grad_inputs(f: Any) -> Any:
    out = f(X)
    assert not out.requires_grad
    return out


def autograd(f: Any) -> Any:
    x = X.clone().requires_grad_()
    f(x).sum().backward()
    return x.grad


def autograd_of_weight(f: Any) -> Any:
    w = W.clone().requires_grad_()
    F.linear(f(X), w).sum().backward()
    return w.grad


def checkpoint(f: Any) -> Any:
    from torch.utils.checkpoint import checkpoint as run

    x = X.clone().requires_grad_()
    run(f, x, use_reentrant=False).sum().backward()
    return x.grad


def transposed(f: Any) -> Any:
    with torch.no_grad():
        return f(X.t())


def sliced(f: Any) -> Any:
    with torch.no_grad():
        return f(torch.cat([X, X], 1)[:, ::2])


def expanded(f: Any) -> Any:
    with torch.no_grad():
        return f(X[:1].expand(8, 8))


def other_shape(f: Any) -> Any:
    with torch.no_grad():
        return f(torch.cat([X, X]))


def other_dtype(f: Any) -> Any:
    with torch.no_grad():
        return F.softmax(X.double(), -1) + torch.exp(X.double())


def neg_view(f: Any) -> Any:
    with torch.no_grad():
        return F.softmax(torch._neg_view(X), -1) + torch.exp(torch._neg_view(X))


def autocast(f: Any) -> Any:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        out = f(X)
    assert out.dtype == torch.bfloat16
    return out.float()


def parameter(f: Any) -> Any:
    with torch.no_grad():
        return f(torch.nn.Parameter(X))


def subclass(f: Any) -> Any:
    with torch.no_grad():
        out = f(X.as_subclass(Subclass))
    assert type(out) is Subclass
    return out.as_subclass(torch.Tensor)


def vmap(f: Any) -> Any:
    with torch.no_grad():
        return torch.vmap(f)(X.expand(3, 8, 8).contiguous())


def func_grad(f: Any) -> Any:
    return torch.func.grad(lambda x: f(x).sum())(X)


def func_jvp(f: Any) -> Any:
    return torch.func.jvp(lambda x: torch.softmax(x, -1) + torch.exp(x), (X,), (torch.ones_like(X),))[1]


def forward_mode(f: Any) -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, torch.ones_like(X))
        return forward_ad.unpack_dual(torch.softmax(dual, -1) + torch.exp(dual)).tangent


def fake_tensor(f: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        out = f(mode.from_tensor(X))
    assert type(out).__name__ == "FakeTensor"
    return torch.tensor(list(out.shape))


def meta_tensor(f: Any) -> Any:
    with torch.no_grad():
        out = torch.exp(F.softmax(X.to("meta"), -1))
    assert out.is_meta
    return torch.tensor(list(out.shape))


def jit_trace(f: Any) -> Any:
    with torch.no_grad():
        graph = torch.jit.trace(f, (X,), check_trace=False)
    assert "linear" in str(graph.graph)
    return graph.graph.findAllNodes("aten::linear").__len__() + X


def make_fx(f: Any) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx as trace

    with torch.no_grad():
        graph = trace(f)(X)
    assert "softmax" in graph.code or "exp" in graph.code
    return torch.ones(1)


def export(f: Any) -> Any:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return f(x)

    with torch.no_grad():
        program = torch.export.export(Model(), (X,))
    assert "linear" in str(program.graph)
    return torch.ones(1)


def dispatch_mode_tool(f: Any) -> Any:
    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Count.seen += 1
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Count():
        out = f(X)
    assert Count.seen >= 2
    return out


def compiled_by(backend: str) -> Callable[[Any], Any]:
    def run(f: Any) -> Any:
        torch._dynamo.reset()
        with torch.no_grad():
            g = torch.compile(f, backend=backend)
            g(X)
            return g(X)

    run.__name__ = f"compile_{backend}"
    return run


def in_place_on_a_view(f: Any) -> Any:
    with torch.no_grad():
        whole = torch.zeros(4, 8, 8)
        view = whole[1]
        view += X
    assert whole._version == 1
    return whole


def in_place_grad_check(f: Any) -> Any:
    """Autograd must still notice that a saved tensor was changed in place."""
    x = X.clone().requires_grad_()
    y = x * 1.5
    saved = y.exp()
    with torch.no_grad():
        saved += X
    try:
        saved.sum().backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return torch.ones(1)
    raise AssertionError("the change went unnoticed")


def wrapped_numbers(f: Any) -> Any:
    with torch.no_grad():
        return torch.stack([X + 1, X + 2, X + 1.0, X + True])


def deterministic_flag(f: Any) -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        with torch.no_grad():
            return f(X)
    finally:
        torch.use_deterministic_algorithms(False)


# context -> may a kernel run there: True must, False must not, None either
CONTEXTS: dict[Callable[[Any], Any], bool | None] = {
    no_grad: True,
    inference_mode: True,
    inference_tensors: True,
    grad_mode_without_grad_inputs: True,
    autograd: False,
    autograd_of_weight: None,
    checkpoint: False,
    transposed: None,
    sliced: None,
    expanded: None,
    other_shape: False,
    other_dtype: False,
    neg_view: None,
    autocast: None,
    parameter: True,
    subclass: True,
    vmap: None,
    func_grad: None,
    func_jvp: None,
    forward_mode: None,
    fake_tensor: False,
    meta_tensor: False,
    jit_trace: None,
    make_fx: False,
    export: False,
    dispatch_mode_tool: False,
    compiled_by("eager"): None,
    compiled_by("aot_eager"): None,
    compiled_by("inductor"): None,
    in_place_on_a_view: True,
    in_place_grad_check: True,
    wrapped_numbers: True,
    deterministic_flag: False,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    soft = torch.softmax(X, -1)
    return kit.cast_file(
        tmp_path_factory.mktemp("contexts") / "contexts.cast",
        kit.entry_of("softmax", kit.key_of("aten::softmax.int", X, -1), kit.SOFTMAX),
        kit.entry_of("linear", kit.key_of("aten::linear", soft, W, B), kit.LINEAR),
        kit.entry_of("exp", kit.key_of("aten::exp", X), EXP),
        kit.entry_of("add_", kit.key_of("aten::add_.Tensor", torch.zeros(8, 8), X), kit.ADD_INPLACE),
        kit.entry_of("plus_one", kit.key_of("aten::add.Tensor", X, 1), kit.ADD_NUMBER),
    )


@pytest.fixture(params=["C++", "Python"])
def installed(request: pytest.FixtureRequest, path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    if request.param == "Python":
        monkeypatch.setenv("FORGE_CAST_TIER", "python")
    made = cast.load(path, accept_host_code=True).install(None)
    assert made.tier == f"{request.param} hooks"
    yield made
    made.uninstall()


@pytest.mark.parametrize("context", CONTEXTS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("user_code", [typed, generic])
def test_no_state_gives_a_wrong_result_or_an_error(context: Any, user_code: Any, installed: Installed) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = context(user_code)
        with installed.active():
            got = context(user_code)
    torch.testing.assert_close(got, expected, rtol=2e-2 if context is autocast else 1e-5, atol=1e-5)
    served = sum(e.hits for e in installed.report().entries)
    if CONTEXTS[context] is not None:
        assert bool(served) is CONTEXTS[context], str(installed.report())


def test_a_thread_is_served_only_where_the_cast_is_active(installed: Installed) -> None:
    wrong: list[int] = []

    def work(on: bool) -> None:
        with torch.no_grad():
            expected = typed(X)
            for _ in range(50):
                if on:
                    with installed.active():
                        out = typed(X)
                else:
                    out = typed(X)
                if not torch.allclose(out, expected, atol=1e-5):
                    wrong.append(1)

    def run(on: bool) -> int:
        before = installed.report().hits
        threads = [threading.Thread(target=work, args=(on,)) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return installed.report().hits - before

    assert run(True) == 4 * 50 * 2
    assert run(False) == 0
    assert not wrong
