// What an operation hands to its channel: messages from one rank to another, started without
// waiting.
#pragma once

#include <tersor/transport.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string_view>

#include "comm/transport/host/block_pool.h"
#include "comm/transport/host/envelope.h"

namespace tersor::host {

/// Which messages of one sender and one channel meet: equal keys in the order of posting.
struct MessageKey {
  std::uint32_t tag = 0;   ///< of the operation
  std::uint32_t part = 0;  ///< within the operation; the first message of a pair is part 0

  friend bool operator==(const MessageKey&, const MessageKey&) = default;
};

/// A message to send. The payload is read until its batch is closed; where it lies in a block, that
/// is handed over instead, for as long as the network reads it.
struct Outgoing {
  int peer = 0;
  ConstByteSpan payload = {};
  Block block = {};
};

/// A message to come. Its channel fills in `source` and `payload`, then sets `arrived`.
struct Incoming {
  int peer = 0;  ///< or kAnyRank
  std::size_t least_bytes = 0;
  std::size_t capacity = 0;

  std::atomic<bool> arrived{false};
  int source = kAnyRank;
  Block payload;
  void* ticket = nullptr;  ///< of the letterbox
};

/// Messages of one operation that are posted together. Stays where it is from `post` until it is
/// closed or cancelled.
struct Batch {
  std::string_view name;  ///< of the operation, for messages about it
  MessageKey key;
  Envelope envelope;       ///< of what is sent, and what must come, but for `bytes`
  bool takes_all = false;  ///< no batch that is posted later takes messages of this key
  std::span<Outgoing> outgoing;
  std::span<Incoming> incoming;
  std::shared_ptr<const void> keep_alive;  ///< owner of the payloads that are sent, or null
  Block block = {};                        ///< in which they lie, all or some, or none
  BlockPool* pool = nullptr;               ///< a wish where payloads that come should lie, or null

  /// Why it ended alone, on a lifeline; set before it is closed.
  std::exception_ptr error = {};

  /// Messages still under way; set by `post`. Nobody but its owner touches a batch after
  /// this is 0.
  std::atomic<std::uint32_t> open{0};
  bool closed() const { return open.load(std::memory_order_acquire) == 0; }
};

}  // namespace tersor::host
