// Turns a function on a thread's values into a function on a warp. The loops over 32 lanes become
// vector instructions.
#pragma once

#include "tests/ptx_device/machine/machine.h"

#include <cstdint>
#include <tuple>
#include <utility>

namespace ptx {

/// Writes the values of the given lanes.
template <class R>
inline void put(R* to, const R* values, std::uint32_t lanes) {
  if (lanes == kAll) {
    for (unsigned i = 0; i < kLanes; ++i) to[i] = values[i];
  } else {
    for (unsigned i = 0; i < kLanes; ++i) to[i] = contains(lanes, i) ? values[i] : to[i];
  }
}

/// Writes the same value to the given lanes.
template <class R>
inline void put_same(R* to, R value, std::uint32_t lanes) {
  for (unsigned i = 0; i < kLanes; ++i) to[i] = contains(lanes, i) ? value : to[i];
}

/// A predicate has a bit per lane.
inline void put_predicate(Warp& warp, std::uint32_t offset, std::uint32_t bits,
                          std::uint32_t lanes) {
  auto* to = at<std::uint32_t>(warp, offset);
  *to = (*to & ~lanes) | (bits & lanes);
}
inline std::uint32_t predicate_at(Warp& warp, std::uint32_t offset) {
  return *at<std::uint32_t>(warp, offset);
}

/// Applies F to each lane's values at a, b and c. The result has type R.
template <auto F, class R, class... Inputs>
void each_lane(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const std::uint32_t places[] = {ins.a, ins.b, ins.c};
  R values[kLanes];
  const auto compute = [&]<std::size_t... kInput>(std::index_sequence<kInput...>) {
    const std::tuple<const Inputs*...> inputs(at<Inputs>(warp, places[kInput])...);
    for (unsigned i = 0; i < kLanes; ++i) values[i] = F(std::get<kInput>(inputs)[i]...);
  };
  compute(std::index_sequence_for<Inputs...>());
  put(at<R>(warp, ins.d), values, lanes);
}

/// Like each_lane, with a single type for all values.
template <auto F, class T, std::size_t kInputs>
constexpr WarpFunction same_type() {
  if constexpr (kInputs == 1)
    return each_lane<F, T, T>;
  else if constexpr (kInputs == 2)
    return each_lane<F, T, T, T>;
  else
    return each_lane<F, T, T, T, T>;
}

}  // namespace ptx
