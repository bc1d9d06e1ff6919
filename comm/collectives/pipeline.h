// Several chunks under way at once, to overlap encoding, communication and decoding.
//
// On queueing transports (TransportTraits::queues), the host never learns about completion. *Ticks*
// therefore fix the order of all work. Each tick encodes the next chunk, reduces the previous chunk
// and decodes the chunk before. The communication a chunk waits for overlaps with the work of the
// neighbouring chunks.
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

/// Maximum time between two polls without a notification.
inline constexpr std::chrono::milliseconds kMaxWait{50};

/// Runs chunks in the order of submission. Operations may start in different orders on different
/// ranks, because tags identify them, and the values do not depend on the order. Ticks make the
/// order equal on all ranks. Not thread-safe.
class Pipeline {
 public:
  /// Number of chunks under way: enough to hide the computation of a chunk. More chunks cost
  /// memory.
  static constexpr unsigned kWindow = 4;

  explicit Pipeline(ExchangeContext& context);

  /// Allocates buffers for a chunk. Running chunks then allocates nothing while at most `window`
  /// chunks are under way.
  void prepare(const ChunkPlan& chunk, std::size_t window = kWindow);

  /// Queues a chunk, in the same order on all ranks. The chunk must outlive its execution.
  /// `on_done` (may be empty) runs on the driving thread.
  void submit(const ChunkPlan& chunk, std::function<void()> on_done = {});

  bool idle() const { return queue_.empty() && active_.empty(); }
  /// Runs a stage, if possible. Returns false if all chunks wait for messages; with ticks, if no
  /// chunk is left to begin.
  bool advance();
  /// Blocks until progress is possible or `until`.
  void wait_activity(Clock::time_point until);
  /// Runs until all chunks are done. On an error, empties the pipeline and rethrows.
  void finish();
  /// Drops all chunks after an error.
  void drop();

  /// The total time with at least one message under way; 0 with ticks.
  double wire_seconds() const;

 private:
  struct QueuedChunk {
    const ChunkPlan* chunk;
    std::uint32_t tag;
    std::function<void()> on_done;
  };
  struct ActiveChunk {
    ChunkTask* task;
    std::function<void()> on_done;
  };

  bool ticks() const { return context_.queues; }
  void tick();
  void activate_next();
  bool start_next();
  bool may_advance(std::size_t index) const;
  bool advance_where(bool only_decodes);
  void advance_task(std::size_t index);
  void retire(std::size_t index);
  void update_wire_clock();

  ExchangeContext& context_;
  std::vector<std::unique_ptr<ChunkTask>> tasks_;
  std::vector<ChunkTask*> free_;
  std::vector<ActiveChunk> active_;  ///< oldest first
  std::deque<QueuedChunk> queue_;
  bool wire_busy_ = false;
  bool last_has_successor_ = false;  ///< of the last submitted chunk
  std::uint32_t tag_ = 0;            ///< of the last submitted chunk
  Clock::time_point wire_since_;
  double wire_seconds_ = 0;
};

}  // namespace tersor
