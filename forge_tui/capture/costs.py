"""What one call of a card moves and computes, for the speed-of-light bound.

Bytes: distinct elements read plus elements written, each once. Flops: a multiply-add counts as two; formulas are the
textbook ones (2*M*N*K for a matrix product), None where no formula is given.
"""

from __future__ import annotations

from math import prod

from forge_tui.records.card import TensorSpec, VariantKey
from forge_tui.records.dtype import itemsize

# Operators that read only the rows their indices name: argument holding the table -> argument holding the indices.
_GATHERS = {
    "embedding": (0, 1), "embedding_bag": (0, 1), "index_select": (0, 1), "gather": (0, 1), "take": (0, 1),
    "index": (0, 1),
}  # fmt: skip


def bytes_moved(key: VariantKey) -> int:
    """Distinct bytes read plus written by one call at the captured (low) sizes."""
    written = sum(key.outputs[i].touched_bytes for i in key.writes)
    written += sum(key.tensors[i].touched_bytes for i in key.mutates)
    read = 0
    table = _GATHERS.get(key.base_op, (-1, -1))[0]
    for number, spec in enumerate(key.tensors):
        if spec.shares >= 0 and key.tensors[spec.shares].sizes == spec.sizes:
            continue  # the same memory again
        if number in key.mutates and not _reads_target(key):
            continue
        read += min(spec.touched_bytes, _gathered(key)) if number == table else spec.touched_bytes
    return read + written


def flops(key: VariantKey) -> int | None:
    """Floating-point operations of one call at the captured (low) sizes, or None."""
    base = key.base_op
    tensors = key.tensors
    if base in ("linear", "matmul", "mm", "bmm", "mv", "dot") and len(tensors) >= 2:
        inner = tensors[0].sizes[-1] if tensors[0].sizes else 1
        return 2 * _results(key) * inner
    if base in ("addmm", "baddbmm", "addmv") and len(tensors) >= 3:
        return 2 * _results(key) * tensors[1].sizes[-1]
    if base in ("conv1d", "conv2d", "conv3d", "convolution", "_convolution") and len(tensors) >= 2:
        transposed = any(a.name == "transposed" and a.value for a in key.args)
        if not transposed:
            return 2 * _results(key) * prod(tensors[1].sizes[1:])
    if base.startswith("conv_transpose") and len(tensors) >= 2:
        return 2 * tensors[0].numel * prod(tensors[1].sizes[1:])
    if base == "scaled_dot_product_attention" and len(tensors) >= 3:
        query, keys, values = tensors[:3]
        return 2 * prod(query.sizes[:-1]) * keys.sizes[-2] * (query.sizes[-1] + values.sizes[-1])
    return None


def _results(key: VariantKey) -> int:
    specs = key.outputs or tuple(key.tensors[i] for i in key.mutates)
    return specs[0].numel if specs else 0


def _reads_target(key: VariantKey) -> bool:
    """In-place operators read what they write, except plain stores and out= variants."""
    overload = key.op.rpartition(".")[2]
    return not (key.base_op in ("copy_", "fill_", "zero_") or overload.endswith("out"))


def _gathered(key: VariantKey) -> int:
    """Bytes of table rows that the indices can touch at most."""
    table: TensorSpec = key.tensors[0]
    if key.base_op == "embedding_bag":
        return key.tensors[1].numel * prod(table.sizes[1:]) * itemsize(table.dtype)
    return key.outputs[0].numel * itemsize(table.dtype) if key.outputs else table.touched_bytes
