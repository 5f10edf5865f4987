/* Operators with a hook of their own type. Every other operator with an entry goes through the generic boxed hook.
 *
 * A line names the operator and its structure in at::_ops; the argument types come from torch's own headers, so a
 * schema that differs between torch versions needs no change here.
 */
#pragma once
#include <ATen/ops/adaptive_avg_pool2d_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/avg_pool2d_ops.h>
#include <ATen/ops/batch_norm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/conv1d_ops.h>
#include <ATen/ops/conv2d_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/group_norm_ops.h>
#include <ATen/ops/layer_norm_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/log_softmax_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/max_pool2d_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rms_norm_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/scaled_dot_product_attention_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/softmax_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/tanh_ops.h>

#define FORGE_TYPED_OPERATORS(OP) \
  OP("softmax.int", softmax_int) OP("log_softmax.int", log_softmax_int) OP("layer_norm", layer_norm) OP("rms_norm", rms_norm) \
  OP("group_norm", group_norm) OP("batch_norm", batch_norm) OP("gelu", gelu) OP("gelu_", gelu_) OP("silu", silu) OP("silu_", silu_) \
  OP("relu", relu) OP("relu_", relu_) OP("add.Tensor", add_Tensor) OP("add_.Tensor", add__Tensor) OP("mul.Tensor", mul_Tensor) \
  OP("mul_.Tensor", mul__Tensor) OP("sub.Tensor", sub_Tensor) OP("div.Tensor", div_Tensor) OP("sigmoid", sigmoid) OP("tanh", tanh) \
  OP("embedding", embedding) OP("linear", linear) OP("matmul", matmul) OP("bmm", bmm) OP("addmm", addmm) OP("conv2d", conv2d) \
  OP("conv1d", conv1d) OP("adaptive_avg_pool2d", adaptive_avg_pool2d) OP("avg_pool2d", avg_pool2d) OP("max_pool2d", max_pool2d) \
  OP("scaled_dot_product_attention", scaled_dot_product_attention) OP("mean.dim", mean_dim) OP("sum.dim_IntList", sum_dim_IntList) \
  OP("rsqrt", rsqrt) OP("pow.Tensor_Scalar", pow_Tensor_Scalar) OP("cat", cat)
