// The envelope of each message between hosts. Ranks compare envelopes to detect mismatched calls.
#pragma once

#include <tersor/dtype.h>
#include <tersor/transport.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace tersor::host {

/// 32 bytes, little-endian. The traffic counters include the envelope.
struct Envelope {
  std::uint32_t magic = kMagic;
  Calling call = Calling::kSend;
  Dtype dtype = Dtype::kF32;  ///< of a sum or maximum
  std::uint16_t version = 1;
  std::uint64_t signature = 0;  ///< of the collective
  std::uint64_t count = 0;      ///< summed values in all parts
  std::uint64_t bytes = 0;      ///< of the payload

  static constexpr std::uint32_t kMagic = 0x4d535254;  // "TRSM" as bytes
};
static_assert(sizeof(Envelope) == 32 && std::is_trivially_copyable_v<Envelope>);

/// The expected envelope of a receive, with payload bytes in [min_bytes, capacity].
struct Expectation {
  Envelope envelope;
  std::size_t min_bytes = 0;
  std::size_t capacity = 0;
};

/// Two ranks that make different calls, and the signatures of the calls.
struct Mismatch {
  int rank = 0;
  std::uint64_t signature = 0;
  int other_rank = 0;
  std::uint64_t other_signature = 0;
};

/// True if a received envelope meets the expectation.
bool matches(const Expectation& expected, const Envelope& received);

/// Describes how an unexpected envelope differs from the own call. `sender` ("rank 2") is the
/// subject.
std::string difference(const Envelope& own, const Envelope& received, std::string_view sender,
                       std::string_view name);

/// Describes how a mismatched envelope differs from the expectation. `sender` ("rank 2") is the
/// subject, and `name` is the operation.
std::string mismatch_text(const Expectation& expected, const Envelope& received,
                          std::string_view sender, std::string_view name);

}  // namespace tersor::host
