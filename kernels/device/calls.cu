// Launches for calls of all codecs: checksums of frames, and the words of the next step. The build
// compiles the kernels here once, instead of once per codec.

#include "kernels/device/checksum_body.cuh"
#include "kernels/device/device_call.cuh"

namespace tersor::kernels {
namespace {

/// Sums the payloads of the `frames` frames that the kernel lists.
template <unsigned kCapacity>
void launch_checksum(Queue& queue, ChecksumKernel<kCapacity>& kernel, std::size_t frames) {
  kernel.frames = static_cast<std::uint32_t>(frames);
  kernel.piece_bytes = piece_bytes_of(frames * kernel.frame_bytes);
  const std::size_t pieces = ceil_div(kernel.frame_bytes, std::uint64_t{kernel.piece_bytes});
  queue.launch_tasks(kernel, pieces, kernel.kThreads / kWarpThreads);
}

template <unsigned kCapacity>
void sum_listed(Queue& queue, std::span<const ConstByteSpan> frames, std::size_t frame_bytes,
                ChecksumParts* sums) {
  ChecksumKernel<kCapacity> kernel;
  for (std::size_t i = 0; i < frames.size(); ++i) kernel.frame[i] = frames[i].data();
  kernel.frame_bytes = frame_bytes;
  kernel.sums = sums;
  launch_checksum(queue, kernel, frames.size());
}

struct AdvanceWordsKernel : LaunchBounds<32, 1> {
  NextWords next;
  FrameSeal seal;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    seal.write(block);
    next.write(block);
  }
};

}  // namespace

void sum_frames(Queue& queue, std::span<const ConstByteSpan> frames, std::size_t frame_bytes,
                ChecksumParts* sums) {
  const auto launch =
      frames.size() > kShortListFrames ? sum_listed<kMaxFrames> : sum_listed<kShortListFrames>;
  launch(queue, frames, frame_bytes, sums);
}

void add_checksum(Queue& queue, const DeviceFrame& frame) {
  if ((frame.header.flags & kFrameHasChecksum) == 0) return;
  ChecksumKernel<1> kernel;
  kernel.frame[0] = frame.frame;
  kernel.frame_bytes = sizeof(FrameHeader) + frame.header.payload_bytes;
  kernel.sums = FrameSeal::sums_of(frame.frame);
  kernel.seal = seal_of(frame, {.is_first = false, .is_last = true});
  launch_checksum(queue, kernel, 1);
}

void advance_words(Queue& queue, const NextWords& next, const FrameSeal& seal) {
  queue.launch(AdvanceWordsKernel{{}, next, seal}, 1);
}

}  // namespace tersor::kernels
