// Times eager and a recipe's kernel under equal allocation: each call returns or gets fresh outputs from posix_memalign.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <chrono>
#include <cstdlib>

struct Value { int32_t kind; int32_t count; void* tensor; int64_t i; double d; const void* list; };
enum { NONE, TENSOR, INT, DOUBLE, BOOL, TEXT, INTS, DTYPE };

static c10::IValue value_of(const Value& v) {
  switch (v.kind) {
    case TENSOR: {
      auto* impl = static_cast<c10::TensorImpl*>(v.tensor);
      return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(impl));
    }
    case INT: return v.i;
    case DOUBLE: return v.d;
    case BOOL: return v.i != 0;
    case TEXT: return std::string(static_cast<const char*>(v.list), v.count);
    case INTS: {
      auto* p = static_cast<const int64_t*>(v.list);
      return c10::List<int64_t>(c10::ArrayRef<int64_t>(p, v.count));
    }
    default: return c10::IValue();
  }
}

static double now() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Microseconds of `calls` eager calls. sets: groups of `count` values that take turns, so that weights come from memory
// as cold as they do in a model.
extern "C" double eager_us(const char* name, const char* overload, const Value* values, int count, int sets, long calls) {
  at::NoGradGuard guard;
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  std::vector<std::vector<c10::IValue>> ready(sets);
  for (int s = 0; s < sets; ++s)
    for (int k = 0; k < count; ++k) ready[s].push_back(value_of(values[s * count + k]));
  const double start = now();
  for (long c = 0; c < calls; ++c) {
    torch::jit::Stack stack(ready[c % sets]);
    op.callBoxed(&stack);
  }
  return now() - start;
}

struct forge_tensor { void* data; const int64_t* sizes; const int64_t* strides; int32_t ndim, dtype; };
struct forge_args {
  int32_t abi, n_inputs, n_outputs, n_scalars;
  forge_tensor *inputs, *outputs;
  const void* scalars; void* workspace; int64_t workspace_bytes; const void* prepared; int64_t prepared_bytes;
  void* stream; int32_t threads, reserved;
};

extern "C" double kernel_us(int (*launch)(const forge_args*), forge_args** args, const int64_t* bytes, int sets, long calls) {
  const double start = now();
  for (long c = 0; c < calls; ++c) {
    forge_args* a = args[c % sets];
    for (int k = 0; k < a->n_outputs; ++k)
      if (posix_memalign(&a->outputs[k].data, 64, bytes[k])) return -1;
    if (launch(a)) return -2;
    for (int k = 0; k < a->n_outputs; ++k) free(a->outputs[k].data);
  }
  return now() - start;
}
