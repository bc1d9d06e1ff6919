// Where one rank of one channel takes its messages: pairs what came with the batches that wait for
// it, whatever carried it. Not safe by itself to use from many threads.
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

struct Box;

/// A message from the moment that its receiver knows of it until it is delivered.
struct Letter {
  Envelope envelope;
  MessageKey key;
  int from = 0;                  // rank in the channel
  Block payload;                 // whole once `there`
  bool there = false;            // all of it has come
  Batch* batch = nullptr;        // that waits for it, or null
  Incoming* incoming = nullptr;  // in that batch

  // The world's:
  Wire::Arrival arrival;     // of one that is there, the peer alone
  Box* box = nullptr;        // null once that is gone
  std::size_t cost = 0;      // of the room of those that nobody has asked for
  bool announced = false;    // it waits at its sender,
  std::uint32_t number = 0;  // as the one with this number,
  bool asked = false;        // and is to come
  bool receiving = false;    // its payload is under way
};

/// Whom a rank waits for, and in which call.
struct Awaited {
  std::vector<int> ranks = {};
  std::uint32_t tag = kUnorderedTag;
  Envelope envelope = {};

  /// Whoever is waited for in the call that began first.
  void add(int rank, std::uint32_t of, const Envelope& call);
};

/// Letters and batches meet here by sender and key, each in the order of coming.
class Letterbox {
 public:
  /// Gives a letter to the first one that waits for it; else keeps it until one does. True where
  /// it found one.
  bool claim(Letter& letter);
  /// A batch that waits from now on, but for what `seek` finds.
  void open(Batch& batch) { open_.push_back(&batch); }
  /// Notes that a batch is posted after which nobody takes messages of its key.
  void note_last(const Batch& batch);
  /// How an unclaimed letter differs from what such a batch called; nothing where it may yet be
  /// waited for. `rank` and `sender` are names.
  std::string stray(const Letter& letter, std::string_view rank, std::string_view sender) const;
  /// An unclaimed letter of a key, or null.
  const Letter* unclaimed(const MessageKey& key) const;
  /// The letter that came before it was waited for, now paired with it; null where there is none.
  Letter* seek(Batch& batch, Incoming& incoming);
  /// Parts a batch from its letters, which then wait for another one. Those that found one at once.
  std::vector<Letter*> cancel(Batch& batch);
  /// Nobody gets the letter: neither who waits for it nor who might.
  void reject(Letter& letter);

  /// Whether a paired letter is what is waited for.
  static bool fits(const Letter& letter);
  /// Where it does not: how it differs; `sender` is the name of its rank.
  static std::string misfit(const Letter& letter, std::string_view sender);
  /// Fills in what waited for a letter that is there. True where that closed its batch.
  bool deliver(Letter& letter);
  /// Counts one message less of a batch that is under way. True where that closed it.
  bool close_one(Batch& batch);

  std::span<Batch* const> batches() const { return open_; }
  std::span<Letter* const> unclaimed() const { return unclaimed_; }

  /// What waits for somebody of whom `gone(rank)` is true (a rank, or kAnyRank).
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

  /// Whom this rank waits for under a tag or, first, one before it; or, last, under none.
  Awaited awaited(std::uint32_t tag) const;

 private:
  bool find_batch(Letter& letter);

  /// A call of which nothing is left but what it was.
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

  std::vector<Batch*> open_;              // that still wait for something, in the order of posting
  std::vector<Letter*> unclaimed_;        // that no batch waits for yet, in the order of sending
  std::array<Begun, kRemembered> begun_;  // the last ones, by tag
};

/// "rank 2"; of a split also its number in the whole.
std::string rank_name(int rank, int world_rank, bool whole);

}  // namespace tersor::host
