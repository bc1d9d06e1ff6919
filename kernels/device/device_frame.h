// Frames as the entry points of device kernels take them.
#pragma once

#include <tersor/align.h>
#include <tersor/wire.h>

#include <cstddef>

namespace tersor::kernels {

/// A frame to be written: where, and its header but for the checksum.
struct DeviceFrame {
  std::byte* frame;
  FrameHeader header;
};

/// Frames that one decode or reduce on a device takes.
constexpr std::size_t kMostDeviceFrames = 1000;

/// Workspace of a call that reads frames on a device: two sums of 64 bits for each, of which their
/// checksums are made, and a word that counts blocks.
constexpr std::size_t device_frames_bytes(std::size_t frames) {
  return align_up(frames * 2 * sizeof(std::uint64_t) + sizeof(std::uint32_t), 64);
}

}  // namespace tersor::kernels
