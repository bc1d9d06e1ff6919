// See lane_walk.h.
#include "tests/schedules/lane_walk.h"

#include <algorithm>
#include <utility>

namespace tersor::testing {
namespace {

LaneRange lanes_of(const Parcel& parcel) { return {parcel.lane, parcel.lanes}; }

}  // namespace

LaneWalk::LaneWalk(const std::vector<Schedule>& schedules, std::size_t lanes)
    : schedules_(schedules),
      reduced_(schedules.size()),
      kept_(schedules.size()),
      letters_(schedules.size()),
      result_(lanes, kNone),
      decodings_(schedules.size()),
      sent_(schedules.size()) {
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    frames_.push_back({.encodings = 1});
    frames_.back().from.set(rank);
  }
}

std::string LaneWalk::fault(std::size_t rank, const std::string& what) const {
  return "step " + std::to_string(step_) + ", rank " + std::to_string(rank) + ": " + what;
}

// Sums the received contents of the rank's shards.
std::string LaneWalk::make(std::size_t rank) {
  if (step(rank).make != Make::kReduce || step(rank).idle()) return "";
  Frame sum;
  for (const Content& content : kept_[rank]) {
    if (content.lanes != LaneRange{step(rank).first_lane, step(rank).lane_count})
      return fault(rank, "adds other lanes than its own");
    const Frame& frame = frames_[content.frame];
    if ((sum.from & frame.from).any()) return fault(rank, "adds a gradient twice");
    sum.from |= frame.from;
    sum.encodings = std::max(sum.encodings, frame.encodings + 1);
  }
  reduced_[rank] = frames_.size();
  frames_.push_back(sum);
  return "";
}

void LaneWalk::post(std::size_t rank) {
  for (const Parcel& parcel : step(rank).sends) {
    const auto peer = static_cast<std::size_t>(parcel.peer);
    letters_[peer].push_back({rank, parcel});
    if (peer == rank) continue;
    sent_[rank].messages += 1;
    sent_[rank].encoded += static_cast<double>(parcel.lanes) / static_cast<double>(result_.size());
  }
}

// The contents of a message: from the received contents if forwarded, otherwise the sender's own
// shards.
std::string LaneWalk::contents_of(const Letter& letter, Contents& all) const {
  const Make made = step(letter.from).make;
  const std::size_t end = letter.parcel.lane + letter.parcel.lanes;
  if (made != Make::kForward) {
    const Step& own = step(letter.from);
    if (letter.parcel.lane < own.first_lane || end > own.first_lane + own.lane_count)
      return fault(letter.from, "sends what it does not make");
    all.push_back(
        {lanes_of(letter.parcel), made == Make::kEncode ? letter.from : reduced_[letter.from]});
    return "";
  }
  const Contents& kept = kept_[letter.from];
  std::size_t lane = letter.parcel.lane;
  const auto first_lane = [](const Content& content) { return content.lanes.first; };
  auto next = std::ranges::lower_bound(kept, lane, {}, first_lane);
  for (; next != kept.end() && next->lanes.first == lane && lane < end; ++next) {
    all.push_back(*next);
    lane += next->lanes.count;
  }
  return lane == end ? "" : fault(letter.from, "sends on what it does not hold");
}

std::string LaneWalk::receive(std::size_t rank, Contents& all) const {
  const std::vector<Letter>& letters = letters_[rank];
  for (const Parcel& parcel : step(rank).receives) {
    const auto from = static_cast<std::size_t>(parcel.peer);
    const auto letter = std::ranges::lower_bound(letters, from, {}, &Letter::from);
    const std::string peer = "rank " + std::to_string(from);
    if (letter == letters.end() || letter->from != from)
      return fault(rank, "waits in vain for " + peer);
    if (lanes_of(letter->parcel) != lanes_of(parcel))
      return fault(rank, "gets other lanes from " + peer);
    if (std::string what = contents_of(*letter, all); !what.empty()) return what;
  }
  std::ranges::stable_sort(all, {}, [](const Content& content) { return content.lanes.first; });
  return letters.size() == step(rank).receives.size() ? "" : fault(rank, "is sent more");
}

std::string LaneWalk::decode(std::size_t rank, const Contents& all) {
  std::size_t lane = 0;
  ++decodings_[rank];
  for (const Content& content : all) {
    if (content.lanes.first != lane) return fault(rank, "decodes a lane twice, or not at all");
    for (const std::size_t end = lane + content.lanes.count; lane < end; ++lane) {
      if (result_[lane] == kNone) result_[lane] = content.frame;
      if (result_[lane] != content.frame) return fault(rank, "decodes another frame");
    }
  }
  return lane == result_.size() ? "" : fault(rank, "does not decode all lanes");
}

std::string LaneWalk::run_step() {
  const std::size_t ranks = schedules_.size();
  for (auto& letters : letters_) letters.clear();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (std::string what = make(rank); !what.empty()) return what;
    post(rank);
  }
  std::vector<Contents> kept(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    Contents came;
    if (std::string what = receive(rank, came); !what.empty()) return what;
    if (step(rank).take == Take::kKeep || step(rank).idle()) {
      kept[rank] = step(rank).idle() ? std::move(kept_[rank]) : std::move(came);
    } else if (std::string what = decode(rank, came); !what.empty()) {
      return what;
    }
  }
  kept_ = std::move(kept);
  return "";
}

std::string LaneWalk::run() {
  for (std::size_t rank = 0; rank < schedules_.size(); ++rank)
    if (schedules_[rank].size() != schedules_[0].size()) return fault(rank, "has other steps");
  for (step_ = 0; step_ < schedules_[0].size(); ++step_)
    if (std::string what = run_step(); !what.empty()) return what;
  for (std::size_t rank = 0; rank < decodings_.size(); ++rank)
    if (decodings_[rank] != 1) return fault(rank, "does not decode once");
  return "";
}

}  // namespace tersor::testing
