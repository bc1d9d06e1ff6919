// The messages an operation hands to its channel: sends and receives, started without waiting.
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

/// Identifies messages between two ranks of a channel. Messages with equal keys match in posting
/// order.
struct MessageKey {
  std::uint32_t tag = 0;   ///< of the operation
  std::uint32_t part = 0;  ///< index within the operation; the first message of a pair is part 0

  friend bool operator==(const MessageKey&, const MessageKey&) = default;
};

/// A send. The payload is read until the batch is closed or cancelled. If `block` holds the
/// payload, the network keeps a reference to the block instead, for as long as needed.
struct Outgoing {
  int peer = 0;
  ConstByteSpan payload = {};
  Block block = {};
};

/// A receive. The channel sets `source` and `payload`, then `arrived`.
struct Incoming {
  int peer = 0;  ///< or kAnyRank
  std::size_t min_bytes = 0;
  std::size_t capacity = 0;

  std::atomic<bool> arrived{false};
  int source = kAnyRank;
  Block payload;
  void* ticket = nullptr;  ///< used by the match queue
};

/// Messages of an operation posted together. Must not move from `post` until closed or cancelled.
struct Batch {
  std::string_view name;  ///< of the operation, for error texts
  MessageKey key;
  Envelope envelope;  ///< of the sends, and of the expected messages except for `bytes`
  const std::shared_ptr<const Agreement>* agreement = nullptr;  ///< behind the signature, or null
  bool takes_all = false;  ///< True if no later batch receives messages with this key
  std::span<Outgoing> outgoing;
  std::span<Incoming> incoming;
  std::shared_ptr<const void> keep_alive;  ///< owner of the sent payloads, or null
  Block block = {};                        ///< contains some or all payloads, or empty
  BlockPool* pool = nullptr;               ///< preferred pool for received payloads, or null

  /// The error that ended the batch alone, on an isolated channel. Set before the batch is closed.
  std::exception_ptr error = {};

  /// Number of messages under way, set by `post`. At 0, only the owner accesses the batch.
  std::atomic<std::uint32_t> open{0};
  bool closed() const { return open.load(std::memory_order_acquire) == 0; }
};

}  // namespace tersor::host
