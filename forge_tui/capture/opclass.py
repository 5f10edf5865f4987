"""Operator name -> error-rule class (records.opclass). An operator that isn't here has none: its cards are "weak"."""

from __future__ import annotations

from forge_tui.records import opclass as names
from forge_tui.records.card import VariantKey
from forge_tui.records.dtype import FLOATING

_EXACT = """
relu relu6 hardtanh clamp clamp_min clamp_max clip threshold neg negative abs absolute sign sgn floor ceil round trunc fix
where cat concat concatenate stack hstack vstack dstack pad constant_pad_nd reflection_pad1d reflection_pad2d
replication_pad1d replication_pad2d gather take take_along_dim index index_select embedding repeat tile
repeat_interleave flip roll tril triu masked_fill masked_select clone copy contiguous reshape flatten to _to_copy type_as
view_as_real view_as_complex fill zero eq ne lt le gt ge equal greater less greater_equal less_equal not_equal maximum
minimum fmax fmin max min amax amin aminmax logical_and logical_or logical_not logical_xor bitwise_and bitwise_or
bitwise_not bitwise_xor __and__ __or__ __xor__ __lshift__ __rshift__ isnan isinf isfinite isin max_pool1d max_pool2d max_pool3d max_pool2d_with_indices
adaptive_max_pool1d adaptive_max_pool2d upsample_nearest1d upsample_nearest2d upsample_nearest3d pixel_shuffle
pixel_unshuffle channel_shuffle one_hot bucketize searchsorted index_put index_copy index_fill scatter slice_scatter
select_scatter diag diagonal_copy diag_embed unfold_copy im2col movedim_copy nan_to_num copysign heaviside
_unsafe_index any all column_stack
"""
_ONE_ROUNDING = "add sub subtract mul multiply div divide true_divide rsub sqrt square reciprocal prelu outer ger"
_TRANSCENDENTAL = """
exp exp2 expm1 log log2 log10 log1p gelu silu swish mish tanh sigmoid hardsigmoid hardswish rsqrt sin cos tan asin acos
atan atan2 sinh cosh asinh acosh atanh erf erfc erfinv pow float_power softplus softsign elu selu celu leaky_relu rrelu
log_sigmoid logit logaddexp logaddexp2 glu tanhshrink softshrink hardshrink addcmul addcdiv lerp xlogy hypot special_expit
sinc remainder fmod floor_divide deg2rad rad2deg
"""
_REDUCTION = """
sum nansum mean nanmean var std var_mean std_mean norm linalg_vector_norm linalg_norm frobenius_norm layer_norm
native_layer_norm group_norm native_group_norm batch_norm native_batch_norm _native_batch_norm_legit_no_training
instance_norm rms_norm _fused_rms_norm local_response_norm cumsum cumprod logcumsumexp prod logsumexp normalize renorm
cosine_similarity pairwise_distance cdist trace dist index_add scatter_add scatter_reduce
mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy binary_cross_entropy_with_logits
"""
_SOFTMAX = "softmax _softmax log_softmax _log_softmax _safe_softmax"
_MATMUL = """
mm bmm matmul linear addmm baddbmm addbmm mv addmv dot vdot inner einsum bilinear tensordot chain_matmul linalg_multi_dot
"""
_CONV = """
conv1d conv2d conv3d convolution _convolution conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc
"""
_ATTENTION = "scaled_dot_product_attention"
_POOL = """
avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d lp_pool1d lp_pool2d
embedding_bag _embedding_bag upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d grid_sampler
grid_sampler_2d grid_sampler_3d col2im
"""
_SELECTION = "argmax argmin topk sort argsort msort kthvalue median nanmedian mode cummax cummin"

CLASS_OF: dict[str, str] = {
    op: name
    for name, ops in (
        (names.EXACT, _EXACT), (names.ONE_ROUNDING, _ONE_ROUNDING), (names.TRANSCENDENTAL, _TRANSCENDENTAL),
        (names.REDUCTION_NORM, _REDUCTION), (names.SOFTMAX, _SOFTMAX), (names.MATMUL, _MATMUL), (names.CONV, _CONV),
        (names.ATTENTION, _ATTENTION), (names.POOL_AVERAGE, _POOL), (names.SELECTION, _SELECTION),
    )
    for op in ops.split()
}  # fmt: skip


def op_class(key: VariantKey) -> str:
    """Class of a card's operator, or "" when there is no rule for it."""
    if not key.op.startswith("aten::"):
        return ""
    base = key.base_op
    found = CLASS_OF.get(base) or CLASS_OF.get(base.rstrip("_"), "")
    results = key.outputs or tuple(key.tensors[i] for i in key.mutates)
    if found not in (names.EXACT, names.SELECTION, "") and results and all(t.dtype not in FLOATING for t in results):
        return names.INTEGER
    # add and sub round twice when alpha is not 1.
    scaled = any(a.name == "alpha" and a.value not in (1, 1.0, None) for a in key.args)
    return names.TRANSCENDENTAL if found == names.ONE_ROUNDING and scaled else found
