// See guarded.h.

#include "tests/support/guarded.h"

#include "tests/support/reference.h"

#include <algorithm>
#include <cmath>

namespace tersor::test {

GuardedValues::GuardedValues(const std::vector<float>& values, Dtype dtype, std::size_t shift)
    : GuardedValues(values.size(), dtype, shift) {
  for (std::size_t i = 0; i < count_; ++i)
    if (dtype == Dtype::kF32)
      span().as<float>()[i] = values[i];
    else
      reinterpret_cast<std::uint16_t*>(span().pointer())[i] = narrow(values[i], dtype);
}

std::vector<float> GuardedValues::floats() const {
  std::vector<float> values(count_);
  for (std::size_t i = 0; i < count_; ++i)
    values[i] = dtype_ == Dtype::kF32
                    ? span().as<float>()[i]
                    : widen(reinterpret_cast<const std::uint16_t*>(span().pointer())[i], dtype_);
  return values;
}

bool same_bytes(ConstByteSpan a, ConstByteSpan b) { return std::ranges::equal(a, b); }

bool same_values(const std::vector<float>& a, const std::vector<float>& b) {
  const auto same = [](float x, float y) {
    return bits(x) == bits(y) || (std::isnan(x) && std::isnan(y));
  };
  return std::ranges::equal(a, b, same);
}

}  // namespace tersor::test
