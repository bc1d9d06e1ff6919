/// entropy: the values of `none` with shorter exponents. A value's exponent is replaced by the
/// exponent's rank among the exponents of the segment, and the rank is a Rice code (Rice 1979) with
/// the quotients of a block in a plane of their own. Sign and mantissa are stored unchanged. The
/// exponents of weights, gradients and activations have about 2.6 bits of entropy instead of 8.
///
/// Payload  table   u8 n, then the first n exponents in the order of their ranks
///          sizes   u16 for each block of 4,096 values: its 32-bit words, or kEntropyPlain
///          starts  u64 for blocks 64, 128, ...: the block's first word in `blocks`
///          blocks  the words of all blocks
///          each padded to 16 bytes. The length of a payload depends on the values.
/// Error    without feedback none; with feedback one rounding of p to the gradient's type.
///
/// Without feedback, decoding a single frame with factor 1 returns every bit, also of NaNs and
/// zeros. Sums, means and feedback compute like `none`. Blocks that coding would not shorten are
/// stored unchanged, so a payload is never much longer than the payload of `none`. Only on hosts.
#pragma once

#include <tersor/align.h>
#include <tersor/dtype.h>
#include <tersor/wire.h>

#include <cstddef>
#include <cstdint>

namespace tersor {

/// The codec's number in the wire format.
inline constexpr std::uint16_t kEntropyCodecId = 11;
/// Values per block.
inline constexpr std::size_t kEntropyBlock = 4096;
/// The size of a block that is stored unchanged. The size 0 means that all values are +0.
inline constexpr std::uint16_t kEntropyPlain = 0x8000;

/// The sizes of the sections of a segment's payload, in bytes.
struct EntropyLayout {
  std::size_t count;  ///< values of the segment
  Dtype dtype;        ///< type of the values

  static constexpr std::size_t kMostTable = 256;    ///< capacity of the table
  static constexpr std::size_t kBlocksAStart = 64;  ///< blocks between two starts

  /// Returns the number of blocks.
  constexpr std::size_t blocks() const { return ceil_div(count, kEntropyBlock); }
  /// Returns the number of starts. The first block begins at word 0.
  constexpr std::size_t starts() const { return count == 0 ? 0 : (blocks() - 1) / kBlocksAStart; }
  /// Returns the size of a table with n exponents.
  constexpr std::size_t table_bytes(std::size_t listed) const {
    return count == 0 ? 0 : align_up(1 + listed, kSectionAlignment);
  }
  /// Returns the size of the sizes.
  constexpr std::size_t sizes_bytes() const {
    return align_up(blocks() * sizeof(std::uint16_t), kSectionAlignment);
  }
  /// Returns the size of the starts.
  constexpr std::size_t starts_bytes() const {
    return align_up(starts() * sizeof(std::uint64_t), kSectionAlignment);
  }
  /// Returns the 32-bit words of the unchanged values of block `block`.
  constexpr std::size_t plain_words(std::size_t block) const {
    const std::size_t rest = count - block * kEntropyBlock;
    return ceil_div((rest < kEntropyBlock ? rest : kEntropyBlock) * dtype_bytes(dtype), 4);
  }
  /// Returns the offset of the blocks for the longest table.
  constexpr std::size_t most_offset() const {
    return count == 0 ? 0 : kMostTable + sizes_bytes() + starts_bytes();
  }
  /// Returns the capacity of the payload.
  constexpr std::size_t most_bytes() const {
    return most_offset() + align_up(count * dtype_bytes(dtype), kSectionAlignment);
  }
};
static_assert(EntropyLayout{4097, Dtype::kBf16}.most_bytes() == 256 + 16 + 0 + 8208);
static_assert(EntropyLayout{65 * 4096, Dtype::kF32}.most_offset() == 256 + 144 + 16);
static_assert(EntropyLayout{4097, Dtype::kBf16}.plain_words(1) == 1);
static_assert(EntropyLayout{0, Dtype::kF16}.most_bytes() == 0);

}  // namespace tersor
