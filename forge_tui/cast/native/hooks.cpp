/* Dispatch hooks on a thread-local mode key above autograd and autocast, and the C interface the runtime drives them by.
 *
 * The key comes by name, since its number differs between torch versions. Operators without entries stay untouched:
 * the key's fallback is a fallthrough, which the dispatcher turns into a bit mask. Registered libraries live on the
 * heap and are destroyed to undo them; this file's library itself is never unloaded.
 */
#include <torch/library.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <map>
#include <string>

#include "table.h"
#include "typed.h"

namespace forge {

using c10::DispatchKey;
using c10::DispatchKeySet;

static DispatchKey mode_key = DispatchKey::Undefined;
static DispatchKeySet after_mode;
static uint64_t forbidden = ~0ull;
static std::atomic<bool> diagnosing{false};
static std::atomic<uint64_t> canary_calls{0};

struct Hooked {
  Table* table = nullptr;
  std::unique_ptr<torch::Library> library;
  bool typed = false;
};
static std::mutex& big_lock() { static std::mutex m; return m; }
static std::map<std::string, Hooked>& hooked() { static std::map<std::string, Hooked> m; return m; }
static std::unique_ptr<torch::Library>& fallback() { static std::unique_ptr<torch::Library> l; return l; }

// Operators of the generic hook, by the address of their name; immutable snapshots like the tables.
using ByOp = std::unordered_map<const void*, Table*>;
static std::atomic<const ByOp*> by_op{nullptr};

static int state_of(DispatchKeySet ks) {
  DispatchKeySet bad(DispatchKeySet::RAW, ks.raw_repr() & forbidden);
  for (auto k : {DispatchKey::AutocastCPU, DispatchKey::AutocastCUDA}) if (bad.has(k)) return -1;  // it casts, then calls again
  for (auto k : {DispatchKey::FuncTorchDynamicLayerFrontMode, DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::FuncTorchBatched,
                 DispatchKey::FuncTorchVmapMode, DispatchKey::FuncTorchGradWrapper, DispatchKey::Functionalize}) if (bad.has(k)) return R_functorch;
  if (bad.has(DispatchKey::Tracer)) return R_tracing;
  for (auto k : {DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::PreDispatch, DispatchKey::PythonDispatcher}) if (bad.has(k)) return R_python_mode;
  for (auto k : {DispatchKey::Negative, DispatchKey::Conjugate, DispatchKey::ZeroTensor}) if (bad.has(k)) return R_math_bits;
  return R_other_state;
}

/* The whole decision for one call whose view is built. */
static bool serve(Table& table, const Snapshot& s, View& v, at::Tensor* outs) {
  Entry* e = v.valid ? Table::find(s, v) : nullptr;
  if (C10_LIKELY(e != nullptr)) {
    int why = blocked(*e, v);
    if (C10_LIKELY(why < 0)) return run(table, *e, v, outs);
    table.miss(why);
    return false;
  }
  table.miss(diagnosing.load(std::memory_order_relaxed) ? Table::diagnose(s, v) : R_undiagnosed);
  return false;
}

template <class T, class... Rest>
static bool maybe(const Snapshot& s, const T& first, const Rest&...) {
  if constexpr (std::is_same_v<std::decay_t<T>, at::Tensor>) {
    if (C10_LIKELY(first.defined())) return (s.bloom & bloom_bit(first.numel(), (int64_t)first.scalar_type())) != 0;
  }
  return true;
}
template <class T, class... Rest>
static decltype(auto) first_of(T&& first, Rest&&...) { return std::forward<T>(first); }

template <class Op, class Signature> struct Typed;
template <class Op, class R, class... A> struct Typed<Op, R(A...)> {
  static_assert(std::is_same_v<R, at::Tensor> || std::is_same_v<R, at::Tensor&>);
  static inline Table table;
  static R call(DispatchKeySet ks, A... a) {
    const Snapshot* s = table.snapshot.load(std::memory_order_acquire);
    if (C10_LIKELY(s != nullptr)) {
      if (C10_LIKELY((ks.raw_repr() & forbidden) == 0)) {
        if (maybe(*s, a...) || diagnosing.load(std::memory_order_relaxed)) {
          View v;
          (put(v, a), ...);
          at::Tensor outs[1];
          if (serve(table, *s, v, outs)) {
            if constexpr (std::is_same_v<R, at::Tensor&>) return first_of(a...); else return std::move(outs[0]);
          }
        } else table.miss(R_undiagnosed);
      } else if (int why = state_of(ks); why >= 0) table.miss(why);
    }
    return Op::redispatch(ks & after_mode, std::forward<A>(a)...);
  }
};
template <class Op> static Table* add_typed(torch::Library& library, const char* name) {
  using Hook = Typed<Op, typename Op::schema>;
  library.impl(name, torch::CppFunction::makeFromUnboxedFunction(&Hook::call));
  return &Hook::table;
}

using Adder = Table* (*)(torch::Library&, const char*);
static const std::map<std::string, Adder>& typed_operators() {
  static const std::map<std::string, Adder> m = {
#define OP(name, symbol) {"aten::" name, &add_typed<at::_ops::symbol>},
      FORGE_TYPED_OPERATORS(OP)
#undef OP
  };
  return m;
}

static void boxed(const c10::OperatorHandle& op, DispatchKeySet ks, torch::jit::Stack* stack) {
  const ByOp* map = by_op.load(std::memory_order_acquire);
  auto found = map->find(&op.operator_name());
  if (found != map->end()) {
    Table& table = *found->second;
    const Snapshot* s = table.snapshot.load(std::memory_order_acquire);
    if (s != nullptr && (ks.raw_repr() & forbidden) == 0) {
      View v;
      size_t n = op.schema().arguments().size();
      for (const auto& x : torch::jit::last(*stack, n)) put_boxed(v, x);
      at::Tensor outs[MAX_OUTPUTS];
      if (serve(table, *s, v, outs)) {
        torch::jit::drop(*stack, n);
        for (size_t k = 0; k < op.schema().returns().size(); ++k) stack->emplace_back(std::move(outs[k]));
        return;
      }
    } else if (s != nullptr) {
      if (int why = state_of(ks); why >= 0) table.miss(why);
    }
  }
  op.redispatchBoxed(ks & after_mode, stack);
}

static void canary(const c10::OperatorHandle& op, DispatchKeySet ks, torch::jit::Stack* stack) {
  ++canary_calls;
  op.redispatchBoxed(ks & after_mode, stack);
}

static std::string& last_error() { static thread_local std::string text; return text; }
template <class F> static int64_t guarded(F&& body) {
  try { return body(); } catch (const std::exception& error) { last_error() = error.what(); return -1; }
}
static std::unique_ptr<torch::Library> library(const char* ns) {
  return std::make_unique<torch::Library>(torch::Library::IMPL, ns, mode_key, __FILE__, __LINE__);
}

}  // namespace forge

using namespace forge;

extern "C" {

const char* forge_error() { return last_error().c_str(); }

/* Take the key: register its fallthrough, then prove with one call that a hook on it runs. 0, or -1 with forge_error. */
int64_t forge_open(const char* key_name) {
  return guarded([&]() -> int64_t {
    std::lock_guard<std::mutex> guard(big_lock());
    TORCH_CHECK(!fallback(), "the key is already taken");
    mode_key = c10::parseDispatchKey(key_name);
    after_mode = DispatchKeySet(DispatchKeySet::FULL_AFTER, mode_key);
    auto allowed = DispatchKeySet(DispatchKey::CPU) | DispatchKeySet(DispatchKey::CUDA) | DispatchKeySet(DispatchKey::AutogradCPU) |
                   DispatchKeySet(DispatchKey::AutogradCUDA) | DispatchKeySet(DispatchKey::ADInplaceOrView) | DispatchKeySet(DispatchKey::AutogradOther) | DispatchKeySet(mode_key);
    forbidden = ~allowed.raw_repr();
    auto taken = library("_");
    taken->fallback(torch::CppFunction::makeFallthrough());
    canary_calls = 0;
    {
      auto probe = library("aten");
      probe->impl("relu", torch::CppFunction::makeFromBoxedFunction<&canary>());
      static auto relu = c10::Dispatcher::singleton().findSchemaOrThrow("aten::relu", "");
      bool was = c10::impl::tls_is_dispatch_key_included(mode_key);
      c10::impl::tls_set_dispatch_key_included(mode_key, true);
      torch::jit::Stack stack{at::Tensor(at::detail::empty_cpu({1}, at::kFloat, std::nullopt, std::nullopt, std::nullopt, std::nullopt))};
      relu.callBoxed(&stack);
      c10::impl::tls_set_dispatch_key_included(mode_key, was);
    }
    TORCH_CHECK(canary_calls > 0, "a hook on ", key_name, " did not run");
    fallback() = std::move(taken);
    return 0;
  });
}

/* Give the key back: hooks and fallback are deregistered, torch's tables are as before. */
void forge_close() {
  std::lock_guard<std::mutex> guard(big_lock());
  hooked().clear();
  fallback().reset();
}

/* A new entry from guards.py's list; its handle, or 0. */
void* forge_entry(const int64_t* data, int64_t size) { return decode(data, size); }

/* Put exactly these entries into the operator's table; none takes the hook away. 1 typed hook, 2 generic, 0 none, -1 error. */
int64_t forge_table(const char* op_name, void** entries, int64_t count) {
  return guarded([&]() -> int64_t {
    std::lock_guard<std::mutex> guard(big_lock());
    std::string name(op_name);
    if (count == 0) {
      auto found = hooked().find(name);
      if (found == hooked().end()) return 0;
      found->second.library.reset();
      found->second.table->publish({});
      hooked().erase(found);
      return 0;
    }
    std::vector<Entry*> list;
    for (int64_t k = 0; k < count; ++k) list.push_back((Entry*)entries[k]);
    auto found = hooked().find(name);
    if (found != hooked().end()) {
      found->second.table->publish(list);
      return found->second.typed ? 1 : 2;
    }
    auto split = name.find("::");
    TORCH_CHECK(split != std::string::npos, name, " has no namespace");
    std::string ns = name.substr(0, split), rest = name.substr(split + 2);
    Hooked h;
    h.library = library(ns.c_str());
    auto adder = typed_operators().find(name);
    if (adder != typed_operators().end()) {
      h.typed = true;
      h.table = adder->second(*h.library, rest.c_str());
    } else {
      auto dot = rest.find('.');
      auto op = c10::Dispatcher::singleton().findSchemaOrThrow((ns + "::" + rest.substr(0, dot)).c_str(), dot == std::string::npos ? "" : rest.substr(dot + 1).c_str());
      auto* old = by_op.load();
      auto* map = old ? new ByOp(*old) : new ByOp;
      auto& table = (*map)[&op.operator_name()];
      if (!table) table = new Table;
      h.table = table;
      by_op.store(map, std::memory_order_release);  // the old map stays for readers
      h.library->impl(rest.c_str(), torch::CppFunction::makeFromBoxedFunction<&boxed>());
    }
    h.table->publish(list);
    bool typed = h.typed;
    hooked()[name] = std::move(h);
    return typed ? 1 : 2;
  });
}

/* Take casts out of this thread's set, then put some in; returns the set before. The key is on while it is not empty. */
uint64_t forge_switch(uint64_t out, uint64_t in) {
  uint64_t before = active_casts, casts = (before & ~out) | in;
  active_casts = casts;
  if ((before != 0) != (casts != 0)) c10::impl::tls_set_dispatch_key_included(mode_key, casts != 0);
  return before;
}
uint64_t forge_active() { return active_casts; }
void forge_diagnose(int64_t on) { diagnosing = on != 0; }

/* hits, declined, errors, prepared buffers built, prepared bytes held, enabled. */
void forge_counters(void* entry, uint64_t* out) {
  auto* e = (Entry*)entry;
  out[0] = e->hits; out[1] = e->declined; out[2] = e->errors; out[3] = e->prepared_count; out[4] = e->prepared_bytes; out[5] = e->enabled;
}
/* Drop prepared buffers and switch the entry off: its cast was uninstalled. */
void forge_retire(void* entry) {
  auto* e = (Entry*)entry;
  e->enabled = false;
  std::lock_guard<std::mutex> guard(e->lock);
  e->prepared.clear();
  e->prepared_bytes = 0;
}
int64_t forge_reasons(const char* op_name, uint64_t* out) {
  std::lock_guard<std::mutex> guard(big_lock());
  auto found = hooked().find(op_name);
  if (found == hooked().end()) return 0;
  for (int k = 0; k < R_COUNT; ++k) out[k] = found->second.table->reasons[k];
  return R_COUNT;
}
const char* forge_reason_names() {
  static const char* names =
#define X(name) #name " "
      FORGE_REASONS(X);
#undef X
  return names;
}
int64_t forge_flags() { return flags_now(); }
}
