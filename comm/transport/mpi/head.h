// What stands before every message between processes: which channel and operation it is for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "comm/transport/host/envelope.h"

namespace tersor::mpi {

enum class Kind : std::uint8_t {
  kMessage = 1,
  kFault = 2,     ///< the payload says why the sender gave up
  kLeave = 3,     ///< the sender takes no more on this channel; `part` 1: nor on any other
  kQuestion = 4,  ///< whom do you wait for under `tag`? `part` is the question's number
  kAnswer = 5,    ///< `from` rank `envelope.count` − 1; 0: for nobody
};

/// 64 bytes, little-endian. A message of up to kWholeBytes, head included, travels as one; a longer
/// one sends its head alone and then its whole payload under a tag of its own, received straight
/// into its place once the receiver has agreed.
struct Head {
  host::Envelope envelope;
  std::uint64_t channel = 0;   ///< the same number on all its ranks
  std::uint32_t tag = 0;       ///< of the operation
  std::uint32_t part = 0;      ///< within it
  std::uint32_t sequence = 0;  ///< counts what one process sends another: heads are taken in order
  std::int32_t from = 0;       ///< rank in the channel
  Kind kind = Kind::kMessage;
  std::uint8_t reserved[7] = {};
};
static_assert(sizeof(Head) == 64 && std::is_trivially_copyable_v<Head>);

inline constexpr std::size_t kWholeBytes = 63 * 1024;

/// Of a payload that travels with its head.
inline constexpr std::size_t kMostBytesWithHead = kWholeBytes - sizeof(Head);

inline bool travels_whole(std::uint64_t payload_bytes) {
  return payload_bytes <= kMostBytesWithHead;
}

}  // namespace tersor::mpi
