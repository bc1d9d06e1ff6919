// Several chunks under way at once, so that encoding, wire and decoding overlap.
//
// Where a transport queues (TransportTraits::queues) nobody learns when something is done, so the
// order of all work is fixed by *ticks*: with each, the next chunk encodes, the one before it
// reduces, the one before that decodes. What a chunk waits for on its stream the wire did while the
// chunks around it were worked at.
#pragma once

#include "comm/collectives/chunk.h"

#include <tersor/transport.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace tersor {

/// Without word of what may have moved: between two looks.
inline constexpr std::chrono::milliseconds kLongestWait{50};

/// Drives chunks in the order of submission. The order in which operations start may differ between
/// ranks (tags tell them apart), the values do not depend on it; with ticks it is the same on all.
/// One thread at a time.
class Pipeline {
 public:
  /// `window` chunks under way hide what one of them computes; more cost memory.
  static constexpr unsigned kWindow = 4;

  explicit Pipeline(ExchangeContext& context);

  /// Makes buffers for a chunk, so that running it allocates nothing where not more than
  /// `at_once` chunks are under way.
  void prepare(const ChunkPlan& chunk, std::size_t at_once = kWindow);

  /// Queues a chunk, which outlives the pipeline's work; all ranks in one order. `on_done` (may be
  /// empty) runs on the driving thread.
  void submit(const ChunkPlan& chunk, std::function<void()> on_done = {});

  bool idle() const { return queue_.empty() && active_.empty(); }
  /// Does one stage's work, if any is there to do. Returns false where all waits for the wire; with
  /// ticks, where no chunk is left to begin.
  bool advance();
  /// Blocks until something may have moved, or `until`.
  void wait_activity(Clock::time_point until);
  /// Runs until all is done. Throws what ended it; the pipeline is empty then.
  void finish();
  /// Forgets everything, after an error.
  void drop();

  /// In which at least one message was under way, until now; 0 with ticks.
  double wire_seconds() const;

 private:
  struct Entry {
    const ChunkPlan* chunk;
    std::uint32_t tag;
    std::function<void()> on_done;
  };
  struct Active {
    ChunkTask* task;
    std::function<void()> on_done;
  };

  bool ticks() const { return context_.queues(); }
  void tick();
  void activate_next();
  bool start_next();
  bool in_turn(std::size_t index) const;
  bool advance_where(bool only_decodes);
  void advance_task(std::size_t index);
  void retire(std::size_t index);
  void update_wire_clock();

  ExchangeContext& context_;
  std::vector<std::unique_ptr<ChunkTask>> tasks_;
  std::vector<ChunkTask*> free_;
  std::vector<Active> active_;  ///< oldest first
  std::deque<Entry> queue_;
  bool wire_busy_ = false;
  bool followed_ = false;  ///< the chunk that was submitted last
  std::uint32_t tag_ = 0;  ///< of that one
  Clock::time_point wire_since_;
  double wire_seconds_ = 0;
};

}  // namespace tersor
