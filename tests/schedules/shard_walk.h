// Executes the schedules of thousands of ranks, too many for ScheduleWalk. The contents of many
// shards on a rank share one entry. An entry records the ranks of the added gradients, but not the
// order. An owner's sum is made once and forwarded unchanged, so all ranks with this sum hold the
// same bytes.
#pragma once

#include "tests/schedules/schedule_walk.h"

#include <bitset>
#include <cstddef>
#include <string>
#include <vector>

namespace tersor::testing {

class ShardWalk {
 public:
  static constexpr std::size_t kMostRanks = 4096;

  /// An encoded sum: the ranks of its gradients, and the maximum number of encodings of a gradient.
  struct Frame {
    std::bitset<kMostRanks> from;
    int encodings = 0;
  };

  /// schedules[rank], for an exchange of `shards` shards.
  ShardWalk(const std::vector<Schedule>& schedules, std::size_t shards);

  /// Returns a sentence about the first error, or "" if all ranks decoded the same frames.
  std::string run();

  /// The frame of a shard decoded by all ranks.
  const Frame& result(std::size_t shard) const { return frames_[result_[shard]]; }
  const Sent& sent(int rank) const { return sent_[static_cast<std::size_t>(rank)]; }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};

  /// Shards with a common origin, each with one frame.
  struct Content {
    ShardRange shards;
    std::size_t frame;
  };
  using Contents = std::vector<Content>;
  struct SentMessage {
    std::size_t from;
    StepMessage message;
  };

  const Step& step(std::size_t rank) const { return schedules_[rank][step_]; }
  std::string fault(std::size_t rank, const std::string& what) const;
  std::string make(std::size_t rank);
  void post(std::size_t rank);
  std::string contents_of(const SentMessage& sent, Contents& all) const;
  std::string receive(std::size_t rank, Contents& all) const;
  std::string decode(std::size_t rank, const Contents& all);
  std::string run_step();

  const std::vector<Schedule>& schedules_;
  std::size_t step_ = 0;
  std::vector<Frame> frames_;                            ///< the ranks' own gradients come first
  std::vector<std::size_t> reduced_;                     ///< by rank: the sum made in this step
  std::vector<Contents> retained_;                       ///< by rank, in the order of shards
  std::vector<std::vector<SentMessage>> sent_messages_;  ///< to each rank, ascending
  std::vector<std::size_t> result_;  ///< by shard: the frame decoded by all ranks
  std::vector<int> decodings_;
  std::vector<Sent> sent_;
};

}  // namespace tersor::testing
