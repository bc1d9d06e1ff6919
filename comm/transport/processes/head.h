// What stands before every message between processes: which channel and operation it is for.
#pragma once

#include <cstdint>
#include <type_traits>

#include "comm/transport/host/envelope.h"

namespace tersor::processes {

enum class Kind : std::uint8_t {
  kMessage = 1,
  kFault = 2,     ///< the payload says why the sender gave up
  kLeave = 3,     ///< the sender takes no more on this channel; `part` 1: nor on any other
  kQuestion = 4,  ///< whom do you wait for under `tag`? `part` is the question's number
  kAnswer = 5,    ///< `from` rank `envelope.count` − 1; 0: for nobody
};

/// 64 bytes, little-endian.
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

}  // namespace tersor::processes
