/* One operator call as the guards see it: tensors by pointer, everything else as 64-bit words.
 *
 * The words are canonical: the typed hooks, the generic boxed hook and guards.py (which compiles a variant key)
 * produce the same sequence for the same call. A tag starts every argument, so that 1, 1.0 and True differ and no
 * two different argument lists share a sequence. An argument this file can't describe makes the view invalid, and
 * an invalid view matches nothing.
 */
#pragma once
#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/OptionalArrayRef.h>

#include <cstring>
#include <optional>

namespace forge {

constexpr int MAX_TENSORS = 32, MAX_WORDS = 96, MAX_DIMS = 8, MAX_OUTPUTS = 8;

enum Tag : uint64_t { T_NONE = 0, T_TENSOR, T_NUMBER = 3, T_INT, T_DOUBLE, T_BOOL, T_INTS, T_DOUBLES, T_BOOLS, T_TEXT, T_DEVICE, T_TENSORS };

struct View {
  const at::TensorBase* tensors[MAX_TENSORS];
  uint64_t words[MAX_WORDS];
  int n_tensors = 0, n_words = 0;
  bool valid = true;

  void word(uint64_t w) {
    if (n_words < MAX_WORDS) words[n_words++] = w; else valid = false;
  }
  void bits(double x) { uint64_t w; std::memcpy(&w, &x, 8); word(w); }
  void integer(int64_t x) { word(T_INT); word((uint64_t)x); }
  void real(double x) { word(T_DOUBLE); bits(x); }
  void boolean(bool x) { word(T_BOOL); word(x); }
  void text(const char* data, size_t size) {
    word(T_TEXT); word(size);
    for (size_t at = 0; at < size; at += 8) {
      uint64_t w = 0;
      std::memcpy(&w, data + at, size - at < 8 ? size - at : 8);
      word(w);
    }
  }
  void tensor(const at::TensorBase& x) {
    if (!x.defined()) { word(T_NONE); return; }
    auto* impl = x.unsafeGetTensorImpl();
    if (C10_UNLIKELY(impl->is_wrapped_number())) { number(x); return; }
    word(T_TENSOR);
    if (n_tensors < MAX_TENSORS) tensors[n_tensors++] = &x; else valid = false;
  }
  // `x + 1` reaches the operator as a 0-dim tensor whose VALUE is the argument.
  void number(const at::TensorBase& x) {
    word(T_NUMBER); word((uint64_t)x.scalar_type());
    uint64_t w = 0;
    if (x.is_cpu() && x.itemsize() <= 8) std::memcpy(&w, x.const_data_ptr(), x.itemsize()); else valid = false;
    word(w);
  }
};

inline void put(View& v, const at::Tensor& x) { v.tensor(x); }
inline void put(View& v, int64_t x) { v.integer(x); }
inline void put(View& v, bool x) { v.boolean(x); }
inline void put(View& v, double x) { v.real(x); }
inline void put(View& v, at::ScalarType x) { v.integer((int64_t)x); }
inline void put(View& v, at::Layout x) { v.integer((int64_t)x); }
inline void put(View& v, at::MemoryFormat x) { v.integer((int64_t)x); }
inline void put(View& v, at::Device x) { v.word(T_DEVICE); v.word((uint64_t)x.type()); v.word((uint64_t)(int64_t)x.index()); }
inline void put(View& v, c10::string_view x) { v.text(x.data(), x.size()); }
inline void put(View& v, const c10::SymInt& x) { if (x.is_heap_allocated()) v.valid = false; else v.integer(x.as_int_unchecked()); }
inline void put(View& v, const at::Scalar& x) {
  if (x.isSymbolic() || x.isComplex()) v.valid = false;
  else if (x.isBoolean()) v.boolean(x.toBool());
  else if (x.isIntegral(false)) v.integer(x.toLong());
  else v.real(x.toDouble());
}
inline void put(View& v, at::IntArrayRef list) {
  v.word(T_INTS); v.word(list.size());
  for (int64_t x : list) v.word((uint64_t)x);
}
inline void put(View& v, c10::SymIntArrayRef list) {
  v.word(T_INTS); v.word(list.size());
  for (const auto& x : list) { if (x.is_heap_allocated()) v.valid = false; else v.word((uint64_t)x.as_int_unchecked()); }
}
inline void put(View& v, at::ArrayRef<double> list) {
  v.word(T_DOUBLES); v.word(list.size());
  for (double x : list) v.bits(x);
}
inline void put(View& v, at::TensorList list) {
  v.word(T_TENSORS); v.word(list.size());
  for (const auto& x : list) v.tensor(x);
}
inline void put(View& v, const at::ITensorListRef& list) {
  v.word(T_TENSORS); v.word(list.size());
  for (const auto& x : list) v.tensor(x);
}
inline void put(View& v, const c10::List<std::optional<at::Tensor>>&) { v.valid = false; }
template <class T> inline void put(View& v, const std::optional<T>& x) { if (x.has_value()) put(v, *x); else v.word(T_NONE); }
template <class T> inline void put(View& v, const c10::OptionalArrayRef<T>& x) { if (x.has_value()) put(v, *x); else v.word(T_NONE); }
template <class T> inline void put(View& v, const T&) { v.valid = false; }  // never matches

/* The same for a boxed argument. dtype, layout and memory format travel as whole numbers there, as above. */
inline void put_boxed(View& v, const c10::IValue& x) {
  if (x.isTensor()) v.tensor(x.toTensor());
  else if (x.isNone()) v.word(T_NONE);
  else if (x.isInt()) v.integer(x.toInt());
  else if (x.isDouble()) v.real(x.toDouble());
  else if (x.isBool()) v.boolean(x.toBool());
  else if (x.isString()) v.text(x.toStringRef().data(), x.toStringRef().size());
  else if (x.isDevice()) put(v, x.toDevice());
  else if (x.isIntList()) {
    auto list = x.toIntList();
    v.word(T_INTS); v.word(list.size());
    for (int64_t i : list) v.word((uint64_t)i);
  } else if (x.isDoubleList()) {
    auto list = x.toDoubleList();
    v.word(T_DOUBLES); v.word(list.size());
    for (double d : list) v.bits(d);
  } else if (x.isBoolList()) {
    auto list = x.toBoolList();
    v.word(T_BOOLS); v.word(list.size());
    for (bool b : list) v.word(b);
  } else if (x.isList()) {
    auto list = x.toListRef();
    v.word(T_TENSORS); v.word(list.size());
    for (const auto& item : list) {
      if (item.isTensor()) v.tensor(item.toTensor()); else if (item.isNone()) v.word(T_NONE); else v.valid = false;
    }
  } else v.valid = false;
}

}  // namespace forge
