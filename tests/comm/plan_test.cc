// Plans of all ranks, made without a transport: every sent message has a receiver that expects
// exactly this message.
#include "comm/collectives/choose.h"
#include "comm/collectives/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

namespace tersor::testing {
namespace {

struct PlannedCall {
  std::string codec;
  Algorithm algorithm;
  std::vector<int> dims;
};

/// The chunks of an allreduce on each rank.
using RankPlans = std::vector<std::vector<ChunkPlan>>;

RankPlans plans_of(const PlannedCall& call, std::size_t count, int ranks, std::size_t chunk_count) {
  const std::vector<ExchangeParameter> params = {
      {.parameter = 3, .count = count, .codec = make_codec(call.codec)}};
  RankPlans plans;
  for (int rank = 0; rank < ranks; ++rank) {
    const ExchangeShape shape{
        .ranks = {.rank = rank, .count = ranks, .grid = Grid::of(call.dims, ranks)},
        .params = params};
    plans.push_back(Planner(shape).cut(0, call.algorithm, chunk_count));
  }
  return plans;
}

/// A message between two ranks: chunk, step, sender, receiver and capacity.
using PlannedMessage = std::tuple<std::size_t, std::size_t, int, int, std::size_t>;

std::size_t capacity_of(const ChunkPlan& chunk, const Step& step, const StepMessage& message) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < message.shards; ++i)
    bytes += message_bytes(chunk.shards[message.shard + i * message.stride], step);
  return bytes;
}

std::vector<PlannedMessage> messages_of(const RankPlans& plans, bool sent) {
  std::vector<PlannedMessage> all;
  for (int rank = 0; rank < static_cast<int>(plans.size()); ++rank) {
    const std::vector<ChunkPlan>& chunks = plans[static_cast<std::size_t>(rank)];
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk)
      for (std::size_t step = 0; step < chunks[chunk].schedule->size(); ++step) {
        const Step& of = (*chunks[chunk].schedule)[step];
        for (const StepMessage& message : sent ? of.sends : of.receives)
          if (message.peer != rank)
            all.emplace_back(chunk, step, sent ? rank : message.peer, sent ? message.peer : rank,
                             capacity_of(chunks[chunk], of, message));
      }
  }
  std::ranges::sort(all);
  return all;
}

TEST(Plan, EverySentMessageIsExpected) {
  const std::vector<PlannedCall> calls = {{"int8", Algorithm::kOneShot, {}},
                                          {"int8", Algorithm::kTwoShot, {}},
                                          {"int4", Algorithm::kTwoShot, {2, 2}},
                                          {"int4:result=int8", Algorithm::kTwoShot, {}},
                                          {"int4:result=int8", Algorithm::kTwoShot, {2, 2}},
                                          {"topk", Algorithm::kOneShot, {}},
                                          {"blocktopk", Algorithm::kTwoShot, {}}};
  std::size_t compared = 0;
  for (const PlannedCall& call : calls)
    for (const int ranks : {2, 3, 4, 8})
      for (const std::size_t count : {0, 1, 511, 512, 513, 20'000}) {
        if (call.dims.size() > 1 && ranks != 4) continue;
        SCOPED_TRACE(call.codec + ", " + std::to_string(ranks) + " ranks, " +
                     std::to_string(count) + " values");
        const RankPlans plans = plans_of(call, count, ranks, 4096);
        for (const auto& chunks : plans) EXPECT_EQ(chunks.size(), plans.front().size());
        const std::vector<PlannedMessage> sent = messages_of(plans, true);
        EXPECT_EQ(sent, messages_of(plans, false));
        compared += sent.size();
      }
  EXPECT_GT(compared, 1000u);
}

TEST(Plan, OwnedCountsSumToParameterCount) {
  for (const int ranks : {2, 3, 8}) {
    const std::vector<ExchangeParameter> params = {
        {.parameter = 1, .count = 10'000, .codec = make_codec("int8")}};
    std::size_t owned = 0;
    for (int rank = 0; rank < ranks; ++rank)
      owned += state_ranges({.rank = rank, .count = ranks, .grid = Grid(ranks)}, params[0], rank)
                   .owned.count();
    EXPECT_EQ(owned, params[0].count) << ranks;
  }
}

}  // namespace
}  // namespace tersor::testing
