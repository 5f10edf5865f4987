/* The C entry of a T3 candidate and the structures it is called with. Version 1.
 *
 *   int forge_launch(const forge_args*)                     0 done; >0 declined before any write; <0 error
 *   int forge_prepare(const forge_args*, void* prepared)    optional: repack parameters into `prepared`
 *
 * Inputs are the card's tensors in schema order (lists flattened, None left out); outputs are
 * allocated by the caller with exactly eager's sizes, strides and dtypes. In-place operators write
 * inputs[k] for the card's `mutates` and have no outputs. Sizes and strides count elements.
 */
#pragma once
#include <stdint.h>

#define FORGE_ABI 1

enum forge_dtype {
  FORGE_BOOL = 0, FORGE_U8, FORGE_I8, FORGE_I16, FORGE_I32, FORGE_I64, FORGE_F16, FORGE_BF16, FORGE_F32, FORGE_F64,
  FORGE_F8_E4M3, FORGE_F8_E5M2, FORGE_C64, FORGE_C128
};

enum forge_scalar_kind { FORGE_NONE = 0, FORGE_INT, FORGE_DOUBLE, FORGE_BOOLEAN, FORGE_INT_LIST, FORGE_DOUBLE_LIST, FORGE_TEXT };

typedef struct {
  void* data;
  const int64_t* sizes;
  const int64_t* strides;
  int32_t ndim;
  int32_t dtype;
} forge_tensor;

typedef struct {
  int32_t kind;  /* forge_scalar_kind */
  int32_t count; /* length of a list or text */
  union {
    int64_t i;
    double d;
    const int64_t* ints;
    const double* doubles;
    const char* text;
  } v;
} forge_scalar;

typedef struct {
  int32_t abi;
  int32_t n_inputs, n_outputs, n_scalars;
  const forge_tensor* inputs;
  const forge_tensor* outputs;
  const forge_scalar* scalars; /* non-tensor arguments in schema order */
  void* workspace;
  int64_t workspace_bytes;
  const void* prepared;
  int64_t prepared_bytes;
  void* stream; /* null on the CPU */
  int32_t threads;
  int32_t reserved;
} forge_args;

#ifdef __cplusplus
extern "C" {
#endif
int forge_launch(const forge_args*);
#ifdef __cplusplus
}
#endif
