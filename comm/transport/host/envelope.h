// What stands before every message between hosts, so that ranks that call different things find
// out.
#pragma once

#include <tersor/dtype.h>
#include <tersor/transport.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace tersor::host {

/// 32 bytes, little-endian, counted like the payload behind them.
struct Envelope {
  std::uint32_t magic = kMagic;
  Calling call = Calling::kSend;
  Dtype dtype = Dtype::kF32;  ///< of sums
  std::uint16_t version = 1;
  std::uint64_t signature = 0;  ///< of the collective
  std::uint64_t count = 0;      ///< values that are summed, in all parts
  std::uint64_t bytes = 0;      ///< of the payload

  static constexpr std::uint32_t kMagic = 0x4d535254;  // "TRSM" read as bytes
};
static_assert(sizeof(Envelope) == 32 && std::is_trivially_copyable_v<Envelope>);

/// What a rank waits for: an envelope, but for its bytes, which lie in [least_bytes, capacity].
struct Expectation {
  Envelope envelope;
  std::size_t least_bytes = 0;
  std::size_t capacity = 0;
};

/// Whether what came is what was waited for.
bool agrees(const Expectation& expected, const Envelope& came);

/// How one that nobody waits for differs from the own call: a sentence about its sender.
std::string difference(const Envelope& own, const Envelope& came, std::string_view sender,
                       std::string_view name);

/// Where they do not agree: a sentence about how `sender` ("rank 2") differs in its call of the
/// operation `name`.
std::string disagreement(const Expectation& expected, const Envelope& came, std::string_view sender,
                         std::string_view name);

}  // namespace tersor::host
