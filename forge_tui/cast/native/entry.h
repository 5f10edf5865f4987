/* One entry of a cast as the hooks hold it: guard, kernel, outputs, scratch memory. Immutable but for its counters.
 *
 * Built by `decode` from the flat list of 64-bit values that guards.py writes; the two files change together.
 * Entries are never freed: a thread may still be inside one after it was taken out of its table.
 */
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "../../languages/forge_abi.h"
#include "view.h"

namespace forge {

enum Layout : int64_t { STRIDED = 0, CONTIGUOUS = 1, CHANNELS_LAST = 2 };

struct TensorGuard {
  int64_t lo[MAX_DIMS], hi[MAX_DIMS], multiple[MAX_DIMS], symbol[MAX_DIMS];
  int64_t stride[MAX_DIMS];  // as recorded
  int64_t ndim, dtype, abi_dtype, device, index, layout, align, shares, offset;
  bool has_offset, exact;
};

struct Output {
  int64_t size[MAX_DIMS], factor[MAX_DIMS], from_tensor[MAX_DIMS], from_dim[MAX_DIMS], stride[MAX_DIMS];
  int64_t alias, ndim, dtype, abi_dtype, layout;
  bool exact;
};

struct Memset { std::vector<int64_t> offset, bytes; int64_t value; };

struct Prepared {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  std::vector<const void*> pointers;
  std::vector<uint32_t> versions;
  c10::DataPtr memory;
  int64_t bytes = 0;
};

using LaunchFn = int (*)(const forge_args*);
using PrepareFn = int (*)(const forge_args*, void*);

struct Entry {
  std::vector<uint64_t> words;
  std::vector<TensorGuard> tensors;
  std::vector<Output> outputs;  // every result of the schema
  std::vector<int64_t> mutates;
  std::vector<forge_scalar> scalars;
  std::vector<std::vector<int64_t>> ints;
  std::vector<std::vector<double>> doubles;
  std::vector<std::string> texts;
  std::vector<int64_t> workspace;  // program of `evaluate`
  std::vector<Memset> memsets;
  std::vector<int64_t> prepare_inputs, prepare_bytes;
  int64_t workspace_align = 256, zeroed = 0, flags = 0;
  uint64_t cast_bit = 0;
  LaunchFn launch = nullptr;
  PrepareFn prepare = nullptr;
  bool exact = true;
  int fresh = 0;
  std::vector<forge_tensor> inputs;  // template of an exact entry; data is filled in per call
  std::atomic<uint64_t> hits{0}, declined{0}, errors{0}, prepared_count{0}, prepared_bytes{0};
  std::atomic<bool> enabled{true};
  std::mutex lock;
  std::unordered_map<const void*, std::shared_ptr<Prepared>> prepared;
};

/* Programs of size expressions, in postfix: {0, c} constant, {1, tensor, dim} size, {2, tensor, dim} stride,
 * {3, tensor} numel, then + 4, - 5, * 6, floor-div 7, ceil-div 8, min 9, max 10. Returns -1 on overflow,
 * division by zero or a negative result: such a call runs eager. */
inline int64_t evaluate(const std::vector<int64_t>& program, const View& v) {
  int64_t stack[64];
  int top = 0;
  for (size_t at = 0; at < program.size();) {
    int64_t op = program[at++];
    if (op <= 3) {
      if (top == 64) return -1;
      int64_t value = program[at++];
      if (op == 1) value = v.tensors[value]->size(program[at++]);
      else if (op == 2) value = v.tensors[value]->stride(program[at++]);
      else if (op == 3) value = v.tensors[value]->numel();
      stack[top++] = value;
      continue;
    }
    if (top < 2) return -1;
    int64_t b = stack[--top], a = stack[top - 1], r = 0;
    bool bad = false;
    if (op == 4) bad = __builtin_add_overflow(a, b, &r);
    else if (op == 5) bad = __builtin_sub_overflow(a, b, &r);
    else if (op == 6) bad = __builtin_mul_overflow(a, b, &r);
    else if (op == 9) r = a < b ? a : b;
    else if (op == 10) r = a > b ? a : b;
    else if (b == 0 || (a == INT64_MIN && b == -1)) bad = true;
    else {
      r = a / b;
      bool inexact = a % b != 0, negative = (a < 0) != (b < 0);
      if (op == 7 && inexact && negative) --r;
      if (op == 8 && inexact && !negative) ++r;
    }
    if (bad) return -1;
    stack[top - 1] = r;
  }
  return top == 1 && stack[0] >= 0 ? stack[0] : -1;
}

struct Reader {
  const int64_t* at;
  const int64_t* end;
  bool bad = false;
  int64_t next() { if (at == end) { bad = true; return 0; } return *at++; }
  int64_t count(int64_t most) { int64_t n = next(); if (n < 0 || n > most) { bad = true; return 0; } return n; }
  std::vector<int64_t> list(int64_t most = 4096) { std::vector<int64_t> out(count(most)); for (auto& x : out) x = next(); return out; }
};

/* Strides that follow from sizes. Channels-last orders dimensions N, H, W, C from slow to fast. */
inline void default_strides(int64_t layout, int64_t ndim, const int64_t* sizes, int64_t* strides) {
  int64_t running = 1;
  auto take = [&](int64_t d) { strides[d] = running; running *= sizes[d] > 1 ? sizes[d] : 1; };
  if (layout == CHANNELS_LAST && ndim >= 3) {
    take(1);
    for (int64_t d = ndim - 1; d >= 2; --d) take(d);
    take(0);
    return;
  }
  for (int64_t d = ndim - 1; d >= 0; --d) take(d);
}

inline Entry* decode(const int64_t* data, int64_t size) {
  Reader r{data, data + size};
  auto e = std::make_unique<Entry>();
  for (int64_t w : r.list(MAX_WORDS)) e->words.push_back((uint64_t)w);
  e->tensors.resize(r.count(MAX_TENSORS));
  for (auto& t : e->tensors) {
    t.ndim = r.count(MAX_DIMS);
    t.dtype = r.next(); t.abi_dtype = r.next(); t.device = r.next(); t.index = r.next(); t.layout = r.next();
    t.align = r.next(); t.shares = r.next(); t.has_offset = r.next(); t.offset = r.next();
    t.exact = true;
    for (int64_t d = 0; d < t.ndim; ++d) {
      t.lo[d] = r.next(); t.hi[d] = r.next(); t.multiple[d] = r.next(); t.symbol[d] = r.next(); t.stride[d] = r.next();
      if (t.lo[d] != t.hi[d]) t.exact = false;
      if (t.multiple[d] < 1) r.bad = true;
    }
    if (t.shares >= (int64_t)e->tensors.size() || t.align < 1) r.bad = true;
    e->exact = e->exact && t.exact;
  }
  e->outputs.resize(r.count(MAX_OUTPUTS));
  for (auto& o : e->outputs) {
    o.alias = r.next(); o.ndim = r.count(MAX_DIMS); o.dtype = r.next(); o.abi_dtype = r.next(); o.layout = r.next();
    o.exact = true;
    for (int64_t d = 0; d < o.ndim; ++d) {
      o.size[d] = r.next(); o.factor[d] = r.next(); o.from_tensor[d] = r.next(); o.from_dim[d] = r.next(); o.stride[d] = r.next();
      if (o.from_tensor[d] >= (int64_t)e->tensors.size()) r.bad = true;
      if (o.from_tensor[d] >= 0) o.exact = false;
    }
    if (o.alias < 0) ++e->fresh;
    if (o.alias >= (int64_t)e->tensors.size()) r.bad = true;
  }
  e->mutates = r.list(MAX_TENSORS);
  e->flags = r.next();
  int64_t scalars = r.count(MAX_WORDS);
  e->scalars.resize(scalars); e->ints.resize(scalars); e->doubles.resize(scalars); e->texts.resize(scalars);
  for (int64_t k = 0; k < scalars; ++k) {
    auto& s = e->scalars[k];
    std::memset(&s, 0, sizeof s);
    s.kind = (int32_t)r.next();
    auto values = r.list();
    s.count = (int32_t)values.size();
    if (s.kind == FORGE_INT_LIST) { e->ints[k] = values; s.v.ints = e->ints[k].data(); }
    else if (s.kind == FORGE_DOUBLE_LIST) {
      e->doubles[k].resize(values.size());
      std::memcpy(e->doubles[k].data(), values.data(), values.size() * 8);
      s.v.doubles = e->doubles[k].data();
    } else if (s.kind == FORGE_TEXT) {
      for (int64_t c : values) e->texts[k].push_back((char)c);
      s.v.text = e->texts[k].c_str();
    } else { s.count = s.kind != FORGE_NONE; if (!values.empty()) std::memcpy(&s.v, values.data(), 8); }
  }
  e->workspace = r.list();
  e->workspace_align = r.next(); e->zeroed = r.next();
  e->memsets.resize(r.count(64));
  for (auto& m : e->memsets) { m.offset = r.list(); m.bytes = r.list(); m.value = r.next(); }
  e->prepare_inputs = r.list(MAX_TENSORS);
  e->prepare_bytes = r.list();
  e->launch = (LaunchFn)r.next();
  e->prepare = (PrepareFn)r.next();
  int64_t bit = r.next();
  e->cast_bit = bit >= 0 && bit < 64 ? 1ull << bit : 0;
  if (r.bad || r.at != r.end || !e->launch || !e->cast_bit || e->workspace_align < 1) return nullptr;
  for (int64_t k : e->mutates) if (k < 0 || k >= (int64_t)e->tensors.size()) return nullptr;
  for (int64_t k : e->prepare_inputs) if (k < 0 || k >= (int64_t)e->tensors.size()) return nullptr;
  for (auto& t : e->tensors) e->inputs.push_back({nullptr, t.lo, t.stride, (int32_t)t.ndim, (int32_t)t.abi_dtype});
  return e.release();
}

}  // namespace forge
