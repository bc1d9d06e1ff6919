// Frames as codecs see them: builds headers, seals written frames, and checks received frames field
// by field before any use of the payload.
#pragma once

#include <tersor/codec.h>
#include <tersor/threads.h>
#include <tersor/wire.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tersor::encoding {

/// The codec-specific fields of a header.
struct PayloadFormat {
  std::size_t bytes = 0;
  std::uint16_t codec_flags = 0;  ///< already shifted by kCodecFlagShift
  std::array<std::uint8_t, 8> parameters = {};
};

/// The data in a header that only the encoder knows, and that a reader's plan does not contain:
/// nothing, a step, or the length of the payload. The number is the number of bytes at the start of
/// `parameters`: all frames of a call must have the same step there. If the length depends on the
/// values, the plan has the capacity.
enum class HeaderExtra : std::size_t { kNothing = 0, kStep = 4, kLength = ~std::size_t{0} };

/// Reads or writes the step in a header.
std::uint32_t step_in_header(const FrameHeader& header);
void write_step(FrameHeader& header, std::uint32_t step);

/// The conversion between all of `parameters` and a number; the flags of the codec.
PayloadFormat format_of_number(double number, unsigned codec_flags);
double number_in_header(const FrameHeader& header);
inline unsigned codec_flags(const FrameHeader& header) { return header.flags >> kCodecFlagShift; }

/// The content of a frame.
struct FrameContent {
  const Codec& codec;
  std::span<const Segment> segments;
  Dtype dtype = Dtype::kF32;  ///< the gradient's dtype
  const FrameIdentity& identity;
};

/// Returns the header of a frame, without the checksum.
FrameHeader frame_header(const FrameContent& content, const PayloadFormat& payload);

/// Returns the payload of a frame.
inline ByteSpan payload_of(ByteSpan frame) { return frame.subspan(sizeof(FrameHeader)); }
inline ConstByteSpan payload_of(ConstByteSpan frame) { return frame.subspan(sizeof(FrameHeader)); }

inline bool has_checksum(const FrameHeader& header) {
  return (header.flags & kFrameHasChecksum) != 0;
}

/// True if a payload is summed together with its header when the frame is sealed or checked. For
/// short payloads, starting and ending a sum takes longer than the sum.
constexpr bool is_short(std::size_t payload_bytes) { return payload_bytes <= 4096; }

/// The payload's part of a checksum, for payloads that are not short. Thread-safe.
class PayloadSum {
 public:
  /// Adds the words in `count` bytes, which start at byte `begin` of the payload.
  void add(const std::byte* bytes, std::size_t begin, std::size_t count);
  void add(std::uint64_t part);

  std::uint64_t value() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> sum_{0};
};

/// Writes the header before an existing payload, with the checksum if the header has one. The first
/// overload takes the sum of the payload; the second computes the sum.
void seal_frame(FrameHeader header, ByteSpan frame, const PayloadSum& sum);
void seal_frame(const FrameHeader& header, ByteSpan frame, Threads* threads);

/// Throws WireError if a frame is too short, has another header than `expected`, carries another
/// step than the first frame, or has a wrong checksum. The message names the field, the found and
/// expected values and, for several frames, the frame.
void check_frames(const FrameHeader& expected, std::span<const ConstByteSpan> frames,
                  Threads* threads);

/// Performs the same checks without the checksums.
void check_headers(const FrameHeader& expected, std::span<const ConstByteSpan> frames,
                   HeaderExtra extra = HeaderExtra::kNothing);
/// Throws WireError if the checksum of a frame of any codec is wrong. The second function names the
/// frame of a list.
void check_checksum(ConstByteSpan frame, Threads* threads);
void check_checksums(std::span<const ConstByteSpan> frames, Threads* threads);
/// Checks the checksums after the payloads were summed.
void check_checksums(std::span<const ConstByteSpan> frames, std::span<const PayloadSum> sums);

/// Throws WireError that names the frame of a list and its segment.
[[noreturn]] void throw_invalid_indices(std::size_t frame, std::size_t frames, std::size_t segment,
                                        std::string_view what);

/// Zeroes the bytes [begin, end) of a payload, the padding of a section.
void pad_section(ByteSpan payload, std::size_t begin, std::size_t end);

/// Throws WireError if a frame is shorter than the payload. On a device, no other code checks this.
void check_frame_bytes(const FrameHeader& expected, std::span<const ConstByteSpan> frames);

}  // namespace tersor::encoding
