// The content of a MessageHead: the channel and the operation of a message.
#pragma once

#include <tersor/network.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "comm/transport/host/envelope.h"

namespace tersor::host {

enum class MessageType : std::uint8_t {
  kMessage = 1,
  kFault = 2,      ///< the payload is the reason why the sender gave up, and the differences
  kLeave = 3,      ///< the sender left this channel; if `part` is 1, all channels
  kQuestion = 4,   ///< which ranks do you wait for, up to `tag`? `part` is the question's number
  kAnswer = 5,     ///< the awaited ranks (payload), in the call `envelope` under `tag`
  kAnnounced = 6,  ///< a message waits at its sender; numbered in the order of these headers
  kRequest = 7,    ///< requests the announced message number `part`
  kBody = 8,       ///< payload of a requested message
  kCredits = 9,    ///< returns `envelope.count` bytes of credits
  kOptions = 10,   ///< a text, and the sender's options of the call `envelope.count`, for
                   ///< comparison with the receiver's options of `envelope.signature`
  kCompare = 11,   ///< a text; the receiver sends its options of `envelope.count` to rank `part`
};

struct Head {
  Envelope envelope;
  std::uint64_t channel = 0;  ///< equal on all ranks of the channel
  std::uint32_t tag = 0;      ///< of the operation
  std::uint32_t part = 0;     ///< index of the message within the operation
  std::int32_t from = 0;      ///< group rank in the channel; checked against the sending peer
  MessageType type = MessageType::kMessage;
  std::uint8_t reserved[3] = {};
};
static_assert(sizeof(Head) == sizeof(MessageHead::content) && std::is_trivially_copyable_v<Head>);

inline MessageHead to_message_head(const Head& head) {
  return {.content = std::bit_cast<decltype(MessageHead::content)>(head)};
}

inline Head head_of(const MessageHead& head) { return std::bit_cast<Head>(head.content); }

}  // namespace tersor::host
