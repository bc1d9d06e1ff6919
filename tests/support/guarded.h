// Memory for tests: bytes and values between guards, at any distance from an aligned address, so
// that a write outside of a span is seen. On a device, where the program tests one.
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

/// Bytes that begin `shift` behind a 64-byte boundary, with 64 guarded bytes before and after; 0x5a
/// at first, so that what was never written is seen.
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

  /// False where something was written outside of the span.
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

/// Values of one dtype between guards, `shift` values behind a 64-byte boundary.
class GuardedValues {
 public:
  GuardedValues(std::size_t count, Dtype dtype, std::size_t shift = 0,
                Memory memory = default_memory())
      : count_(count),
        dtype_(dtype),
        bytes_(count * dtype_bytes(dtype), shift * dtype_bytes(dtype), memory) {}
  /// `values`, rounded to the dtype.
  GuardedValues(const std::vector<float>& values, Dtype dtype, std::size_t shift = 0,
                Memory memory = default_memory());

  ValueSpan span() { return {bytes_.span().data(), count_, dtype_, bytes_.memory()}; }
  ConstValueSpan span() const { return {bytes_.span().data(), count_, dtype_, bytes_.memory()}; }
  ConstByteSpan bytes() const { return bytes_.span(); }
  bool intact() const { return bytes_.intact(); }

  /// All values, widened.
  std::vector<float> floats() const;

 private:
  std::size_t count_;
  Dtype dtype_;
  GuardedBytes bytes_;
};

/// Success where both hold the same bytes; else it says where they differ.
::testing::AssertionResult same_bytes(ConstByteSpan a, ConstByteSpan b);

/// What decoding a damaged frame leaves of an output: on a device, what a kernel found wrong makes
/// values NaN; what the host found changes nothing.
bool is_untouched_or_nan(const std::vector<float>& values, const std::vector<float>& before);

/// Success where both hold the same values bit for bit, all NaNs being equal; else it says where.
::testing::AssertionResult same_values(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace tersor::test
