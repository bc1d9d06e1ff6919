// The frame of a weight delta: header, directory, and the sections of each tensor.
// docs/reference/delta-format.md describes the bytes.
#pragma once

#include "kernels/delta/cpu.h"
#include "kernels/scalar/checksum.h"

#include <tersor/align.h>
#include <tersor/delta.h>
#include <tersor/wire.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace tersor::encoding {

/// Blocks between two entries of `starts`.
inline constexpr std::size_t kDeltaBlocksPerStart = 64;

/// The header of a delta.
struct DeltaHeader {
  std::uint32_t magic = kDeltaMagic;
  std::uint16_t version = kDeltaVersion;
  std::uint16_t reserved = 0;
  std::uint64_t bytes = 0;      ///< of the delta, header included
  std::uint64_t directory = 0;  ///< bytes of the directory, padding included
  std::uint64_t tensors = 0;
  std::uint64_t unused[3] = {};
  std::uint64_t checksum = 0;  ///< of the whole delta, this field being 0
};
static_assert(sizeof(DeltaHeader) == 64 && offsetof(DeltaHeader, checksum) == 56);

/// The entry of a tensor in the directory, before the dimensions (u64) and the name.
struct DeltaDirectoryEntry {
  std::uint16_t name_bytes = 0;
  std::uint8_t dtype = 0;
  std::uint8_t dimensions = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(DeltaDirectoryEntry) == 8);

/// The head of a tensor's sections.
struct DeltaHead {
  std::uint8_t classes = 1;
  std::uint8_t reserved = 0;
  std::uint16_t first_class = 0;  ///< the exponent at which the second class begins
  std::uint32_t blocks = 0;
  std::uint64_t changed = 0;  ///< values
  std::uint64_t base_checksum = 0;
  std::uint64_t result_checksum = 0;
};
static_assert(sizeof(DeltaHead) == 32);

/// Returns the number of values, or nothing if the bytes do not fit into 62 bits.
std::optional<std::uint64_t> delta_count_of(const DeltaTensor& tensor);

/// Returns the 32-bit words of a block with this entry in `sizes`, whose values have `plain` bytes.
constexpr std::size_t delta_words(std::uint16_t size, std::size_t plain) {
  return size == kDeltaPlain ? ceil_div(plain, 4) : size;
}

/// A tensor in a delta that was read.
struct DeltaView {
  DeltaTensor tensor;
  std::uint64_t count = 0, bytes = 0;  // values; bytes of the sections
  DeltaHead head;
  const std::byte* sizes = nullptr;
  const std::byte* starts = nullptr;
  const std::byte* blocks = nullptr;

  std::uint16_t size(std::size_t block) const {
    std::uint16_t size;
    std::memcpy(&size, sizes + block * sizeof size, sizeof size);
    return size;
  }
  std::size_t plain_bytes(std::size_t block) const {
    const std::uint64_t rest = count - block * kDeltaBlock;
    return (rest < kDeltaBlock ? rest : kDeltaBlock) * delta_dtype_bytes(tensor.dtype);
  }
  std::size_t words(std::size_t block) const {
    return delta_words(size(block), plain_bytes(block));
  }
  std::uint64_t start(std::size_t number) const {
    std::uint64_t start;
    std::memcpy(&start, starts + number * sizeof start, sizeof start);
    return start;
  }
  /// Returns the first word of a block.
  std::uint64_t first_word(std::size_t block) const {
    std::size_t next = block / kDeltaBlocksPerStart * kDeltaBlocksPerStart;
    std::uint64_t word = next == 0 ? 0 : start(next / kDeltaBlocksPerStart - 1);
    for (; next < block; ++next) word += words(next);
    return word;
  }
};

/// Returns the changes of a block that is stored unchanged.
kernels::DeltaChanges plain_changes(const kernels::DeltaBlock& block, const std::byte* now,
                                    std::size_t width);

inline void append(std::vector<std::byte>& to, const void* bytes, std::size_t count) {
  const auto* first = static_cast<const std::byte*>(bytes);
  to.insert(to.end(), first, first + count);
}

/// Returns a header and the directory. Throws InvalidArgumentError for equal or too long names and
/// too many dimensions.
std::vector<std::byte> delta_directory(std::span<const DeltaTensor> tensors);

/// Completes the header.
void seal_delta(std::span<std::byte> delta);

/// Reads all sections except the blocks. Throws WireError. No count in a delta makes this function
/// allocate more than a small multiple of the delta's bytes.
std::vector<DeltaView> read_delta(ConstByteSpan delta);

}  // namespace tersor::encoding
