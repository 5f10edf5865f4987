/* Per-operator guard table, and what happens to a call that passes it.
 *
 * A table publishes an immutable snapshot; readers take one atomic load and no lock. Old snapshots are kept (other
 * threads may be reading them); they are small and change only on install and uninstall.
 */
#pragma once
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "entry.h"

namespace forge {

// Order and names are repeated in states.py; a test compares the two.
#define FORGE_REASONS(X) \
  X(shape) X(stride) X(dtype) X(device) X(alignment) X(aliasing) X(scalar) X(arguments) X(gradients) X(flags) \
  X(inference_tensor) X(functorch) X(python_mode) X(tracing) X(math_bits) X(other_state) X(undiagnosed) X(declined) \
  X(disabled) X(no_memory)
enum Reason : int {
#define X(name) R_##name,
  FORGE_REASONS(X)
#undef X
  R_COUNT
};

inline thread_local uint64_t active_casts = 0;  // bit per installed cast whose forward is running on this thread

inline uint64_t mix(uint64_t h, uint64_t x) { return (h ^ x) * 1099511628211ull; }
inline uint64_t bloom_bit(int64_t numel, int64_t dtype) { return 1ull << (((uint64_t)(numel * 31 + dtype) * 0x9E3779B97F4A7C15ull) >> 58); }
inline uint64_t signature(const View& v) {
  uint64_t h = 1469598103934665603ull;
  for (int k = 0; k < v.n_tensors && k < 2; ++k) for (int64_t d : v.tensors[k]->sizes()) h = mix(h, (uint64_t)d);
  return h;
}

/* First difference between a call and an entry, or -1. The values a wrong kernel call could depend on all count. */
inline int mismatch(const Entry& e, const View& v) {
  if (v.n_tensors != (int)e.tensors.size() || v.n_words != (int)e.words.size()) return R_arguments;
  int64_t symbols[32];
  bool seen[32] = {};
  for (int k = 0; k < v.n_tensors; ++k) {
    const TensorGuard& g = e.tensors[k];
    auto* impl = v.tensors[k]->unsafeGetTensorImpl();
    auto sizes = impl->sizes(), strides = impl->strides();
    if ((int64_t)sizes.size() != g.ndim) return R_shape;
    int64_t expected[MAX_DIMS];
    if (g.exact) {
      for (int64_t d = 0; d < g.ndim; ++d) if (sizes[d] != g.lo[d]) return R_shape;
    } else {
      for (int64_t d = 0; d < g.ndim; ++d) {
        if (sizes[d] < g.lo[d] || sizes[d] > g.hi[d] || sizes[d] % g.multiple[d]) return R_shape;
        int64_t s = g.symbol[d];
        if (s >= 0) {
          if (seen[s] && symbols[s] != sizes[d]) return R_shape;
          seen[s] = true; symbols[s] = sizes[d];
        }
      }
      if (g.layout != STRIDED) { default_strides(g.layout, g.ndim, sizes.data(), expected); }
    }
    if ((int64_t)v.tensors[k]->scalar_type() != g.dtype) return R_dtype;
    // The stride of a dimension of one element moves no address, but eager's result layout may hang on it: an exact
    // tensor has exactly the recorded strides, one with a range the recorded or the natural one there.
    if (g.exact || g.layout == STRIDED) {
      for (int64_t d = 0; d < g.ndim; ++d) if (strides[d] != g.stride[d]) return R_stride;
    } else {
      for (int64_t d = 0; d < g.ndim; ++d) if (strides[d] != expected[d] && !(sizes[d] == 1 && strides[d] == g.stride[d])) return R_stride;
    }
    auto device = impl->device();
    if ((int64_t)device.type() != g.device || (g.index >= 0 && device.index() != g.index)) return R_device;
  }
  if (std::memcmp(v.words, e.words.data(), e.words.size() * 8) != 0) return R_scalar;
  for (int k = 0; k < v.n_tensors; ++k) {
    const TensorGuard& g = e.tensors[k];
    auto address = (uintptr_t)v.tensors[k]->const_data_ptr();
    if (address & (g.align - 1)) return R_alignment;
    if (g.shares >= 0) {
      const auto& other = *v.tensors[g.shares];
      if (!v.tensors[k]->is_alias_of(other)) return R_aliasing;
      if (g.has_offset && (int64_t)(address - (uintptr_t)other.const_data_ptr()) != g.offset) return R_aliasing;
    }
  }
  for (int64_t m : e.mutates)  // a written tensor may share memory only where the card says so
    for (int k = 0; k < v.n_tensors; ++k) {
      if (k == m) continue;
      int late = k > m ? k : (int)m, early = k > m ? (int)m : k;
      if (v.tensors[k]->is_alias_of(*v.tensors[m]) != (e.tensors[late].shares == early)) return R_aliasing;
    }
  return -1;
}

inline int64_t flags_now() {
  auto& context = at::globalContext();
  int64_t precision = (int64_t)context.float32MatmulPrecision();
  int64_t flags = (context.deterministicAlgorithms() ? 1 : 0) | precision << 1;
  // A composite operator may cast inside itself: autocast in force here is part of what the call means.
  if (C10_UNLIKELY(!c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastCPU)))
    flags |= (1 + (int64_t)at::autocast::get_autocast_dtype(at::kCPU)) << 8;
  return flags;
}

/* State of the call that no kernel supports, or -1. */
inline int blocked(const Entry& e, const View& v) {
  bool grad = c10::GradMode::is_enabled();
  for (int k = 0; k < v.n_tensors; ++k) {
    auto* impl = v.tensors[k]->unsafeGetTensorImpl();
    if (impl->autograd_meta() == nullptr) continue;
    if (grad && impl->requires_grad()) return R_gradients;
    if (v.tensors[k]->_fw_grad(0).defined()) return R_gradients;  // forward-mode tangent
  }
  if (e.flags != flags_now()) return R_flags;
  for (int64_t m : e.mutates) if (v.tensors[m]->is_inference() && !c10::InferenceMode::is_enabled()) return R_inference_tensor;
  for (int64_t p : e.prepare_inputs) if (v.tensors[p]->is_inference()) return R_inference_tensor;  // has no version to watch
  return -1;
}

struct Snapshot {
  uint64_t mask = 0, bloom = 0;
  std::vector<std::pair<uint64_t, Entry*>> slots;  // open addressing over exact entries
  std::vector<Entry*> families, all;
};

struct Table {
  std::atomic<const Snapshot*> snapshot{nullptr};
  std::atomic<uint64_t> reasons[R_COUNT] = {};
  std::vector<std::unique_ptr<const Snapshot>> kept;

  void miss(int reason) { reasons[reason].fetch_add(1, std::memory_order_relaxed); }

  void publish(const std::vector<Entry*>& entries) {
    auto s = std::make_unique<Snapshot>();
    uint64_t n = 4;
    while (n < entries.size() * 2) n *= 2;
    s->mask = n - 1;
    s->slots.assign(n, {0, nullptr});
    s->all = entries;
    for (Entry* e : entries) {
      bool by_first = !e->words.empty() && e->words[0] == T_TENSOR && !e->tensors.empty();
      if (e->exact && by_first) {
        int64_t numel = 1;
        for (int64_t d = 0; d < e->tensors[0].ndim; ++d) numel *= e->tensors[0].lo[d];
        s->bloom |= bloom_bit(numel, e->tensors[0].dtype);
      } else s->bloom = ~0ull;
      if (!e->exact) { s->families.push_back(e); continue; }
      uint64_t h = 1469598103934665603ull;
      for (size_t k = 0; k < e->tensors.size() && k < 2; ++k)
        for (int64_t d = 0; d < e->tensors[k].ndim; ++d) h = mix(h, (uint64_t)e->tensors[k].lo[d]);
      uint64_t at = h & s->mask;
      while (s->slots[at].second) at = (at + 1) & s->mask;
      s->slots[at] = {h, e};
    }
    snapshot.store(s.get(), std::memory_order_release);
    kept.push_back(std::move(s));
  }

  static bool usable(const Entry* e) { return (e->cast_bit & active_casts) && e->enabled.load(std::memory_order_relaxed); }

  static Entry* find(const Snapshot& s, const View& v) {
    if (!s.slots.empty()) {
      uint64_t h = signature(v);
      for (uint64_t at = h & s.mask; s.slots[at].second; at = (at + 1) & s.mask)
        if (s.slots[at].first == h && usable(s.slots[at].second) && mismatch(*s.slots[at].second, v) < 0) return s.slots[at].second;
    }
    for (Entry* e : s.families) if (usable(e) && mismatch(*e, v) < 0) return e;
    return nullptr;
  }

  /* Why nothing matched: the reason of the entry that came furthest (checks run in the order a reader would ask). */
  static int diagnose(const Snapshot& s, const View& v) {
    if (!v.valid) return R_arguments;
    static const int rank[] = {1, 3, 2, 4, 6, 7, 5, 0};
    int best = -1, reason = R_arguments;
    for (Entry* e : s.all) {
      if (!(e->cast_bit & active_casts)) continue;
      int why = e->enabled.load() ? mismatch(*e, v) : R_disabled;
      int how_far = why >= 0 && why < 8 ? rank[why] : 8;
      if (how_far > best) { best = how_far; reason = why < 0 ? R_disabled : why; }
    }
    return reason;
  }
};

inline at::Tensor new_output(const Output& o, const View& v) {
  int64_t size[MAX_DIMS], stride[MAX_DIMS];
  for (int64_t d = 0; d < o.ndim; ++d) {
    size[d] = o.from_tensor[d] < 0 ? o.size[d] : o.size[d] + o.factor[d] * v.tensors[o.from_tensor[d]]->size(o.from_dim[d]);
    stride[d] = o.stride[d];
  }
  if (!o.exact && o.layout != STRIDED) default_strides(o.layout, o.ndim, size, stride);
  return at::Tensor(at::detail::empty_strided_cpu(at::IntArrayRef(size, o.ndim), at::IntArrayRef(stride, o.ndim), (at::ScalarType)o.dtype));
}

inline std::shared_ptr<Prepared> prepared_for(Entry& e, const View& v, const forge_args& args) {
  const void* key = v.tensors[e.prepare_inputs[0]]->const_data_ptr();
  auto fresh = [&](const Prepared& p) {
    for (size_t k = 0; k < e.prepare_inputs.size(); ++k) {
      const auto& t = *v.tensors[e.prepare_inputs[k]];
      auto storage = p.storages[k].lock();
      if (!storage || storage.get() != t.storage().unsafeGetStorageImpl() || p.pointers[k] != t.const_data_ptr() ||
          p.versions[k] != t.unsafeGetTensorImpl()->version_counter().current_version()) return false;
    }
    return true;
  };
  std::lock_guard<std::mutex> guard(e.lock);
  auto found = e.prepared.find(key);
  if (found != e.prepared.end()) {
    if (fresh(*found->second)) return found->second;
    e.prepared_bytes -= found->second->bytes;
    e.prepared.erase(found);
  }
  for (auto it = e.prepared.begin(); it != e.prepared.end();) {  // weights that are gone give their copies back
    if (it->second->storages[0].expired()) { e.prepared_bytes -= it->second->bytes; it = e.prepared.erase(it); } else ++it;
  }
  auto p = std::make_shared<Prepared>();
  p->bytes = evaluate(e.prepare_bytes, v);
  if (p->bytes < 0) return nullptr;
  p->memory = c10::GetCPUAllocator()->allocate(p->bytes > 0 ? p->bytes : 1);
  for (int64_t k : e.prepare_inputs) {
    const auto& t = *v.tensors[k];
    p->storages.emplace_back(t.storage().getWeakStorageImpl());
    p->pointers.push_back(t.const_data_ptr());
    p->versions.push_back(t.unsafeGetTensorImpl()->version_counter().current_version());
  }
  if (e.prepare(&args, p->memory.get()) != 0) return nullptr;
  e.prepared[key] = p;
  e.prepared_bytes += p->bytes;
  ++e.prepared_count;
  return p;
}

/* Run the kernel. `outs` receives one tensor per result of the schema. False: nothing was written, run eager. */
inline bool run(Table& table, Entry& e, const View& v, at::Tensor* outs) {
  forge_tensor inputs[MAX_TENSORS], outputs[MAX_OUTPUTS];
  const int n = v.n_tensors;
  std::memcpy(inputs, e.inputs.data(), n * sizeof(forge_tensor));
  for (int k = 0; k < n; ++k) {
    inputs[k].data = const_cast<void*>(v.tensors[k]->const_data_ptr());
    if (!e.tensors[k].exact) { inputs[k].sizes = v.tensors[k]->sizes().data(); inputs[k].strides = v.tensors[k]->strides().data(); }
  }
  for (int64_t m : e.mutates) inputs[m].data = v.tensors[m]->mutable_data_ptr();  // copy-on-write storage gets its own memory here
  int fresh = 0;
  for (size_t k = 0; k < e.outputs.size(); ++k) {
    const Output& o = e.outputs[k];
    if (o.alias >= 0) { outs[k] = at::Tensor(*v.tensors[o.alias]); continue; }
    outs[k] = new_output(o, v);
    outputs[fresh++] = {outs[k].mutable_data_ptr(), outs[k].sizes().data(), outs[k].strides().data(), (int32_t)o.ndim, (int32_t)o.abi_dtype};
  }
  forge_args args{};
  args.abi = FORGE_ABI;
  args.n_inputs = n; args.n_outputs = fresh; args.n_scalars = (int32_t)e.scalars.size();
  args.inputs = inputs; args.outputs = outputs; args.scalars = e.scalars.data();
  args.threads = at::get_num_threads();
  c10::DataPtr scratch;
  if (!e.workspace.empty()) {
    int64_t bytes = evaluate(e.workspace, v);
    if (bytes < 0) { table.miss(R_no_memory); return false; }
    if (bytes > 0) {
      scratch = c10::GetCPUAllocator()->allocate(bytes + e.workspace_align);
      auto start = ((uintptr_t)scratch.get() + e.workspace_align - 1) & ~(uintptr_t)(e.workspace_align - 1);
      args.workspace = (void*)start; args.workspace_bytes = bytes;
      if (e.zeroed) std::memset(args.workspace, 0, bytes);
      for (const auto& m : e.memsets) {
        int64_t offset = evaluate(m.offset, v), length = evaluate(m.bytes, v);
        if (offset < 0 || length < 0 || offset > bytes || length > bytes - offset) { table.miss(R_no_memory); return false; }
        std::memset((char*)args.workspace + offset, (int)m.value, length);
      }
    }
  }
  std::shared_ptr<Prepared> prepared;
  if (e.prepare && !e.prepare_inputs.empty()) {
    prepared = prepared_for(e, v, args);
    if (!prepared) { table.miss(R_declined); ++e.declined; return false; }
    args.prepared = prepared->memory.get(); args.prepared_bytes = prepared->bytes;
  }
  int code = e.launch(&args);
  if (C10_UNLIKELY(code != 0)) {
    if (code > 0) { e.declined.fetch_add(1); table.miss(R_declined); return false; }
    e.errors.fetch_add(1);
    e.enabled.store(false);
    TORCH_CHECK(e.mutates.empty(), "forge_tui cast: an in-place kernel failed with code ", code, "; its tensor may be half written. The kernel is now off.");
    table.miss(R_disabled);
    return false;
  }
  for (int64_t m : e.mutates) v.tensors[m]->unsafeGetTensorImpl()->bump_version();
  e.hits.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace forge
