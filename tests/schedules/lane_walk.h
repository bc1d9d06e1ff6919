// Walks the schedules of thousands of ranks, where ScheduleWalk would take too long: what a rank
// holds of many lanes is one entry, which says whose gradients were added, not in which order. An
// owner's sum is made once and goes on as it is, so that all who end with it hold the same bytes.
#pragma once

#include "tests/schedules/schedule_walk.h"

#include <bitset>
#include <cstddef>
#include <string>
#include <vector>

namespace tersor::testing {

class LaneWalk {
 public:
  static constexpr std::size_t kMostRanks = 4096;

  /// What was encoded, from the gradients of these ranks, the most often encoded one so often.
  struct Frame {
    std::bitset<kMostRanks> from;
    int encodings = 0;
  };

  /// schedules[rank], of an exchange of so many lanes.
  LaneWalk(const std::vector<Schedule>& schedules, std::size_t lanes);

  /// What is wrong, in a sentence; empty: nothing, and all ranks decoded the same frames.
  std::string run();

  /// What all ranks decoded of a lane.
  const Frame& result(std::size_t lane) const { return frames_[result_[lane]]; }
  const Sent& sent(int rank) const { return sent_[static_cast<std::size_t>(rank)]; }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};

  /// Lanes of one frame each that were made alike.
  struct Content {
    LaneRange lanes;
    std::size_t frame;
  };
  using Contents = std::vector<Content>;
  struct Letter {
    std::size_t from;
    Parcel parcel;
  };

  const Step& step(std::size_t rank) const { return schedules_[rank][step_]; }
  std::string fault(std::size_t rank, const std::string& what) const;
  std::string make(std::size_t rank);
  void post(std::size_t rank);
  std::string contents_of(const Letter& letter, Contents& all) const;
  std::string receive(std::size_t rank, Contents& all) const;
  std::string decode(std::size_t rank, const Contents& all);
  std::string run_step();

  const std::vector<Schedule>& schedules_;
  std::size_t step_ = 0;
  std::vector<Frame> frames_;                 ///< the first ones are the ranks' own gradients
  std::vector<std::size_t> reduced_;          ///< by rank: what it made in this step
  std::vector<Contents> kept_;                ///< by rank, in the order of lanes
  std::vector<std::vector<Letter>> letters_;  ///< to each rank, ascending
  std::vector<std::size_t> result_;           ///< by lane: the frame that all decode
  std::vector<int> decodings_;
  std::vector<Sent> sent_;
};

}  // namespace tersor::testing
