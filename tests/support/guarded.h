// Memory for tests: bytes and values between guards, at any distance from an aligned address, so
// that a write outside of a span is seen.
#pragma once

#include <tersor/dtype.h>
#include <tersor/span.h>

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

namespace tersor::test {

/// Bytes that begin `shift` behind a 64-byte boundary, with 64 guarded bytes before and after; 0x5a
/// at first, so that what was never written is seen.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t bytes, std::size_t shift = 0)
      : bytes_(bytes), shift_(shift), memory_(bytes + shift + 4 * kGuard, kMark) {
    std::memset(begin(), 0x5a, bytes);
  }
  GuardedBytes(const GuardedBytes& other) : GuardedBytes(other.bytes_, other.shift_) {
    std::memcpy(begin(), other.begin(), bytes_);
  }
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  ByteSpan span() { return {begin(), bytes_}; }
  ConstByteSpan span() const { return {begin(), bytes_}; }

  /// False where something was written outside of the span.
  bool intact() const {
    const std::byte* const first = begin();
    for (const std::byte* byte = memory_.data(); byte < memory_.data() + memory_.size(); ++byte)
      if ((byte < first || byte >= first + bytes_) && *byte != kMark) return false;
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kMark{0xa5};

  std::byte* begin() { return const_cast<std::byte*>(std::as_const(*this).begin()); }
  const std::byte* begin() const {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    return memory_.data() + (2 * kGuard - address % kGuard) + shift_;
  }

  std::size_t bytes_;
  std::size_t shift_;
  std::vector<std::byte> memory_;
};

/// Values of one dtype between guards, `shift` values behind a 64-byte boundary.
class GuardedValues {
 public:
  GuardedValues(std::size_t count, Dtype dtype, std::size_t shift = 0)
      : count_(count),
        dtype_(dtype),
        bytes_(count * dtype_bytes(dtype), shift * dtype_bytes(dtype)) {}
  /// `values`, rounded to the dtype.
  GuardedValues(const std::vector<float>& values, Dtype dtype, std::size_t shift = 0);

  ValueSpan span() { return {bytes_.span().data(), count_, dtype_}; }
  ConstValueSpan span() const { return {bytes_.span().data(), count_, dtype_}; }
  ConstByteSpan bytes() const { return bytes_.span(); }
  bool intact() const { return bytes_.intact(); }

  /// All values, widened.
  std::vector<float> floats() const;

 private:
  std::size_t count_;
  Dtype dtype_;
  GuardedBytes bytes_;
};

/// True where both hold the same bytes.
bool same_bytes(ConstByteSpan a, ConstByteSpan b);

/// True where both hold the same values bit for bit, all NaNs being equal.
bool same_values(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace tersor::test
