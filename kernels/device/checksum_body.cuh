// The checksums of frames on a device: a warp 2 KiB at a time, added up by two atomics a warp and
// frame. Reads every byte of the payloads once.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/checksum.cuh"

#include <tersor/wire.h>

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

template <unsigned kMost>
struct ChecksumKernel {
  static constexpr unsigned kThreads = 256;
  static constexpr unsigned kResident = 4;
  static constexpr bool kScans = false;
  static constexpr unsigned kLoads = 4;
  static constexpr unsigned kPieceBytes = 32 * kLoads * sizeof(Words128);  // of a warp
  struct Shared {};

  std::uint32_t frames = 0;
  const std::byte* frame[kMost];
  std::uint64_t payload_bytes;  // of each; a multiple of 16
  ChecksumParts* sums;          // [frames], the payloads' parts are added to each
  FrameSeal seal;               // of the one frame, where it is written

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    const std::size_t first =
        static_cast<std::size_t>(block.rank()) * block.warps() + block.warp_rank();
    const std::size_t stride = static_cast<std::size_t>(block.blocks()) * block.warps();
    for (std::uint32_t index = 0; index < frames; ++index) {
      std::uint64_t sum = 0;
      for (std::size_t piece = first; piece * kPieceBytes < payload_bytes; piece += stride)
        sum = add_checksums(
            sum, sum_piece(frame[index], piece * kPieceBytes, block.warp().thread_rank()));
      sums[index].add(block.warp(), sum);
    }
    seal.close(block);
  }

 private:
  TERSOR_DEVICE std::uint64_t sum_piece(const std::byte* frame, std::size_t begin,
                                        unsigned thread) const {
    std::uint64_t sum = 0;
    TERSOR_UNROLL
    for (unsigned i = 0; i < kLoads; ++i) {
      const std::size_t byte = begin + (i * 32 + thread) * sizeof(Words128);
      if (byte < payload_bytes)
        sum = add_checksums(sum, sum_words(frame, sizeof(FrameHeader) + byte));
    }
    return sum;
  }

  /// Four words, which are of one group: groups begin at multiples of 16 bytes.
  TERSOR_DEVICE static std::uint64_t sum_words(const std::byte* frame, std::size_t byte) {
    const ChecksumNumbers& numbers = kDeviceChecksumNumbers;
    const std::size_t word = byte / sizeof(std::uint32_t);
    const auto* weights = numbers.weight + word % kChecksumGroup;
    const Words128 words = load_input(reinterpret_cast<const Words128*>(frame + byte));
    const Words128 factors = load_input(reinterpret_cast<const Words128*>(weights));
    std::int64_t sum = 0;
    TERSOR_UNROLL
    for (unsigned i = 0; i < 4; ++i)
      sum += std::int64_t{static_cast<std::int32_t>(words.word[i])} *
             static_cast<std::int32_t>(factors.word[i]);
    return multiply_checksums(checksum_of(fold_checksum(sum)),
                              numbers.power_of(word / kChecksumGroup));
  }
};

}  // namespace tersor::kernels
