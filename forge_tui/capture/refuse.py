"""Which calls become no card, and which become a refused one. Each rule's comment names what it protects.

A call that can't even be written down as a key is "not seen" (with the reason); one that can, but must not be
replaced, is a refused card, so that the user finds it in the list.
"""

from __future__ import annotations

import torch

from forge_tui.capture.describe import Call, Operator
from forge_tui.records.card import VariantKey

# Whole layers behind one operator: replacing them means writing the layer, and their inner operators stay invisible.
CONTAINERS = frozenset(
    {"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
     "_transformer_encoder_layer_fwd", "_native_multi_head_attention", "_thnn_fused_lstm_cell", "mkldnn_rnn_layer",
     "quantized_lstm", "quantized_gru"}
)  # fmt: skip
# Fill memory from metadata alone, or leave it uninitialised: nothing to compute, nothing to compare.
FACTORIES = frozenset(
    {"empty_like", "zeros_like", "ones_like", "full_like", "new_empty", "new_zeros", "new_ones", "new_full",
     "new_empty_strided", "empty_strided", "resize_", "resize_as_", "lift_fresh", "lift"}
)  # fmt: skip
# Result size depends on values although the schema's tags don't say so (or say it for every use of the operator).
VALUE_SIZED = frozenset({"_pack_padded_sequence", "repeat_interleave", "bincount", "histc", "combinations"})
# Keys that mean a tool or transform stands between the model and the operator.
FOREIGN_KEYS = (
    "Python", "Functionalize", "FuncTorchDynamicLayerFrontMode", "FuncTorchBatched", "Negative", "Conjugate", "ZeroTensor",
    "Meta", "SparseCPU", "SparseCUDA", "QuantizedCPU", "QuantizedCUDA", "NestedTensorCPU", "MkldnnCPU",
)  # fmt: skip


def not_seen(call: Call, results: tuple[torch.Tensor, ...], writes: bool) -> str:
    """Why this call makes no card at all, or ""."""
    operator = call.operator
    if not call.tensors:
        return "makes a tensor from no tensor"
    if operator.base in FACTORIES:
        return "makes a tensor from no values"
    if not results and not writes:
        return "returns no tensor"
    if "inplace_view" in operator.tags:
        return "view"
    if not writes and results and all(_is_part(result, call.tensors) for result in results):
        return "view"
    return ""


def refusal(call: Call, key: VariantKey, user_ops: frozenset[str], wants_grad: bool) -> str:
    """Why the card must not be replaced, or ""."""
    operator = call.operator
    if operator.name in user_ops or f"{operator.name.split('.')[0]}" in user_ops:
        return "registered by the user's file"
    if random_here(call):
        return "random: draws from the generator"
    if operator.base in CONTAINERS:
        return "container: runs a whole layer of operators inside"
    if value_sized(call):
        return "the size of its result depends on values"
    if any(t.dtype.startswith("complex") for t in (*key.tensors, *key.outputs)):
        return "complex numbers"
    if wants_grad:
        return "called with gradients on"
    if any(alias >= 0 for alias in key.output_alias):
        return "returns part of its input beside new memory"
    if any(key.tensors[i].shares >= 0 for i in key.mutates) or any(
        spec.shares in key.mutates for spec in key.tensors if spec.shares >= 0
    ):
        return "writes memory that another argument reads"
    if not key.outputs and not key.mutates:
        return "returns no tensor"
    return ""


def random_here(call: Call) -> bool:
    """True when this call draws random numbers: tagged so, and not switched off by its arguments (dropout in eval)."""
    if "nondeterministic_seeded" not in call.operator.tags:
        return False
    named = {p.name: v for p, v in zip(call.operator.parameters, call.values, strict=True)}
    if "dropout_p" in named:
        return bool(named["dropout_p"])
    for switch in ("train", "training"):
        if switch in named and named[switch] is not None:
            return bool(named[switch])
    return True


def value_sized(call: Call) -> bool:
    """True when the shape of the result depends on the values of the inputs."""
    operator: Operator = call.operator
    if operator.base in ("index", "index_put", "index_put_", "_unsafe_index"):  # a mask selects; integers don't
        return any(t.dtype in (torch.bool, torch.uint8) for t in call.tensors[1:]) and operator.base.endswith("index")
    return bool({"dynamic_output_shape", "data_dependent_output"} & operator.tags) or operator.base in VALUE_SIZED


def _is_part(result: torch.Tensor, tensors: tuple[torch.Tensor, ...]) -> bool:
    """The result is an input, or a view of its storage."""
    if result.layout is not torch.strided:
        return any(result is t for t in tensors)
    pointer = result.untyped_storage().data_ptr()
    return any(
        result is t or (t.layout is torch.strided and t.untyped_storage().data_ptr() == pointer) for t in tensors
    )
