// Frames as passed to the entry points of device kernels.
#pragma once

#include <tersor/align.h>
#include <tersor/wire.h>

#include <cstddef>

namespace tersor::kernels {

/// A frame to write: the address, and the header without the checksum.
struct DeviceFrame {
  std::byte* frame;
  FrameHeader header;
};

/// Maximum number of frames per decode or reduce on a device.
constexpr std::size_t kMaxDeviceFrames = 1000;

/// Returns the workspace size in bytes for a call with `frames` input frames on a device. Each
/// frame needs two 64-bit sums for the checksum. One further word counts blocks.
constexpr std::size_t device_frames_bytes(std::size_t frames) {
  return align_up(frames * 2 * sizeof(std::uint64_t) + sizeof(std::uint32_t), 64);
}

}  // namespace tersor::kernels
