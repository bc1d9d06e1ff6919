// The match queue of a channel on a rank: pairs incoming messages with posted receives, on any
// wire. Not thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/transport/host/batch.h"

namespace tersor::host {

struct ChannelState;

/// An incoming message, from header to delivery.
struct IncomingMessage {
  Envelope envelope;
  MessageKey key;
  int from = 0;                  // group rank in the channel
  Block payload;                 // complete once `there`
  bool there = false;            // True if the whole payload has arrived
  Batch* batch = nullptr;        // the batch with the matching receive, or null
  Incoming* incoming = nullptr;  // the matching receive, or null

  // Used by the progress engine only:
  Wire::Arrival arrival;            // if the payload has arrived, only `peer` is set
  ChannelState* channel = nullptr;  // null once the channel is gone
  std::size_t cost = 0;             // credits used while unexpected
  bool announced = false;           // True if the message waits at its sender (rendezvous)
  std::uint32_t number = 0;         // number of the announcement
  bool asked = false;               // True if the announced payload was requested
  bool receiving = false;           // True if the payload is being received
};

/// The ranks a rank waits for, and the waiting call.
struct Awaited {
  std::vector<int> ranks = {};
  std::uint32_t tag = kUnorderedTag;
  Envelope envelope = {};

  /// Adds a rank awaited under tag `of`. Keeps only the ranks of the call with the lowest tag.
  void add(int rank, std::uint32_t of, const Envelope& call);
};

/// Matches incoming messages with batches by sender and key, each in order of arrival.
class MatchQueue {
 public:
  /// Matches a message with the first posted receive. Without a match, the message becomes
  /// unexpected. Returns true on a match.
  bool claim(IncomingMessage& message);
  /// Adds a batch to the posted batches. Does not search the unexpected messages: `seek` does.
  void open(Batch& batch) { open_.push_back(&batch); }
  /// Records that no later batch receives messages with this batch's key.
  void record_last(const Batch& batch);
  /// How an unexpected message differs from the call of the last batch with its key. Empty if a
  /// later batch may still receive the message. `rank` and `sender` are names.
  std::string stray(const IncomingMessage& message, std::string_view rank,
                    std::string_view sender) const;
  /// The signature of the last batch that `record_last` noted for the key.
  std::uint64_t last_signature(const MessageKey& key) const {
    return begun_[key.tag % kRemembered].envelope.signature;
  }
  /// The first unexpected message with a key, or null.
  const IncomingMessage* unclaimed(const MessageKey& key) const;
  /// Pairs a receive with the first matching unexpected message. Returns the message, or null
  /// without a match.
  IncomingMessage* seek(Batch& batch, Incoming& incoming);
  /// Removes a batch and makes the batch's messages available to other batches. Returns the
  /// messages matched with another batch at once.
  std::vector<IncomingMessage*> cancel(Batch& batch);
  /// Removes a message from the queue, matched or not.
  void reject(IncomingMessage& message);

  /// True if a matched message meets the expectation of the receive.
  static bool fits(const IncomingMessage& message);
  /// How a matched message differs from the expectation. `sender` is the sending rank's name.
  static std::string misfit(const IncomingMessage& message, std::string_view sender);
  /// Completes the receive of a complete message. Returns true if the batch is now closed.
  bool deliver(IncomingMessage& message);
  /// Decrements the open messages of a batch. Returns true if the batch is now closed.
  bool close_one(Batch& batch);

  std::span<Batch* const> batches() const { return open_; }
  std::span<IncomingMessage* const> unclaimed() const { return unclaimed_; }

  /// A receive waiting for a peer (a rank or kAnyRank) with `gone(peer)` true.
  struct InVain {
    Batch* batch;
    int peer;
  };
  template <typename Gone>
  std::optional<InVain> in_vain(Gone&& gone) const {
    for (Batch* batch : open_)
      for (const Incoming& incoming : batch->incoming)
        if (waits(incoming) && gone(incoming.peer)) return InVain{batch, incoming.peer};
    return std::nullopt;
  }

  /// The ranks awaited under the lowest tag up to `tag`, otherwise the ranks awaited under
  /// kUnorderedTag.
  Awaited awaited(std::uint32_t tag) const;

 private:
  bool find_batch(IncomingMessage& message);

  /// The record of a call, kept beyond the batch.
  struct Begun {
    bool any = false;
    MessageKey key;
    Envelope envelope;
    std::string name;
  };
  static constexpr std::size_t kRemembered = 64;  // calls

  static bool waits(const Incoming& incoming) {
    return incoming.ticket == nullptr && !incoming.arrived.load(std::memory_order_relaxed);
  }
  static bool waits_for(const Incoming& incoming, int from) {
    return waits(incoming) && (incoming.peer == from || incoming.peer == kAnyRank);
  }

  std::vector<Batch*> open_;                 // posted batches with open messages, in posting order
  std::vector<IncomingMessage*> unclaimed_;  // unexpected messages, in sending order
  std::array<Begun, kRemembered> begun_;     // the last calls, by tag
};

/// "rank 2"; on a split followed by the world rank.
std::string rank_name(int rank, int world_rank, bool whole);

}  // namespace tersor::host
