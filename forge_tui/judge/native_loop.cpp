// Eager's side of a measurement: n boxed dispatcher calls, each with fresh outputs, by the monotonic clock.
//
// The mirror of plumbing.cpp: same rotation, same kept calls copied with the clock stopped, same restore of written
// inputs. Tensors come in as TensorImpl addresses (tensor._cdata), other arguments as tagged values that are
// converted to what the operator's schema asks for. No Python headers: it builds where only torch is installed.
#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>

#include <cstring>
#include <ctime>
#include <string>
#include <vector>

namespace {

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

at::Tensor borrow(int64_t address) {
  if (!address) return at::Tensor();
  auto* impl = reinterpret_cast<c10::TensorImpl*>(address);
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
}

struct EagerLoop {
  c10::OperatorHandle handle;
  std::vector<torch::jit::Stack> sets;            // arguments per set
  std::vector<std::vector<at::Tensor>> pristine;  // per set: the judge's copy of every written input
  std::vector<at::Tensor> written;                // this process's own writable copies
  std::vector<int64_t> fresh;                     // indices of results that need memory of their own
  std::vector<int64_t> slot_bytes;                // windows: fresh results, then written inputs
  std::string error;
};

}  // namespace

extern "C" {

// One argument. kind 0 none, 1 int, 2 double, 3 bool, 4 int list, 5 double list, 6 text, 7 tensor, 8 tensor list,
// 9 bool list, 10 device, 11/12/13 a number (int, double, bool) that takes a tensor's place, as `x + 1` does. Lists
// of tensors hold TensorImpl addresses, 0 for a None element.
struct forge_value {
  int32_t kind, count;
  int64_t i;
  double d;
  const int64_t* ints;
  const double* doubles;
  const char* text;
};

static c10::IValue convert(const forge_value& v, const c10::TypePtr& declared) {
  c10::TypePtr type = declared;
  bool optional = false;
  if (auto opt = type->cast<c10::OptionalType>()) {
    optional = true;
    type = opt->getElementType();
  }
  switch (v.kind) {
    case 0:
      return type->kind() == c10::TypeKind::TensorType && !optional ? c10::IValue(at::Tensor()) : c10::IValue();
    case 1:
      if (type->kind() == c10::TypeKind::FloatType) return double(v.i);
      if (type->kind() == c10::TypeKind::BoolType) return v.i != 0;
      return v.i;
    case 2:
      return v.d;
    case 3:
      if (type->kind() == c10::TypeKind::IntType) return int64_t(v.i != 0);
      return v.i != 0;
    case 4:
      if (auto list = type->cast<c10::ListType>(); list && list->getElementType()->kind() == c10::TypeKind::FloatType) {
        c10::List<double> values;
        for (int k = 0; k < v.count; k++) values.push_back(double(v.ints[k]));
        return values;
      }
      return c10::List<int64_t>(c10::ArrayRef<int64_t>(v.ints, size_t(v.count)));
    case 5:
      return c10::List<double>(c10::ArrayRef<double>(v.doubles, size_t(v.count)));
    case 6:
      return std::string(v.text, size_t(v.count));
    case 7:
      return borrow(v.i);
    case 8: {
      auto list = type->cast<c10::ListType>();
      if (list && list->getElementType()->kind() == c10::TypeKind::OptionalType) {
        c10::List<std::optional<at::Tensor>> values;
        for (int k = 0; k < v.count; k++)
          values.push_back(v.ints[k] ? std::optional<at::Tensor>(borrow(v.ints[k])) : std::nullopt);
        return values;
      }
      c10::List<at::Tensor> values;
      for (int k = 0; k < v.count; k++) values.push_back(borrow(v.ints[k]));
      return values;
    }
    case 9: {
      c10::List<bool> values;
      for (int k = 0; k < v.count; k++) values.push_back(v.ints[k] != 0);
      return values;
    }
    case 11:
      return at::native::wrapped_scalar_tensor(v.i);
    case 12:
      return at::native::wrapped_scalar_tensor(v.d);
    case 13:
      return at::native::wrapped_scalar_tensor(v.i != 0);
    default:
      return c10::Device(std::string(v.text, size_t(v.count)));
  }
}

void* eager_new(const char* op, const char* overload, int n_sets, int n_args, const forge_value* args, int n_fresh,
                const int64_t* fresh, int n_written, const int64_t* written, const int64_t* pristine,
                const int64_t* slot_bytes, char* error, int error_bytes) {
  try {
    auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op, overload);
    auto loop = std::make_unique<EagerLoop>(EagerLoop{handle, {}, {}, {}, {}, {}, {}});
    const auto& schema = handle.schema();
    TORCH_CHECK(schema.arguments().size() == size_t(n_args), "the operator takes ", schema.arguments().size(),
                " arguments, the card has ", n_args);
    for (int set = 0; set < n_sets; set++) {
      torch::jit::Stack stack;
      for (int a = 0; a < n_args; a++)
        stack.push_back(convert(args[int64_t(set) * n_args + a], schema.arguments()[size_t(a)].real_type()));
      loop->sets.push_back(std::move(stack));
      std::vector<at::Tensor> own;
      for (int w = 0; w < n_written; w++) own.push_back(borrow(pristine[int64_t(set) * n_written + w]));
      loop->pristine.push_back(std::move(own));
    }
    for (int w = 0; w < n_written; w++) loop->written.push_back(borrow(written[w]));
    loop->fresh.assign(fresh, fresh + n_fresh);
    loop->slot_bytes.assign(slot_bytes, slot_bytes + n_fresh + n_written);
    return loop.release();
  } catch (const std::exception& problem) {
    snprintf(error, size_t(error_bytes), "%s", problem.what());
    return nullptr;
  }
}

void eager_free(void* pointer) { delete static_cast<EagerLoop*>(pointer); }

// n calls from set `first` on; calls [keep_from, keep_to) are copied to `destinations` (fresh results, then written
// inputs, per kept call). Returns 0, or -1 with the text in `error`.
int eager_batch(void* pointer, int n, int first, int keep_from, int keep_to, void* const* destinations, int64_t* ns,
                char* error, int error_bytes) {
  auto* loop = static_cast<EagerLoop*>(pointer);
  const size_t fresh = loop->fresh.size(), written = loop->written.size(), per_call = fresh + written;
  try {
    c10::AutoGradMode no_grad(false);
    torch::jit::Stack stack;
    int64_t spent = 0, start = now_ns();
    for (int call = 0; call < n; call++) {
      const size_t set = size_t(first + call) % loop->sets.size();
      if (written) {
        spent += now_ns() - start;
        for (size_t w = 0; w < written; w++)
          std::memcpy(loop->written[w].data_ptr(), loop->pristine[set][w].data_ptr(), size_t(loop->slot_bytes[fresh + w]));
        start = now_ns();
      }
      stack = loop->sets[set];
      loop->handle.callBoxed(&stack);
      if (call >= keep_from && call < keep_to) {
        spent += now_ns() - start;
        void* const* to = destinations + size_t(call - keep_from) * per_call;
        for (size_t k = 0; k < fresh; k++) {
          const size_t index = size_t(loop->fresh[k]);
          // A list result is one value on the stack; its elements are counted in order.
          at::Tensor result = stack.size() == 1 && stack[0].isTensorList() ? stack[0].toTensorVector()[index]
                                                                          : stack[index].toTensor();
          std::memcpy(to[k], result.data_ptr(), size_t(loop->slot_bytes[k]));
        }
        for (size_t w = 0; w < written; w++)
          std::memcpy(to[fresh + w], loop->written[w].data_ptr(), size_t(loop->slot_bytes[fresh + w]));
        start = now_ns();
      }
      stack.clear();
    }
    *ns = spent + now_ns() - start;
    return 0;
  } catch (const std::exception& problem) {
    snprintf(error, size_t(error_bytes), "%s", problem.what());
    return -1;
  }
}

}  // extern "C"
