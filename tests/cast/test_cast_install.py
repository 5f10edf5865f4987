"""Installing, counting, stepping aside and undoing: what a user's model sees of a cast."""

from __future__ import annotations

import copy
import io
import logging
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import castkit as kit
import pytest
import torch

from forge_tui import cast
from forge_tui.cast.keys import MODE_KEYS, free_mode_keys
from forge_tui.cast.runtime import Cast
from forge_tui.records.card import Dim, VariantKey
from forge_tui.records.plan import Plan, Prepare, Step, Workspace, host_plan
from forge_tui.records.problem import UserInputError

X = torch.randn(8, 8)


class Model(torch.nn.Module):
    """Four operators with entries, one without."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(8, 8))

    def forward(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        y = torch.softmax(x, -1)
        for _ in range(times):
            y = torch.relu(y)
        y += self.scale.detach()
        return torch.nn.functional.gelu(y) + torch.sin(x)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return kit.cast_file(
        tmp_path_factory.mktemp("install") / "four.cast",
        kit.entry_of("softmax", kit.key_of("aten::softmax.int", X, -1), kit.SOFTMAX),
        kit.entry_of("relu", kit.key_of("aten::relu", X), kit.RELU),
        kit.entry_of("gelu", kit.key_of("aten::gelu", X), kit.GELU),
        kit.entry_of("add_", kit.key_of("aten::add_.Tensor", X, X.clone()), kit.ADD_INPLACE),
    )


@pytest.fixture(params=["C++", "Python"])
def loaded(request: pytest.FixtureRequest, path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cast]:
    if request.param == "Python":
        monkeypatch.setenv("FORGE_CAST_TIER", "python")
    yield cast.load(path, accept_host_code=True)
    assert free_mode_keys() == list(MODE_KEYS), "the key was not given back"


def hits(installed: Any) -> dict[str, int]:
    return {e.card_id: e.hits for e in installed.report().entries}


def test_an_installed_model_is_served_and_says_so(loaded: Cast, capfd: pytest.CaptureFixture[str]) -> None:
    model = Model()
    with torch.no_grad():
        expected = model(X)
        installed = loaded.install(model)
        got = model(X, times=1)
        model(X)
    installed.uninstall()
    torch.testing.assert_close(got, expected)
    assert hits(installed) == {"softmax": 2, "relu": 2, "gelu": 2, "add_": 2}
    said = [line for line in capfd.readouterr().err.splitlines() if "forge_tui cast" in line]
    assert len(said) == 1 and f"served 4 of 4 matching calls ({installed.tier}" in said[0]


def test_the_summary_goes_through_logging_where_it_is_shown(loaded: Cast, caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    with caplog.at_level(logging.INFO, "forge_tui.cast"), torch.no_grad():
        installed = loaded.install(model)
        model(X)
    installed.uninstall()
    assert any("served 4 of 4" in r.message for r in caplog.records)


def test_unmatched_calls_run_eager_with_the_top_reason_in_one_line(
    loaded: Cast, capfd: pytest.CaptureFixture[str]
) -> None:
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Softmax(-1))
    wide = torch.randn(8, 16)[:, ::2]
    with torch.no_grad():
        installed = loaded.install(model)
        torch.testing.assert_close(model(wide), torch.softmax(wide.relu(), -1))
    installed.uninstall()
    assert installed.report().misses["aten::relu"] == {"stride": 1}
    assert "most others: other strides" in capfd.readouterr().err or hits(installed)["softmax"] == 1


def test_strict_mode_raises_when_nothing_was_served(loaded: Cast) -> None:
    model = torch.nn.ReLU()
    installed = loaded.install(model, strict=True, quiet=True)
    with torch.no_grad(), pytest.raises(UserInputError, match="a size outside the card's"):
        model(torch.randn(3))
    with torch.no_grad():
        model(torch.randn(3))
    installed.uninstall()


def test_uninstall_restores_everything(loaded: Cast) -> None:
    model = Model()
    before = dict(model.__dict__)
    installed = loaded.install(model, quiet=True)
    assert type(model) is not Model and isinstance(model, Model)
    assert free_mode_keys() == list(MODE_KEYS)[1:]
    with torch.no_grad():
        model(X)
    installed.uninstall()
    installed.uninstall()
    assert type(model) is Model and model.__dict__ == before
    served = hits(installed)
    with torch.no_grad():
        model(X)
    assert hits(installed) == served
    key = torch._C._dispatch_key_parse(MODE_KEYS[0])
    assert not torch._C._dispatch_tls_is_dispatch_key_included(key)
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::relu", MODE_KEYS[0])


def test_other_models_and_threads_are_untouched(loaded: Cast) -> None:
    model, other = Model(), Model()
    installed = loaded.install(model, quiet=True)
    results: list[torch.Tensor] = []
    with torch.no_grad():
        other(X)
        thread = threading.Thread(target=lambda: results.append(torch.relu(X)))
        thread.start()
        thread.join()
    assert sum(hits(installed).values()) == 0
    installed.uninstall()


def test_a_forward_that_raises_leaves_the_cast_off(loaded: Cast) -> None:
    class Broken(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.relu(x)
            raise ValueError("no")

    model = Broken()
    installed = loaded.install(model, quiet=True)
    with torch.no_grad():
        with pytest.raises(ValueError, match="no"):
            model(X)
        torch.relu(X)
    assert hits(installed)["relu"] == 1
    installed.uninstall()


def test_copies_of_an_installed_model_are_plain_models(loaded: Cast) -> None:
    model = Model()
    installed = loaded.install(model, quiet=True)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = [
        copy.deepcopy(model),
        copy.copy(model),
        pickle.loads(pickle.dumps(model)),  # noqa: S301
        torch.load(buffer, weights_only=False),
    ]
    with torch.no_grad():
        expected = model(X)
        served = hits(installed)
        for made in copies:
            assert type(made) is Model
            with torch.no_grad():
                made.scale += 1
            assert not torch.equal(made(X), expected)  # its own weights
        assert hits(installed) == served
    assert "forge" not in str(pickle.dumps(model))
    installed.uninstall()


def test_state_dict_to_and_half_still_work(loaded: Cast) -> None:
    model = Model()
    installed = loaded.install(model, quiet=True)
    assert set(model.state_dict()) == {"scale"}
    model.load_state_dict({"scale": torch.zeros(8, 8)})
    with torch.no_grad():
        assert model.half()(X.half()).dtype == torch.float16
        assert sum(hits(installed).values()) == 0  # another dtype: eager
        model.float()
        model(X)
        assert sum(hits(installed).values()) == 4
    installed.uninstall()


def test_a_module_with_its_own_forward_keeps_it(loaded: Cast) -> None:
    model = Model()
    plain = model.forward
    own = lambda x: plain(x) * 2  # noqa: E731
    model.forward = own  # type: ignore[method-assign]
    installed = loaded.install(model, quiet=True)
    with torch.no_grad():
        model(X)
    assert sum(hits(installed).values()) == 4
    installed.uninstall()
    assert model.__dict__["forward"] is own


def test_signature_and_name_stay(loaded: Cast) -> None:
    import inspect

    model = Model()
    before = inspect.signature(model.forward), type(model).__name__
    installed = loaded.install(model, quiet=True)
    assert (inspect.signature(model.forward), type(model).__name__) == before
    installed.uninstall()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_casts_add_up_and_come_off_in_any_order(path: str, tmp_path: Path, order: tuple[int, int]) -> None:
    sin = kit.HEAD + (
        f'extern "C" int forge_launch(const forge_args* a){{ {kit.LOOP} float* y=(float*)a->outputs[0].data;'
        "for(int64_t i=0;i<n;++i) y[i]=sinf(x[i]); return 0; }"
    )
    other = kit.cast_file(tmp_path / "sin.cast", kit.entry_of("sin", kit.key_of("aten::sin", X), sin))
    model = Model()
    with torch.no_grad():
        expected = model(X)
        both = [cast.load(p, accept_host_code=True).install(model, quiet=True) for p in (path, other)]
        torch.testing.assert_close(model(X), expected)
        assert [sum(hits(i).values()) for i in both] == [4, 1]
        both[order[0]].uninstall()
        torch.testing.assert_close(model(X), expected)
        left = order[1]
        assert [sum(hits(i).values()) for i in both][left] == [8, 2][left]
        assert [sum(hits(i).values()) for i in both][order[0]] == [4, 1][order[0]]
        both[left].uninstall()
    assert type(model) is Model


def test_a_cast_serves_only_inside_its_own_models(path: str) -> None:
    one, two = Model(), Model()
    first = cast.load(path, accept_host_code=True).install(one, quiet=True)
    second = cast.load(path, accept_host_code=True).install(two, quiet=True)
    with torch.no_grad():
        one(X)
        two(X), two(X)
    assert sum(hits(first).values()) == 4 and sum(hits(second).values()) == 8
    first.uninstall()
    second.uninstall()


def test_active_serves_a_block_and_gives_the_key_back(loaded: Cast) -> None:
    with torch.no_grad():
        with loaded.active() as installed:
            torch.relu(X)
        torch.relu(X)
    assert hits(installed)["relu"] == 1


def test_paused_runs_the_plain_forward(loaded: Cast) -> None:
    model = Model()
    installed = loaded.install(model, quiet=True)
    with torch.no_grad():
        with installed.paused():
            assert type(model) is Model
            model(X)
        assert sum(hits(installed).values()) == 0
        model(X)
        assert sum(hits(installed).values()) == 4
    installed.uninstall()


def test_modules_by_name_and_wrong_targets(loaded: Cast) -> None:
    parts = {"a": torch.nn.ReLU(), "b": torch.nn.Softmax(-1)}
    installed = loaded.install(parts, quiet=True)
    with torch.no_grad():
        parts["b"](parts["a"](X))
    assert hits(installed)["relu"] == hits(installed)["softmax"] == 1
    installed.uninstall()
    with pytest.raises(UserInputError, match=r"torch\.nn\.Module"):
        loaded.install("model")  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_compiling_an_installed_model_takes_the_plain_graph(loaded: Cast, backend: str) -> None:
    model = Model()
    with torch.no_grad():
        expected = model(X)
        installed = loaded.install(model, quiet=True)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        torch.testing.assert_close(compiled(X), expected)
        torch.testing.assert_close(compiled(X), expected)
        assert sum(hits(installed).values()) == 0
        torch.testing.assert_close(model(X), expected)
        assert sum(hits(installed).values()) == 4
        program = torch.export.export(model, (X,))
        torch.testing.assert_close(program.module()(X), expected)
    installed.uninstall()


def test_a_compiled_part_inside_an_installed_model_stays_right(loaded: Cast) -> None:
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = torch.compile(Model(), backend="aot_eager")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(torch.relu(x))

    torch._dynamo.reset()
    model = Outer()
    with torch.no_grad():
        expected = model(X)
        torch._dynamo.reset()
        installed = loaded.install(model, quiet=True)
        torch.testing.assert_close(model(X), expected)
        torch.testing.assert_close(model(X), expected)
    assert hits(installed)["relu"] >= 2
    installed.uninstall()


def test_training_still_trains(loaded: Cast) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Softmax(-1))
    installed = loaded.install(model, quiet=True)
    model(X).square().sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    installed.uninstall()
    model(X).square().sum().backward()
    for got, p in zip(grads, model.parameters(), strict=True):
        torch.testing.assert_close(got, p.grad)


def test_threads_share_an_installed_model_while_entries_come_and_go(path: str) -> None:
    model = Model()
    with torch.no_grad():
        expected = model(X)
    installed = cast.load(path, accept_host_code=True).install(model, quiet=True)
    other = cast.load(path, accept_host_code=True)
    stop = threading.Event()
    wrong: list[int] = []
    ran = [0, 0]

    def work(k: int) -> None:
        with torch.no_grad():
            while not stop.is_set():
                if not torch.allclose(model(X), expected, atol=1e-5):
                    wrong.append(k)
                ran[k] += 1

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for t in threads:
        t.start()
    for _ in range(40):
        other.install(None, quiet=True).uninstall()
    stop.set()
    for t in threads:
        t.join()
    assert not wrong and sum(hits(installed).values()) == 4 * sum(ran)
    installed.uninstall()


# --- kernels that refuse, fail, need memory ----------------------------------------------------------------------


def one(folder: Path, key: VariantKey, source: str, plan: Plan | None = None) -> Cast:
    return cast.load(kit.cast_file(folder / "one.cast", kit.entry_of("card", key, source, plan)), accept_host_code=True)


@pytest.mark.parametrize("tier", ["", "python"])
def test_a_declining_kernel_falls_back_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: str
) -> None:
    monkeypatch.setenv("FORGE_CAST_TIER", tier)
    source = kit.HEAD + 'extern "C" int forge_launch(const forge_args*) { return 7; }'
    with torch.no_grad(), one(tmp_path, kit.key_of("aten::relu", X), source).active() as installed:
        assert torch.equal(torch.relu(X), X.clamp(min=0))
        entry = installed.report().entries[0]
        assert (entry.hits, entry.declined, entry.enabled) == (0, 1, True)
        assert installed.report().misses["aten::relu"] == {"declined": 1}


@pytest.mark.parametrize("tier", ["", "python"])
def test_a_failing_kernel_is_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: str) -> None:
    monkeypatch.setenv("FORGE_CAST_TIER", tier)
    source = kit.HEAD + 'extern "C" int forge_launch(const forge_args*) { return -3; }'
    with torch.no_grad(), one(tmp_path, kit.key_of("aten::relu", X), source).active() as installed:
        for _ in range(3):
            assert torch.equal(torch.relu(X), X.clamp(min=0))
        entry = installed.report().entries[0]
        assert (entry.hits, entry.errors, entry.enabled) == (0, 1, False)


@pytest.mark.parametrize("tier", ["", "python"])
def test_a_failing_in_place_kernel_raises_instead_of_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: str
) -> None:
    monkeypatch.setenv("FORGE_CAST_TIER", tier)
    source = (
        kit.HEAD + 'extern "C" int forge_launch(const forge_args* a) { *(float*)a->inputs[0].data = 99; return -1; }'
    )
    with torch.no_grad(), one(tmp_path, kit.key_of("aten::relu_", X), source).active():
        with pytest.raises(RuntimeError, match="half written"):
            torch.relu_(X.clone())
        assert torch.equal(torch.relu_(X.clone()), X.clamp(min=0))


WORKSPACE = kit.HEAD + (
    f'extern "C" int forge_launch(const forge_args* a){{ {kit.LOOP} float* y=(float*)a->outputs[0].data;'
    "if(a->workspace_bytes != 4*n || ((uintptr_t)a->workspace & 511)) return 1;"
    "const unsigned char* w=(const unsigned char*)a->workspace; if (w[0]!=7 || w[8]!=0) return 2;"
    "float* t=(float*)a->workspace; memcpy(t,x,4*n); for(int64_t i=0;i<n;++i) y[i]=t[i]>0?t[i]:0; return 0; }"
)


@pytest.mark.parametrize("tier", ["", "python"])
def test_workspace_is_sized_aligned_and_filled_by_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: str
) -> None:
    monkeypatch.setenv("FORGE_CAST_TIER", tier)
    steps = (Step("memset", offset="0", bytes="8", value=7), Step("host"))
    plan = Plan(1, steps, Workspace("in0_numel*esize", 512, True), None, {"esize": 4})
    with torch.no_grad(), one(tmp_path, kit.key_of("aten::relu", X), WORKSPACE, plan).active() as installed:
        assert torch.equal(torch.relu(X), X.clamp(min=0))
        assert installed.report().hits == 1, str(installed.report())


PREPARED = kit.HEAD + (
    'extern "C" int forge_prepare(const forge_args* a, void* out){ memcpy(out, a->inputs[1].data, 4*8*8);'
    "((float*)out)[0] += 0; return 0; }\n"
    'extern "C" int forge_launch(const forge_args* a){ if(!a->prepared || a->prepared_bytes != 256) return 1;'
    "const float *x=(const float*)a->inputs[0].data,*w=(const float*)a->prepared; float* y=(float*)a->outputs[0].data;"
    "for(int r=0;r<8;++r) for(int o=0;o<8;++o){ float s=0; for(int k=0;k<8;++k) s+=x[r*8+k]*w[o*8+k]; y[r*8+o]=s; } return 0; }"
)


def parameter_key() -> VariantKey:
    key = kit.key_of("aten::linear", X, torch.randn(8, 8))
    return replace(key, tensors=(key.tensors[0], replace(key.tensors[1], parameter=True)))


def test_prepared_weights_follow_their_parameter(tmp_path: Path) -> None:
    plan = replace(host_plan(), prepare=Prepare((1,), "in1_numel*4"))
    installed = one(tmp_path, parameter_key(), PREPARED, plan).install(None)
    layers = [torch.nn.Linear(8, 8, bias=False) for _ in range(2)]

    def check() -> None:
        with torch.no_grad():
            expected = [X @ m.weight.t() for m in layers]
            with installed.active():
                for m, want in zip(layers, expected, strict=True):
                    torch.testing.assert_close(m(X), want)

    check()
    assert installed.report().entries[0].prepared_bytes == 512  # one buffer a weight
    with torch.no_grad():
        layers[0].weight.mul_(3)  # in place: a new version
    check()
    layers[0].load_state_dict({"weight": torch.randn(8, 8)})
    check()
    layers[1].weight = torch.nn.Parameter(torch.randn(8, 8))  # another tensor
    check()
    assert installed.report().hits == 8
    with torch.inference_mode():
        weight = torch.randn(8, 8)  # has no version to watch: eager
        with installed.active():
            torch.testing.assert_close(torch.nn.functional.linear(X, weight), X @ weight.t())
    assert installed.report().hits == 8
    layers.clear()
    layers.append(torch.nn.Linear(8, 8, bias=False))
    check()  # buffers of weights that are gone are dropped
    assert installed.report().entries[0].prepared_bytes == 256
    installed.uninstall()
    assert installed.report().entries[0].prepared_bytes == 0


@pytest.mark.parametrize("tier", ["", "python"])
def test_a_family_serves_every_size_with_eagers_strides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: str
) -> None:
    monkeypatch.setenv("FORGE_CAST_TIER", tier)
    key = kit.key_of("aten::softmax.int", torch.zeros(1, 4, 8), -1)
    spec = replace(key.tensors[0], dims=(Dim(1, 1), Dim(4, 4), Dim(2, 64, 2, "s0")))
    key = replace(key, tensors=(spec,), outputs=(replace(spec, name="out"),))
    with torch.no_grad(), one(tmp_path, key, kit.SOFTMAX).active() as installed:
        served = 0
        for length in range(1, 70):
            x = torch.randn(1, 4, length)
            got, want = torch.softmax(x, -1), torch.ops.aten._softmax(x, 2, False)
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()
            served += 2 <= length <= 64 and length % 2 == 0
        assert installed.report().hits == served


CAT = kit.HEAD + (
    'extern "C" int forge_launch(const forge_args* a){ float* y=(float*)a->outputs[0].data;'
    "for(int k=0;k<2;++k){ int64_t n=a->inputs[k].sizes[0]*a->inputs[k].sizes[1];"
    "memcpy(y,a->inputs[k].data,4*n); y+=n; } return a->outputs[0].sizes[0]==a->inputs[0].sizes[0]+1 ? 0 : -1; }"
)


@pytest.mark.parametrize("tier", ["", "python"])
def test_an_output_may_grow_with_the_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: str) -> None:
    monkeypatch.setenv("FORGE_CAST_TIER", tier)
    key = kit.key_of("aten::cat", [torch.zeros(2, 8), torch.zeros(1, 8)], 0)
    grown = replace(key.tensors[0], dims=(Dim(2, 32, 1, "s0"), Dim(8, 8)))
    out = replace(key.outputs[0], dims=(Dim(3, 33, 1, "s0+1"), Dim(8, 8)))
    key = replace(key, tensors=(grown, key.tensors[1]), outputs=(out,))
    with torch.no_grad(), one(tmp_path, key, CAT).active() as installed:
        cache = torch.randn(2, 8)
        for step in range(5):
            cache, before = torch.cat([cache, torch.full((1, 8), float(step))]), cache
            assert torch.equal(cache[:-1], before) and bool((cache[-1] == step).all())
        assert installed.report().hits == 5
    odd = replace(key, outputs=(replace(out, dims=(Dim(3, 33, 1, "s0*s0"), Dim(8, 8))),))
    with one(tmp_path, odd, CAT).active() as installed:
        assert "does not follow" in installed.report().entries[0].reason


def test_an_output_has_exactly_the_recorded_strides(tmp_path: Path) -> None:
    source = kit.HEAD + (
        'extern "C" int forge_launch(const forge_args* a){ const forge_tensor&o=a->outputs[0]; int64_t n=1;'
        "for(int d=0;d<o.ndim;++d) n*=o.sizes[d]; memcpy(o.data, a->inputs[0].data, 4*n); return 0; }"
    )
    x = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    with torch.no_grad(), one(tmp_path, kit.key_of("aten::relu", x), source).active() as installed:
        out = torch.relu(x)
        assert torch.equal(out, x) and out.stride() == x.stride()
        assert installed.report().hits == 1


@pytest.mark.parametrize("tier", ["", "python"])
def test_in_place_takes_its_own_copy_of_a_lazily_cloned_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: str
) -> None:
    monkeypatch.setenv("FORGE_CAST_TIER", tier)
    with torch.no_grad(), one(tmp_path, kit.key_of("aten::relu_", X), kit.RELU_INPLACE).active() as installed:
        base = X.clone()
        lazy = torch._lazy_clone(base)
        version = lazy._version
        torch.relu_(lazy)
        assert torch.equal(base, X) and torch.equal(lazy, X.clamp(min=0)) and lazy._version == version + 1
        assert installed.report().hits == 1


def test_the_python_tier_leaves_out_what_does_not_pay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_CAST_TIER", "python")
    path = kit.cast_file(
        tmp_path / "small.cast", kit.entry_of("relu", kit.key_of("aten::relu", X), kit.RELU, gain_us=0.5)
    )
    installed = cast.load(path, accept_host_code=True).install(None, quiet=True)
    assert "less than the Python tier" in installed.report().entries[0].reason
    assert "not hooked" in str(installed.report())
    installed.uninstall()


def test_without_a_compiler_the_python_tier_runs_and_says_why(
    path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded = cast.load(path, accept_host_code=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with torch.no_grad(), loaded.active() as installed:
        torch.relu(X)
    report = installed.report()
    assert report.tier == "Python hooks" and "no C++ compiler" in report.tier_reason and report.hits == 1


def test_another_owner_of_the_first_key_gets_out_of_the_way(path: str) -> None:
    other = torch.library.Library("_", "IMPL")
    other.fallback(torch.library.fallthrough_kernel, MODE_KEYS[0])
    try:
        with torch.no_grad(), cast.load(path, accept_host_code=True).active() as installed:
            torch.relu(X)
        assert installed.report().key == MODE_KEYS[1] and installed.report().hits == 1
    finally:
        other._destroy()


def test_capture_and_an_installed_cast_live_in_one_process(path: str) -> None:
    from forge_tui.capture.modekey import ModeKey

    seen: list[str] = []
    loaded = cast.load(path, accept_host_code=True)
    with torch.no_grad(), loaded.active() as installed:

        def hook(keyset: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(str(op))
            with key.off():
                return op(*args, **kwargs)

        with ModeKey(hook) as key:
            torch._C._dispatch_tls_set_dispatch_key_included(key._key, True)
            torch.sin(X)
            torch._C._dispatch_tls_set_dispatch_key_included(key._key, False)
        assert key.name != installed.report().key and seen
        torch.relu(X)
    assert installed.report().hits == 1


def test_explain_names_guards_and_reasons(loaded: Cast) -> None:
    with torch.no_grad(), loaded.active() as installed:
        torch.relu(torch.randn(3))
        text = installed.explain("relu")
    assert "8x8 float32" in text and "ran eager 1 times" in text and "runs eager under" in text
    assert "no entry for conv2d" in installed.explain("conv2d")
