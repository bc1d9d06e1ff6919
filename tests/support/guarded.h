// Guarded memory for tests: bytes and values between guard bytes, at any distance from an aligned
// address. The guards reveal writes outside of a span. Device memory is used if the program tests a
// device.
#pragma once

#include <gtest/gtest.h>
#include <tersor/dtype.h>
#include <tersor/span.h>

#include "tests/support/test_device.h"

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

namespace tersor::test {

/// Bytes starting `shift` bytes after a 64-byte boundary, with 64 guard bytes before and after.
/// Every byte starts as 0x5a to reveal unwritten bytes.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t bytes, std::size_t shift = 0, Memory memory = default_memory());
  GuardedBytes(const GuardedBytes& other)
      : GuardedBytes(other.bytes_, other.shift_, other.memory_) {
    std::memcpy(begin(), other.begin(), bytes_);
  }
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  GuardedBytes(GuardedBytes&& other) noexcept
      : bytes_(other.bytes_),
        shift_(other.shift_),
        memory_(other.memory_),
        block_(std::exchange(other.block_, nullptr)) {}
  ~GuardedBytes();

  Memory memory() const { return memory_; }

  ByteSpan span() { return {begin(), bytes_}; }
  ConstByteSpan span() const { return {begin(), bytes_}; }

  /// False if a guard byte was overwritten.
  bool intact() const;

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kMark{0xa5};

  std::size_t block_bytes() const { return bytes_ + shift_ + 4 * kGuard; }
  std::byte* begin() { return const_cast<std::byte*>(std::as_const(*this).begin()); }
  const std::byte* begin() const {
    const auto address = reinterpret_cast<std::uintptr_t>(block_);
    return block_ + (2 * kGuard - address % kGuard) + shift_;
  }

  std::size_t bytes_;
  std::size_t shift_;
  Memory memory_;
  std::byte* block_;
};

/// Values of a single dtype between guards, starting `shift` values after a 64-byte boundary.
class GuardedValues {
 public:
  GuardedValues(std::size_t count, Dtype dtype, std::size_t shift = 0,
                Memory memory = default_memory())
      : count_(count),
        dtype_(dtype),
        bytes_(count * dtype_bytes(dtype), shift * dtype_bytes(dtype), memory) {}
  /// Copies `values`, rounded to the dtype.
  GuardedValues(const std::vector<float>& values, Dtype dtype, std::size_t shift = 0,
                Memory memory = default_memory());

  ValueSpan span() { return {bytes_.span().data(), count_, dtype_, bytes_.memory()}; }
  ConstValueSpan span() const { return {bytes_.span().data(), count_, dtype_, bytes_.memory()}; }
  ConstByteSpan bytes() const { return bytes_.span(); }
  bool intact() const { return bytes_.intact(); }

  /// All values as f32.
  std::vector<float> floats() const;

 private:
  std::size_t count_;
  Dtype dtype_;
  GuardedBytes bytes_;
};

/// Succeeds if both spans hold the same bytes. Otherwise the message names the first difference.
::testing::AssertionResult same_bytes(ConstByteSpan a, ConstByteSpan b);

/// Checks an output after decoding a damaged frame. If a device kernel detected the damage, the
/// values are NaN. If the host detected the damage, the output is unchanged.
bool is_untouched_or_nan(const std::vector<float>& values, const std::vector<float>& before);

/// Succeeds if both lists hold bitwise equal values; all NaNs count as equal. Otherwise the message
/// names the first difference.
::testing::AssertionResult same_values(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace tersor::test
