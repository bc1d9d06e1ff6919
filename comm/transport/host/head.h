// What a MessageHead says: which channel and operation the message behind it is for.
#pragma once

#include <tersor/network.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "comm/transport/host/envelope.h"

namespace tersor::host {

enum class Kind : std::uint8_t {
  kMessage = 1,
  kFault = 2,      ///< the payload says why the sender gave up
  kLeave = 3,      ///< the sender takes no more on this channel; `part` 1: nor on any other
  kQuestion = 4,   ///< whom do you wait for up to `tag`? `part` is the question's number
  kAnswer = 5,     ///< for the ranks in the payload, in a call that is `envelope` under `tag`
  kAnnounced = 6,  ///< a message that waits at its sender, numbered in the order of these heads
  kRequest = 7,    ///< for the one with the number `part`
  kBody = 8,       ///< its payload
  kRoom = 9,       ///< for `envelope.count` bytes more that nobody has asked for
};

struct Head {
  Envelope envelope;
  std::uint64_t channel = 0;  ///< the same number on all its ranks
  std::uint32_t tag = 0;      ///< of the operation
  std::uint32_t part = 0;     ///< within it
  std::int32_t from = 0;      ///< rank in the channel; of a message, held against who sent it
  Kind kind = Kind::kMessage;
  std::uint8_t reserved[3] = {};
};
static_assert(sizeof(Head) == sizeof(MessageHead::content) && std::is_trivially_copyable_v<Head>);

inline MessageHead to_message_head(const Head& head) {
  return {.content = std::bit_cast<decltype(MessageHead::content)>(head)};
}

inline Head head_of(const MessageHead& head) { return std::bit_cast<Head>(head.content); }

}  // namespace tersor::host
