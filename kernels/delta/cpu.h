// Blocks of weight deltas on the CPU: which values changed, and by how much. Functions run on one
// thread. docs/reference/delta-format.md describes the bytes.
#pragma once

#include <tersor/delta.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tersor::kernels {

/// Words of a block for the largest values, and bytes after the words that a reader may touch.
constexpr std::size_t kDeltaMaxWords = kDeltaBlock * 2;
constexpr std::size_t kDeltaClasses = 4;

/// The classes of a tensor's values: `count` classes of exponents, the second begins at `first`.
struct DeltaClasses {
  unsigned count = 1;
  unsigned first = 0;
};

/// Memory for one thread.
struct DeltaScratch {
  std::uint16_t places[kDeltaBlock + 4];            // of the changed values, in class order
  std::uint16_t gaps[kDeltaClasses][kDeltaBlock];   // between changed values of a class
  std::uint16_t big_gaps[kDeltaBlock + 1];          // between steps with magnitudes above 1
  std::uint32_t quotients[3 * kDeltaBlock];         // of all lists of a block
  std::uint64_t magnitudes[kDeltaBlock + 1];        // of big steps, minus 2
  std::uint64_t steps[kDeltaClasses][kDeltaBlock];  // of any width
  std::uint64_t old_values[kDeltaBlock], new_values[kDeltaBlock];  // changed values, of any width
  std::uint64_t masks[kDeltaClasses][kDeltaBlock / 64];
  std::uint16_t before[kDeltaClasses][kDeltaBlock / 64 + 1];  // values of the class before a word
  std::uint16_t first[kDeltaClasses];                         // of the class in `word`
  std::uint8_t word[kDeltaBlock + 64];                        // of each value, in class order
  alignas(8) std::byte words[4 * kDeltaMaxWords + 64];
};

/// A block of a tensor: `count` values from value `first` on. `first` is a multiple of kDeltaBlock.
struct DeltaBlock {
  DeltaDtype dtype;
  DeltaClasses classes;
  std::uint64_t first;
  std::size_t count;
  const std::byte* base;
};

/// An encoded block: the entry in `sizes`, and the number of changed values. If the entry is
/// neither 0 nor kDeltaPlain, scratch.words holds the words.
struct DeltaEncodedBlock {
  std::uint16_t size;
  std::uint32_t changed;
};
DeltaEncodedBlock delta_encode_block(const DeltaBlock& block, const std::byte* now,
                                     DeltaScratch& scratch);

/// The changes of a coded block.
struct DeltaChanges {
  const char* fault = nullptr;  // a sentence, or null
  std::uint32_t changed = 0;
  std::uint64_t sum = 0;  // the change of the tensor's checksum
};

/// Decodes a block of `size` words: scratch.places, scratch.old_values and scratch.new_values
/// describe the changed values.
DeltaChanges delta_decode_block(const DeltaBlock& block, const std::byte* words, std::size_t size,
                                DeltaScratch& scratch);

/// Writes `count` values of `width` bytes at places of a block.
void delta_write(unsigned width, std::size_t count, const std::uint16_t* places,
                 const std::byte* values, std::byte* block);
/// Exchanges `count` values of `width` bytes with the values at places of a block.
void delta_exchange(unsigned width, std::size_t count, const std::uint16_t* places,
                    std::byte* values, std::byte* block);

/// Counts values and changed values of a block by exponent. Only for floats.
void delta_count(const DeltaBlock& block, const std::byte* now, std::uint64_t* values,
                 std::uint64_t* changed);

/// Returns the checksum of bytes, padded with zeros to whole words. `first` is the offset in the
/// tensor, a multiple of 4.
std::uint64_t delta_checksum(const std::byte* bytes, std::size_t count, std::uint64_t first);

}  // namespace tersor::kernels
