// Computes the checksums of frames in a separate launch. Top-k and long lists of segments need this
// launch, because their kernels do not see all words of a frame. Each warp sums a piece at a time.
// The kernel reads every byte of the payloads once.
#pragma once

#include "kernels/device/frames.cuh"
#include "kernels/device/queue.cuh"
#include "kernels/device/seal.cuh"

#include <tersor/wire.h>

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

template <unsigned kCapacity>
struct ChecksumKernel : LaunchBounds<256, 4> {
  std::uint32_t frames = 0;
  const std::byte* frame[kCapacity];
  std::uint64_t frame_bytes;  // per frame, including the header; a multiple of 16
  std::uint32_t piece_bytes;
  ChecksumParts* sums;  // [frames]; the kernel adds the payload's part to each
  FrameSeal seal;       // of the single frame, if this call writes a frame

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    for (std::uint32_t index = 0; index < frames; ++index) add_frame(block, index);
    seal.close(block);
  }

 private:
  template <class Block>
  TERSOR_DEVICE void add_frame(const Block& block, std::uint32_t index) const {
    const std::size_t stride = static_cast<std::size_t>(block.blocks()) * block.warps();
    const auto warp = block.warp();
    std::uint64_t sum = 0;
    for (std::size_t piece =
             static_cast<std::size_t>(block.rank()) * block.warps() + block.warp_rank();
         piece * piece_bytes < frame_bytes; piece += stride) {
      sum = fold_number(sum + sum_piece(frame[index], frame_bytes, piece * piece_bytes, piece_bytes,
                                        warp.thread_rank()));
    }
    sum = sum_of_warp(warp, sum);
    if (warp.thread_rank() == 0 && sum != 0) sums[index].add(sum);
  }
};

}  // namespace tersor::kernels
