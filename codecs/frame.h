// Frames as codecs see them: making headers, sealing what was written, and checking what came in,
// field by field, before a byte of the payload is believed.
#pragma once

#include <tersor/codec.h>
#include <tersor/threads.h>
#include <tersor/wire.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tersor::encoding {

/// What a codec says of its payload in the header, beside what all codecs say.
struct PayloadFormat {
  std::size_t bytes = 0;
  std::uint16_t codec_flags = 0;  ///< in place, i.e. shifted by kCodecFlagShift
  std::array<std::uint8_t, 8> parameters = {};
};

/// What a frame is about.
struct FrameContent {
  const Codec& codec;
  std::span<const Segment> segments;
  Dtype dtype = Dtype::kF32;  ///< of the gradient
  const FrameIdentity& identity;
};

/// The header that such a frame has, but for the checksum.
FrameHeader frame_header(const FrameContent& content, const PayloadFormat& payload);

/// Where the payload lies.
inline ByteSpan payload_of(ByteSpan frame) { return frame.subspan(sizeof(FrameHeader)); }
inline ConstByteSpan payload_of(ConstByteSpan frame) { return frame.subspan(sizeof(FrameHeader)); }

/// Writes the header in front of a payload that is there, with its checksum where it has one.
void seal_frame(FrameHeader header, ByteSpan frame, Threads* threads);

/// Throws WireError that names field, value and what was expected, where a frame is too short, has
/// another header than `expected`, or another checksum than its own.
void check_frame(const FrameHeader& expected, ConstByteSpan frame, Threads* threads);

/// The same for several, whose number the message then says.
void check_frames(const FrameHeader& expected, std::span<const ConstByteSpan> frames,
                  Threads* threads);

/// Writes zeros to the bytes [begin, end) of a payload: the padding of a section.
void pad_section(ByteSpan payload, std::size_t begin, std::size_t end);

}  // namespace tersor::encoding
