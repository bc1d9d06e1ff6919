// entropy on the CPU: tables of exponents, and blocks of up to 4,096 values. Functions run on one
// thread. docs/reference/wire-format.md describes the bytes.
#pragma once

#include <tersor/codecs/entropy.h>
#include <tersor/dtype.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Returns the number of exponents of a gradient's dtype: 256, or 32 for f16.
constexpr std::size_t exponents_of(Dtype dtype) { return dtype == Dtype::kF16 ? 32 : 256; }

/// The ranks of all exponents.
struct EntropyTable {
  std::uint8_t rank[256] = {};
  std::uint8_t exponent[256] = {};
  std::uint8_t window = 0;  // the 64 exponents from here on have the smallest ranks

  /// The first `listed` exponents must be in `exponent`. The other exponents follow in ascending
  /// order. Returns false if an exponent is too large or occurs twice.
  bool complete(std::size_t listed, Dtype dtype) {
    bool seen[256] = {};
    const std::size_t all = exponents_of(dtype);
    std::size_t next = 0;
    for (; next < listed; ++next) {
      if (exponent[next] >= all || seen[exponent[next]]) return false;
      seen[exponent[next]] = true;
    }
    for (std::size_t i = 0; i < all; ++i)
      if (!seen[i]) exponent[next++] = static_cast<std::uint8_t>(i);
    for (std::size_t i = 0; i < all; ++i) rank[exponent[i]] = static_cast<std::uint8_t>(i);
    std::size_t end = 64;
    for (std::size_t i = 0; i < listed && i < 16; ++i) end = std::max(end, exponent[i] + 1ul);
    window = static_cast<std::uint8_t>(end - 64);
    return true;
  }
};

/// Adds the exponents of `count` values to `counts`.
void entropy_count(const void* values, std::size_t count, Dtype dtype, std::uint32_t counts[256]);

/// Encodes a block. `words` has room for the unchanged values, and may be the memory of `values`.
/// Returns the block's entry in `sizes`.
std::uint16_t entropy_encode(const void* values, std::size_t count, Dtype dtype,
                             const EntropyTable& table, std::byte* words);

/// Decodes a coded block of `size` words, fewer than the unchanged values have. Returns null, or a
/// sentence about the fault. If `values` is null, only checks the block. Reads only the block's
/// words, and writes only after all checks.
const char* entropy_decode(const std::byte* words, std::size_t size, std::size_t count, Dtype dtype,
                           const EntropyTable& table, void* values);

}  // namespace tersor::kernels
