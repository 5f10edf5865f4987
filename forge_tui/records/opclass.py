"""Operator classes: which error rule and which trials fit an operator (trust notes 4.2).

Capture writes the class on a card, the judge reads it. A card without one ("") is
labelled "weak" and judged by torch's default tolerances; a class is never guessed.
"""

from __future__ import annotations

EXACT = "exact"  # moves, selects or compares values: bitwise equal to eager
ONE_ROUNDING = "one rounding"  # add, mul, div, sqrt: within 1 ulp of the once-rounded result
TRANSCENDENTAL = "transcendental"  # exp, gelu, silu, tanh, rsqrt and chains of a few roundings
REDUCTION_NORM = "reduction norm"  # sum, mean, var, layer/group/batch/rms norm
SOFTMAX = "softmax"  # softmax, log-softmax
MATMUL = "matmul"  # linear, mm, bmm, einsum
CONV = "conv"  # convolutions and their transposes
ATTENTION = "attention"  # scaled dot product attention
POOL_AVERAGE = "pool average"  # average pools, embedding_bag, linear interpolation
INTEGER = "integer"  # arithmetic on integers or bools: exact
SELECTION = "selection"  # argmax, topk, sort: values exact, ties in the index are free

OP_CLASSES = (
    EXACT, ONE_ROUNDING, TRANSCENDENTAL, REDUCTION_NORM, SOFTMAX, MATMUL, CONV, ATTENTION, POOL_AVERAGE, INTEGER, SELECTION,
)  # fmt: skip
