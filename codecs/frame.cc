#include "codecs/frame.h"

#include "codecs/registry.h"

#include "kernels/host/checksum.h"

#include <tersor/align.h>
#include <tersor/error.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <string>

namespace tersor::encoding {
namespace {

/// Payload bytes per task.
constexpr std::size_t kChecksumPiece = std::size_t{1} << 18;
constexpr std::size_t kWord = sizeof(std::uint32_t);

/// Sums a payload unless the payload is short.
void sum_payload(ConstByteSpan payload, Threads* threads, PayloadSum& sum) {
  if (is_short(payload.size())) return;
  const std::size_t pieces = ceil_div(payload.size(), kChecksumPiece);
  const auto add_piece = [&](std::size_t piece) {
    const std::size_t first = piece * kChecksumPiece;
    sum.add(payload.data() + first, first, std::min(kChecksumPiece, payload.size() - first));
  };
  if (threads != nullptr && pieces > 1) {
    threads->run(pieces, add_piece);
  } else {
    for (std::size_t piece = 0; piece < pieces; ++piece) add_piece(piece);
  }
}

// A header fills the first row of the checksum.
static_assert(sizeof(FrameHeader) == kernels::kChecksumColumns * kWord);

/// Returns the checksum of header and payload. `sum` is the sum of a long payload.
std::uint64_t checksum_of(FrameHeader header, const std::byte* payload, const PayloadSum& sum) {
  header.checksum = 0;
  if (is_short(header.payload_bytes))
    return kernels::checksum_with_first_row(&header, payload, header.payload_bytes / kWord);
  return kernels::add_checksums(kernels::checksum_with_first_row(&header, nullptr, 0), sum.value());
}

std::string hexadecimal(std::uint64_t value) {
  std::array<char, 16> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
  return "0x" + std::string(digits.data(), end);
}

[[noreturn]] void throw_mismatch(const std::string& field, const std::string& found,
                                 const std::string& expected) {
  throw WireError("frame " + field + " is " + found + ", expected " + expected);
}

void expect_number(const char* field, std::uint64_t found, std::uint64_t expected) {
  if (found != expected) throw_mismatch(field, std::to_string(found), std::to_string(expected));
}

void expect_bits(const char* field, std::uint64_t found, std::uint64_t expected) {
  if (found != expected) throw_mismatch(field, hexadecimal(found), hexadecimal(expected));
}

std::string codec_text(std::uint16_t id) {
  for (const CodecInfo& info : codecs())
    if (info.id == id) return std::to_string(id) + " (" + std::string(info.name) + ")";
  return std::to_string(id) + " (no codec of this build)";
}

std::string dtype_text(std::uint8_t dtype) {
  const bool known = dtype <= static_cast<std::uint8_t>(Dtype::kU32);
  return known ? std::string(dtype_name(static_cast<Dtype>(dtype))) : std::to_string(dtype);
}

std::uint64_t parameters_of(const FrameHeader& header) {
  std::uint64_t bits;
  std::memcpy(&bits, header.parameters, sizeof bits);
  return bits;
}

/// Checks the codec-specific fields. Errors use the codec's option names if the options differ.
void check_options(const FrameHeader& found, const FrameHeader& expected) {
  const bool flags = found.flags != expected.flags;
  if (!flags && parameters_of(found) == parameters_of(expected)) return;
  const std::string own = options_of(found), wanted = options_of(expected);
  if (own != wanted) throw_mismatch(flags ? "flags" : "parameters", own, wanted);
}

void check_header(const FrameHeader& found, const FrameHeader& expected) {
  if (found.codec_id != expected.codec_id)
    throw_mismatch("codec_id", codec_text(found.codec_id), codec_text(expected.codec_id));
  if (found.dtype != expected.dtype)
    throw_mismatch("dtype", dtype_text(found.dtype), dtype_text(expected.dtype));
  expect_number("round", found.round, expected.round);
  check_options(found, expected);
  expect_bits("flags", found.flags, expected.flags);
  expect_number("segments", found.segments, expected.segments);
  expect_number("count", found.count, expected.count);
  expect_number("first_index", found.first_index, expected.first_index);
  expect_bits("parameters", parameters_of(found), parameters_of(expected));
  expect_number("payload_bytes", found.payload_bytes, expected.payload_bytes);
  expect_bits("signature", found.signature, expected.signature);
}

[[noreturn]] void throw_step_mismatch(std::uint32_t found, std::uint32_t first) {
  throw_mismatch(
      "step", std::to_string(found),
      std::to_string(first) + ", the step of the first frame: a call reads frames of one step");
}

/// Returns `expected` with the data that `found` carries. `space` is the number of bytes after the
/// header. Throws WireError if the payload is longer than the capacity or than the space.
FrameHeader with_header_extra(FrameHeader expected, const FrameHeader& found, HeaderExtra extra,
                              std::size_t space) {
  if (extra == HeaderExtra::kStep) write_step(expected, step_in_header(found));
  if (extra == HeaderExtra::kLength) {
    const std::uint64_t most = std::min<std::uint64_t>(expected.payload_bytes, space);
    if (found.payload_bytes > most || found.payload_bytes % kSectionAlignment != 0)
      throw_mismatch("payload_bytes", std::to_string(found.payload_bytes),
                     "a multiple of 16 up to " + std::to_string(most));
    expected.payload_bytes = found.payload_bytes;
  }
  return expected;
}

void expect_payload(std::size_t found, std::size_t expected) {
  if (found < expected)
    throw WireError("frame is truncated: " + std::to_string(found) + " bytes follow its " +
                    "header, expected " + std::to_string(expected));
}

[[noreturn]] void throw_fault(const FrameFault& fault) {
  if (fault.kind == FrameFault::kHeader) {
    check_header(read_frame_header(std::as_bytes(std::span(&fault.found, 1))), fault.expected);
    throw WireError("frame header does not match the call");
  }
  if (fault.kind == FrameFault::kStep)
    throw_step_mismatch(step_in_header(fault.found), static_cast<std::uint32_t>(fault.detail));
  if (fault.kind == FrameFault::kChecksum)
    throw_mismatch("checksum", hexadecimal(fault.found.checksum), hexadecimal(fault.detail));
  throw WireError("frame has an unknown fault");
}

/// Calls `check` and adds the frame's index in a list to a WireError.
template <typename Check>
void add_frame_index(std::size_t frame, std::size_t frames, const Check& check) {
  try {
    check();
  } catch (const WireError& error) {
    if (frames == 1) throw;
    throw WireError("frame " + std::to_string(frame) + " of " + std::to_string(frames) + ": " +
                    error.what());
  }
}

}  // namespace

FrameHeader frame_header(const FrameContent& content, const PayloadFormat& payload) {
  FrameHeader header;
  header.codec_id = content.codec.id();
  header.dtype = static_cast<std::uint8_t>(content.dtype);
  header.round = content.identity.round;
  header.flags = payload.codec_flags;
  if (content.identity.checksum == Checksum::kOn) header.flags |= kFrameHasChecksum;
  header.segments = static_cast<std::uint32_t>(content.segments.size());
  for (const Segment& segment : content.segments) header.count += segment.count;
  if (!content.segments.empty()) header.first_index = content.segments.front().first_index;
  header.payload_bytes = payload.bytes;
  header.signature = content.identity.signature;
  std::memcpy(header.parameters, payload.parameters.data(), sizeof header.parameters);
  return header;
}

void PayloadSum::add(const std::byte* bytes, std::size_t begin, std::size_t count) {
  add(kernels::checksum(bytes, count / kWord, (sizeof(FrameHeader) + begin) / kWord));
}

void PayloadSum::add(std::uint64_t part) {
  std::uint64_t old = value();
  while (!sum_.compare_exchange_weak(old, kernels::add_checksums(old, part),
                                     std::memory_order_relaxed)) {
  }
}

void seal_frame(FrameHeader header, ByteSpan frame, const PayloadSum& sum) {
  if (has_checksum(header)) header.checksum = checksum_of(header, payload_of(frame).data(), sum);
  std::memcpy(frame.data(), &header, sizeof header);
}

void seal_frame(const FrameHeader& header, ByteSpan frame, Threads* threads) {
  PayloadSum sum;
  if (has_checksum(header))
    sum_payload(payload_of(frame).first(header.payload_bytes), threads, sum);
  seal_frame(header, frame, sum);
}

std::uint32_t step_in_header(const FrameHeader& header) {
  std::uint32_t step;
  std::memcpy(&step, header.parameters, sizeof step);
  return step;
}

PayloadFormat format_of_number(double number, unsigned codec_flags) {
  PayloadFormat format{.codec_flags = static_cast<std::uint16_t>(codec_flags << kCodecFlagShift)};
  static_assert(sizeof number == sizeof format.parameters);
  std::memcpy(format.parameters.data(), &number, sizeof number);
  return format;
}

double number_in_header(const FrameHeader& header) {
  double number;
  std::memcpy(&number, header.parameters, sizeof number);
  return number;
}

void write_step(FrameHeader& header, std::uint32_t step) {
  std::memcpy(header.parameters, &step, sizeof step);
}

void check_frame_bytes(const FrameHeader& expected, std::span<const ConstByteSpan> frames) {
  for (std::size_t i = 0; i < frames.size(); ++i)
    add_frame_index(i, frames.size(), [&] {
      // Throws, because the frame is too short.
      if (frames[i].size() < sizeof(FrameHeader)) read_frame_header(frames[i]);
      expect_payload(frames[i].size() - sizeof(FrameHeader), expected.payload_bytes);
    });
}

void check_headers(const FrameHeader& expected, std::span<const ConstByteSpan> frames,
                   HeaderExtra extra) {
  std::uint32_t first_step = 0;
  for (std::size_t i = 0; i < frames.size(); ++i)
    add_frame_index(i, frames.size(), [&] {
      const FrameHeader found = read_frame_header(frames[i]);
      const std::size_t space = payload_of(frames[i]).size();
      check_header(found, with_header_extra(expected, found, extra, space));
      if (i == 0) first_step = step_in_header(found);
      if (extra == HeaderExtra::kStep && step_in_header(found) != first_step)
        throw_step_mismatch(step_in_header(found), first_step);
      expect_payload(space, found.payload_bytes);
      if (!has_checksum(found)) expect_bits("checksum", found.checksum, 0);
    });
}

void check_checksums(std::span<const ConstByteSpan> frames, std::span<const PayloadSum> sums) {
  for (std::size_t i = 0; i < frames.size(); ++i)
    add_frame_index(i, frames.size(), [&] {
      const FrameHeader found = read_frame_header(frames[i]);
      expect_bits("checksum", found.checksum,
                  checksum_of(found, payload_of(frames[i]).data(), sums[i]));
    });
}

void check_checksum(ConstByteSpan frame, Threads* threads) {
  PayloadSum sum;
  sum_payload(payload_of(frame).first(read_frame_header(frame).payload_bytes), threads, sum);
  check_checksums({&frame, 1}, {&sum, 1});
}

void check_checksums(std::span<const ConstByteSpan> frames, Threads* threads) {
  for (std::size_t i = 0; i < frames.size(); ++i)
    add_frame_index(i, frames.size(), [&] { check_checksum(frames[i], threads); });
}

void check_frames(const FrameHeader& expected, std::span<const ConstByteSpan> frames,
                  Threads* threads) {
  check_headers(expected, frames);
  if (has_checksum(expected)) check_checksums(frames, threads);
}

void throw_invalid_indices(std::size_t frame, std::size_t frames, std::size_t segment,
                           std::string_view what) {
  throw WireError("frame " + std::to_string(frame) + " of " + std::to_string(frames) +
                  ", segment " + std::to_string(segment) + ": " + std::string(what));
}

void pad_section(ByteSpan payload, std::size_t begin, std::size_t end) {
  std::memset(payload.data() + begin, 0, end - begin);
}

}  // namespace tersor::encoding

namespace tersor {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

FrameHeader read_frame_header(ConstByteSpan frame) {
  FrameHeader header;
  if (frame.size() < sizeof header)
    throw WireError("frame is truncated: " + std::to_string(frame.size()) + " bytes, its header " +
                    "takes " + std::to_string(sizeof header));
  std::memcpy(&header, frame.data(), sizeof header);
  if (header.magic != kFrameMagic)
    throw WireError("frame magic is " + std::to_string(header.magic) + ", expected " +
                    std::to_string(kFrameMagic) + ": these bytes are not a frame");
  if (header.version != kFormatVersion)
    throw WireError("frame version is " + std::to_string(header.version) + ", expected " +
                    std::to_string(kFormatVersion) + ": written by another version of Tersor");
  return header;
}

std::size_t frame_bytes(ConstByteSpan frame) {
  const FrameHeader header = read_frame_header(frame);
  const std::size_t space = frame.size() - sizeof header;
  if (header.payload_bytes > space)
    throw WireError("frame payload_bytes is " + std::to_string(header.payload_bytes) +
                    ", but only " + std::to_string(space) + " bytes follow the header");
  return sizeof header + header.payload_bytes;
}

void throw_if_faulty(const FrameFault& fault) {
  if (fault.kind == FrameFault::kNone) return;
  if (fault.kind == FrameFault::kIndices)
    encoding::throw_invalid_indices(fault.frame, fault.frames, fault.detail,
                                    "the indices of its selected values are damaged");
  encoding::add_frame_index(fault.frame, fault.frames, [&] { encoding::throw_fault(fault); });
}

}  // namespace tersor
