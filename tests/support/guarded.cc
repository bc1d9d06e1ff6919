// See guarded.h.

#include "tests/support/guarded.h"

#include "tests/support/reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>
#include <string>

namespace tersor::test {

GuardedBytes::GuardedBytes(std::size_t bytes, std::size_t shift, Memory memory)
    : bytes_(bytes), shift_(shift), memory_(memory) {
  block_ = memory == Memory::kHost ? new std::byte[block_bytes()]
                                   : test_device()->allocate(block_bytes());
  std::fill_n(block_, block_bytes(), kMark);
  std::memset(begin(), 0x5a, bytes);
}

GuardedBytes::~GuardedBytes() {
  if (block_ == nullptr) return;
  if (memory_ == Memory::kHost) {
    delete[] block_;
    return;
  }
  test_device()->release(block_);
}

bool GuardedBytes::intact() const {
  const std::byte* const first = begin();
  for (const std::byte* byte = block_; byte < block_ + block_bytes(); ++byte)
    if ((byte < first || byte >= first + bytes_) && *byte != kMark) return false;
  return true;
}

GuardedValues::GuardedValues(const std::vector<float>& values, Dtype dtype, std::size_t shift,
                             Memory memory)
    : GuardedValues(values.size(), dtype, shift, memory) {
  for (std::size_t i = 0; i < count_; ++i)
    if (dtype == Dtype::kF32)
      reinterpret_cast<float*>(span().pointer())[i] = values[i];
    else
      reinterpret_cast<std::uint16_t*>(span().pointer())[i] = narrow(values[i], dtype);
}

std::vector<float> GuardedValues::floats() const {
  std::vector<float> values(count_);
  for (std::size_t i = 0; i < count_; ++i)
    values[i] = dtype_ == Dtype::kF32
                    ? reinterpret_cast<const float*>(span().pointer())[i]
                    : widen(reinterpret_cast<const std::uint16_t*>(span().pointer())[i], dtype_);
  return values;
}

bool is_untouched_or_nan(const std::vector<float>& values, const std::vector<float>& before) {
  const auto is_nan = [](float value) { return std::isnan(value); };
  return values == before || std::ranges::all_of(values, is_nan) ||
         (test_device() != nullptr && std::ranges::any_of(values, is_nan));
}

namespace {

/// Succeeds if the ranges are equal. Otherwise the message describes the first difference.
template <class Range, class Same, class Text>
::testing::AssertionResult same_range(const Range& a, const Range& b, Same same, Text text) {
  if (a.size() != b.size())
    return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " of them";
  const auto [one, other] = std::ranges::mismatch(a, b, same);
  if (one == a.end()) return ::testing::AssertionSuccess();
  std::size_t different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) different += !same(a[i], b[i]);
  return ::testing::AssertionFailure()
         << different << " of " << a.size() << " differ, first " << one - a.begin() << ": "
         << text(*one) << " and " << text(*other);
}

std::string with_bits(float value) {
  std::ostringstream text;
  text << value << " (0x" << std::hex << bits(value) << ")";
  return text.str();
}

}  // namespace

::testing::AssertionResult same_bytes(ConstByteSpan a, ConstByteSpan b) {
  return same_range(a, b, std::equal_to{}, [](std::byte byte) { return int(byte); });
}

::testing::AssertionResult same_values(const std::vector<float>& a, const std::vector<float>& b) {
  const auto same = [](float x, float y) {
    return bits(x) == bits(y) || (std::isnan(x) && std::isnan(y));
  };
  return same_range(a, b, same, with_bits);
}

}  // namespace tersor::test
