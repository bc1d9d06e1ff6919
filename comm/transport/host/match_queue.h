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
  Block payload;                 // valid once `complete`
  bool complete = false;         // True if the whole payload has arrived
  Batch* batch = nullptr;        // the batch with the matching receive, or null
  Incoming* incoming = nullptr;  // the matching receive, or null

  // Used by the progress engine only:
  Wire::Arrival arrival;            // if the payload has arrived, only `peer` is set
  ChannelState* channel = nullptr;  // null once the channel is gone
  std::size_t cost = 0;             // credits used while unexpected
  bool announced = false;           // True if the message waits at its sender (rendezvous)
  std::uint32_t number = 0;         // number of the announcement
  bool requested = false;           // True if the announced payload was requested
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
  bool match_posted(IncomingMessage& message);
  /// Adds a batch to the posted batches. `match_unexpected` searches the unexpected messages.
  void post(Batch& batch) { posted_.push_back(&batch); }
  /// Records that no later batch receives messages with this batch's key.
  void record_last(const Batch& batch);
  /// How an unexpected message differs from the call of the last batch with its key. Empty if a
  /// later batch may still receive the message. `rank` and `sender` are names.
  std::string unexpected_text(const IncomingMessage& message, std::string_view rank,
                              std::string_view sender) const;
  /// The signature of the last batch that `record_last` noted for the key.
  std::uint64_t last_signature(const MessageKey& key) const {
    return last_calls_[key.tag % kRememberedCalls].envelope.signature;
  }
  /// The first unexpected message with a key, or null.
  const IncomingMessage* unexpected(const MessageKey& key) const;
  /// Pairs a receive with the first matching unexpected message. Returns the message, or null
  /// without a match.
  IncomingMessage* match_unexpected(Batch& batch, Incoming& incoming);
  /// Removes a batch and makes the batch's messages available to other batches. Returns the
  /// messages matched with another batch at once.
  std::vector<IncomingMessage*> cancel(Batch& batch);
  /// Removes a message from the queue, matched or not.
  void remove(IncomingMessage& message);

  /// True if a matched message meets the expectation of the receive.
  static bool is_expected(const IncomingMessage& message);
  /// How a matched message differs from the expectation. `sender` is the sending rank's name.
  static std::string mismatch(const IncomingMessage& message, std::string_view sender);
  /// Completes the receive of a complete message. Returns true if the batch is now closed.
  bool deliver(IncomingMessage& message);
  /// Decrements the open messages of a batch. Returns true if the batch is now closed.
  bool close_one(Batch& batch);

  std::span<Batch* const> batches() const { return posted_; }
  std::span<IncomingMessage* const> unexpected() const { return unexpected_; }

  /// A receive waiting for a peer (a rank or kAnyRank) with `departed(peer)` true.
  struct Orphan {
    Batch* batch;
    int peer;
  };
  template <typename Departed>
  std::optional<Orphan> find_orphaned(Departed&& departed) const {
    for (Batch* batch : posted_)
      for (const Incoming& incoming : batch->incoming)
        if (is_pending(incoming) && departed(incoming.peer)) return Orphan{batch, incoming.peer};
    return std::nullopt;
  }

  /// The ranks awaited under the lowest tag up to `tag`, otherwise the ranks awaited under
  /// kUnorderedTag.
  Awaited awaited(std::uint32_t tag) const;

 private:
  bool find_batch(IncomingMessage& message);

  /// The record of a call, kept beyond the batch.
  struct LastCall {
    bool any = false;
    MessageKey key;
    Envelope envelope;
    std::string name;
  };
  static constexpr std::size_t kRememberedCalls = 64;  // calls

  static bool is_pending(const Incoming& incoming) {
    return incoming.ticket == nullptr && !incoming.arrived.load(std::memory_order_relaxed);
  }
  static bool accepts(const Incoming& incoming, int from) {
    return is_pending(incoming) && (incoming.peer == from || incoming.peer == kAnyRank);
  }

  std::vector<Batch*> posted_;                // posted batches with open messages, in posting order
  std::vector<IncomingMessage*> unexpected_;  // unexpected messages, in sending order
  std::array<LastCall, kRememberedCalls> last_calls_;  // the last calls, by tag
};

/// "rank 2"; on a split followed by the world rank.
std::string rank_name(int rank, int world_rank, bool whole);

}  // namespace tersor::host
