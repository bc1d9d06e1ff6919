// How a function of one thread's values becomes one of a warp: loops over 32 lanes, which the
// compiler turns into vector instructions.
#pragma once

#include "tests/ptx_device/machine/machine.h"

#include <cstdint>

namespace ptx {

/// Writes the values of those lanes.
template <class R>
inline void put(R* to, const R* values, std::uint32_t lanes) {
  if (lanes == kAll) {
    for (unsigned i = 0; i < kLanes; ++i) to[i] = values[i];
  } else {
    for (unsigned i = 0; i < kLanes; ++i) to[i] = contains(lanes, i) ? values[i] : to[i];
  }
}

/// Writes the same value for each of those lanes.
template <class R>
inline void put_same(R* to, R value, std::uint32_t lanes) {
  for (unsigned i = 0; i < kLanes; ++i) to[i] = contains(lanes, i) ? value : to[i];
}

/// A predicate is a bit a lane.
inline void put_predicate(Warp& warp, std::uint32_t offset, std::uint32_t bits,
                          std::uint32_t lanes) {
  auto* to = at<std::uint32_t>(warp, offset);
  *to = (*to & ~lanes) | (bits & lanes);
}
inline std::uint32_t predicate_at(Warp& warp, std::uint32_t offset) {
  return *at<std::uint32_t>(warp, offset);
}

template <class R, class A, class F>
void unary(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const A* a = at<A>(warp, ins.a);
  R values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) values[i] = F::f(a[i]);
  put(at<R>(warp, ins.d), values, lanes);
}

template <class R, class A, class B, class F>
void binary(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const A* a = at<A>(warp, ins.a);
  const B* b = at<B>(warp, ins.b);
  R values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) values[i] = F::f(a[i], b[i]);
  put(at<R>(warp, ins.d), values, lanes);
}

template <class R, class A, class B, class C, class F>
void ternary(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const A* a = at<A>(warp, ins.a);
  const B* b = at<B>(warp, ins.b);
  const C* c = at<C>(warp, ins.c);
  R values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) values[i] = F::f(a[i], b[i], c[i]);
  put(at<R>(warp, ins.d), values, lanes);
}

/// All values of one type.
template <class T, class F>
constexpr WarpFunction of_one = unary<T, T, F>;
template <class T, class F>
constexpr WarpFunction of_two = binary<T, T, T, F>;
template <class T, class F>
constexpr WarpFunction of_three = ternary<T, T, T, T, F>;

}  // namespace ptx
