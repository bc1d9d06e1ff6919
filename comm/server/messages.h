// The messages between servers and workers on an isolated channel: a header, followed by a
// frame or a text for some types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "comm/transport/mailbox.h"

namespace tersor {

enum class ServerMessage : std::uint32_t {
  kJoin = 1,  // from a worker, with the signature
  kPush,      // with the worker's clock and a frame
  kPull,      // with the worker's clock
  kLeave,
  kJoined,    // from a server, with the first clock
  kApplied,   // with a push's clock: the push was applied to the weights
  kWeights,   // with the pull's clock and a frame
  kRejected,  // with a text
  kOptions,   // from a server: options that differ from the options of the worker that joins
};

/// The header before each message's frame or text. Little-endian.
struct ServerHeader {
  ServerMessage type = ServerMessage::kJoin;
  std::uint32_t clock = 0;
  std::uint64_t signature = 0;
  std::uint64_t bytes = 0;  ///< of the frame or text
  std::uint64_t reserved = 0;
};
static_assert(sizeof(ServerHeader) == 32);

inline constexpr std::size_t kMaxText = std::size_t{1}
                                        << 20;  ///< maximum bytes of a text or of options

/// Messages between a server and its workers.
using ServerMailbox = Mailbox<ServerHeader>;
inline constexpr std::string_view kServerMailbox = "parameter server";

}  // namespace tersor
