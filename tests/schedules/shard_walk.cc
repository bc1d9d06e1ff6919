// See shard_walk.h.
#include "tests/schedules/shard_walk.h"

#include <algorithm>
#include <utility>

namespace tersor::testing {
namespace {

ShardRange shards_of(const StepMessage& message) { return {message.shard, message.shards}; }

}  // namespace

ShardWalk::ShardWalk(const std::vector<Schedule>& schedules, std::size_t shards)
    : schedules_(schedules),
      reduced_(schedules.size()),
      retained_(schedules.size()),
      sent_messages_(schedules.size()),
      result_(shards, kNone),
      decodings_(schedules.size()),
      sent_(schedules.size()) {
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    frames_.push_back({.encodings = 1});
    frames_.back().from.set(rank);
  }
}

std::string ShardWalk::fault(std::size_t rank, const std::string& what) const {
  return "step " + std::to_string(step_) + ", rank " + std::to_string(rank) + ": " + what;
}

// Sums the received contents of the rank's shards.
std::string ShardWalk::make(std::size_t rank) {
  if (step(rank).on_send != OnSend::kReduce || step(rank).idle()) return "";
  Frame sum;
  for (const Content& content : retained_[rank]) {
    if (content.shards != ShardRange{step(rank).first_shard, step(rank).shard_count})
      return fault(rank, "adds other shards than its own");
    const Frame& frame = frames_[content.frame];
    if ((sum.from & frame.from).any()) return fault(rank, "adds a gradient twice");
    sum.from |= frame.from;
    sum.encodings = std::max(sum.encodings, frame.encodings + 1);
  }
  reduced_[rank] = frames_.size();
  frames_.push_back(sum);
  return "";
}

void ShardWalk::post(std::size_t rank) {
  for (const StepMessage& message : step(rank).sends) {
    const auto peer = static_cast<std::size_t>(message.peer);
    sent_messages_[peer].push_back({rank, message});
    if (peer == rank) continue;
    sent_[rank].messages += 1;
    sent_[rank].encoded +=
        static_cast<double>(message.shards) / static_cast<double>(result_.size());
  }
}

// The contents of a message: from the received contents if forwarded, otherwise the sender's own
// shards.
std::string ShardWalk::contents_of(const SentMessage& sent, Contents& all) const {
  const OnSend made = step(sent.from).on_send;
  const std::size_t end = sent.message.shard + sent.message.shards;
  if (made != OnSend::kForward) {
    const Step& own = step(sent.from);
    if (sent.message.shard < own.first_shard || end > own.first_shard + own.shard_count)
      return fault(sent.from, "sends what it does not make");
    all.push_back(
        {shards_of(sent.message), made == OnSend::kEncode ? sent.from : reduced_[sent.from]});
    return "";
  }
  const Contents& retained = retained_[sent.from];
  std::size_t shard = sent.message.shard;
  const auto first_shard = [](const Content& content) { return content.shards.first; };
  auto next = std::ranges::lower_bound(retained, shard, {}, first_shard);
  for (; next != retained.end() && next->shards.first == shard && shard < end; ++next) {
    all.push_back(*next);
    shard += next->shards.count;
  }
  return shard == end ? "" : fault(sent.from, "sends on what it does not hold");
}

std::string ShardWalk::receive(std::size_t rank, Contents& all) const {
  const std::vector<SentMessage>& all_sent = sent_messages_[rank];
  for (const StepMessage& message : step(rank).receives) {
    const auto from = static_cast<std::size_t>(message.peer);
    const auto sent = std::ranges::lower_bound(all_sent, from, {}, &SentMessage::from);
    const std::string peer = "rank " + std::to_string(from);
    if (sent == all_sent.end() || sent->from != from)
      return fault(rank, "waits in vain for " + peer);
    if (shards_of(sent->message) != shards_of(message))
      return fault(rank, "gets other shards from " + peer);
    if (std::string what = contents_of(*sent, all); !what.empty()) return what;
  }
  std::ranges::stable_sort(all, {}, [](const Content& content) { return content.shards.first; });
  return all_sent.size() == step(rank).receives.size() ? "" : fault(rank, "is sent more");
}

std::string ShardWalk::decode(std::size_t rank, const Contents& all) {
  std::size_t shard = 0;
  ++decodings_[rank];
  for (const Content& content : all) {
    if (content.shards.first != shard) return fault(rank, "decodes a shard twice, or not at all");
    for (const std::size_t end = shard + content.shards.count; shard < end; ++shard) {
      if (result_[shard] == kNone) result_[shard] = content.frame;
      if (result_[shard] != content.frame) return fault(rank, "decodes another frame");
    }
  }
  return shard == result_.size() ? "" : fault(rank, "does not decode all shards");
}

std::string ShardWalk::run_step() {
  const std::size_t ranks = schedules_.size();
  for (auto& all_sent : sent_messages_) all_sent.clear();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (std::string what = make(rank); !what.empty()) return what;
    post(rank);
  }
  std::vector<Contents> retained(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    Contents came;
    if (std::string what = receive(rank, came); !what.empty()) return what;
    if (step(rank).on_receive == OnReceive::kRetain || step(rank).idle()) {
      retained[rank] = step(rank).idle() ? std::move(retained_[rank]) : std::move(came);
    } else if (std::string what = decode(rank, came); !what.empty()) {
      return what;
    }
  }
  retained_ = std::move(retained);
  return "";
}

std::string ShardWalk::run() {
  for (std::size_t rank = 0; rank < schedules_.size(); ++rank)
    if (schedules_[rank].size() != schedules_[0].size()) return fault(rank, "has other steps");
  for (step_ = 0; step_ < schedules_[0].size(); ++step_)
    if (std::string what = run_step(); !what.empty()) return what;
  for (std::size_t rank = 0; rank < decodings_.size(); ++rank)
    if (decodings_[rank] != 1) return fault(rank, "does not decode once");
  return "";
}

}  // namespace tersor::testing
