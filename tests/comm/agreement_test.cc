// Disagreement about options: the errors name every difference on every rank.
#include "tests/comm/random_options.h"
#include "tests/comm/ranks.h"
#include "tests/comm/training.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace tersor::testing {
namespace {

using Change = std::function<void(CollectiveOptions&)>;

/// Rank 1 of three passes other options, or has another count.
std::vector<std::string> with_another(const Change& change, std::size_t count = 70'000) {
  return errors_of(3, [&](Transport& transport) {
    CollectiveOptions options{.codec = "int8"};
    if (transport.rank() == 1) change(options);
    Values values(transport.rank() == 1 ? count : 70'000);
    allreduce(transport, values, options);
  });
}

/// Every rank names the option and both values; the odd rank is rank 1.
void expect_all_say(const std::vector<std::string>& errors, const std::string& option,
                    const std::string& usual, const std::string& odd) {
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    const bool first = errors[rank].find(usual + " on rank 0, ") != std::string::npos;
    EXPECT_TRUE(
        says(errors[rank], first ? option + " is " + usual + " on rank 0, " + odd + " on rank 1"
                                 : option + " is " + odd + " on rank 1, " + usual + " on rank 2"));
  }
}

TEST(Disagreement, NamesTheOptionAndBothValuesOnAllRanks) {
  auto errors = with_another([](CollectiveOptions& options) { options.codec = "int4"; });
  expect_all_say(errors, "codec", "int8", "int4");
  errors = with_another([](CollectiveOptions& options) { options.codec = "topk:density=0.0137"; });
  expect_all_say(errors, "codec", "int8", "topk:density=0.0137");
  errors = with_another([](CollectiveOptions& options) { options.reduction = Reduction::kMean; });
  expect_all_say(errors, "reduction", "sum", "mean");
  errors = with_another([](CollectiveOptions& options) { options.chunk_count = 4096; });
  expect_all_say(errors, "chunk_count", "1048576", "4096");
  errors = with_another([](CollectiveOptions& options) { options.order = 77; });
  expect_all_say(errors, "order in memory", "0", "77");
  errors = with_another([](CollectiveOptions&) {}, 70'001);
  expect_all_say(errors, "count", "70000", "70001");
  errors = with_another([](CollectiveOptions&) {}, 512);  // by another algorithm
  expect_all_say(errors, "count", "70000", "512");
}

TEST(Disagreement, NamesEveryDifference) {
  const auto errors = with_another([](CollectiveOptions& options) {
    options.codec = "topk:density=0.0137";
    options.reduction = Reduction::kMean;
    options.chunk_count = 5000;
  });
  expect_all_say(errors, "codec", "int8", "topk:density=0.0137");
  expect_all_say(errors, "reduction", "sum", "mean");
  expect_all_say(errors, "chunk_count", "1048576", "5000");
}

TEST(Disagreement, NamesRandomOptionDifferencesOnAllRanks) {
  expect_random_pairs_named(1000, [](const auto& body) { run_ranks(3, {}, body); });
}

TEST(Disagreement, NamesMismatchedCodecAcrossHosts) {
  const std::vector<int> hosts = {0, 0, 1, 1};
  const auto errors = errors_of(4, [&](Transport& transport) {
    CollectiveOptions options{
        .codec = "int8", .algorithm = Algorithm::kHierarchical, .hosts = hosts};
    if (transport.rank() == 3) options.codec = "int4";
    Values values(70'000);
    allreduce(transport, values, options);
  });
  for (const std::string& error : errors) EXPECT_TRUE(says(error, "int4 on rank 3"));
}

TEST(Disagreement, NamesTheDtypeAndTheRoot) {
  auto errors = errors_of(2, [](Transport& transport) {
    std::vector<Bf16> halves(5000);
    Values values(5000);
    if (transport.rank() == 0) return allreduce(transport, values, {.codec = "int8"});
    allreduce(transport, halves, {.codec = "int8"});
  });
  for (const std::string& error : errors)
    EXPECT_TRUE(says(error, "dtype is f32 on rank 0, bf16 on rank 1"));
  errors = errors_of(3, [](Transport& transport) {
    Values values(5000), sum(5000);
    tersor::reduce(transport, values, sum, transport.rank() == 1 ? 2 : 0, {.codec = "int8"});
  });
  for (const std::string& error : errors) EXPECT_TRUE(says(error, "2 on rank 1"));
}

using Names = std::vector<std::string>;

/// Each rank adds parameters of these names, of 600 values and more.
std::vector<std::string> of_reducers(const std::vector<Names>& names, const ReducerOptions& odd) {
  return errors_of(static_cast<int>(names.size()), [&](Transport& transport) {
    const auto rank = static_cast<std::size_t>(transport.rank());
    std::vector<Values> gradients;
    GradientReducer reducer(transport, rank == 1 ? odd : ReducerOptions{.codec = "int8"});
    for (const std::string& name : names[rank]) {
      gradients.emplace_back(5000 + 100 * name.size());
      reducer.add(name, gradients.back(), 10, gradients.back().size() / 10);
    }
    for (std::size_t i = 0; i < gradients.size(); ++i) reducer.ready(names[rank][i], gradients[i]);
    reducer.wait();
  });
}

TEST(Disagreement, NamesReducerParametersAndOptions) {
  const ReducerOptions same{.codec = "int8"};
  const Names usual = {"a", "bb", "ccc", "dddd"};
  auto errors = of_reducers({usual, {"a", "ccc", "bb", "dddd"}}, same);
  for (const std::string& error : errors)
    EXPECT_TRUE(says(error, "first item in another order is \"bb\" on rank 0, \"ccc\" on rank 1"));
  errors = of_reducers({usual, {"a", "bb", "dddd"}}, same);
  for (const std::string& error : errors)
    EXPECT_TRUE(says(error, "\"ccc\" is present on rank 0, absent on rank 1"));
  errors = of_reducers({usual, usual}, {.codec = "int4"});
  for (const std::string& error : errors)
    EXPECT_TRUE(says(error, "codec of \"a\" and of 3 more is int8 on rank 0, int4 on rank 1"));
  errors = of_reducers({usual, usual}, {.codec = "int8", .bucket_bytes = 5});
  for (const std::string& error : errors)
    EXPECT_TRUE(says(error, "bucket_bytes is 1048576 on rank 0, 5 on rank 1"));
}

TEST(Disagreement, WorkerReportsServerOptionMismatch) {
  const std::vector<std::size_t> counts = {100, 200};
  const auto errors = errors_of(2, [&](Transport& transport) {
    const std::unique_ptr<Transport> isolated = transport.isolated_channel();
    if (transport.rank() == 0) {
      const Values first(100), second(200);
      ParameterShard shard(std::vector<ConstValueSpan>{first, second}, sgd_update(1.0f),
                           {.push = "int8", .workers = {1}});
      return serve(*isolated, shard, std::chrono::seconds(2));
    }
    const ServerOptions options{.push = "int4", .staleness = 3, .workers = {1}};
    ParameterClient({{isolated.get(), 0}}, counts, options, std::chrono::seconds(20));
  });
  EXPECT_TRUE(says(errors[1], "push is int8 on rank 0, int4 on rank 1"));
  EXPECT_TRUE(says(errors[1], "staleness is 0 on rank 0, 3 on rank 1"));
}

TEST(Agreement, FindsDifferentAndMissingOptions) {
  Agreement own, other;
  own.add("a", 1).add("b", std::string_view("x"));
  other.add("a", 2).add("b", std::string_view("y"));
  EXPECT_EQ(own.signature(), Signature().add(1).add(std::string_view("x")).value());
  const std::vector<Difference> wanted = {
      {.name = "a", .rank = 0, .value = "1", .other_rank = 4, .other_value = "2"},
      {.name = "b", .rank = 0, .value = "x", .other_rank = 4, .other_value = "y"}};
  EXPECT_EQ(own.differences(other, 0, 4), wanted);
  EXPECT_EQ(other.differences(own, 4, 0), wanted);
  other.add("c", 7);
  EXPECT_EQ(
      text_of(own.differences(other, 0, 1)),
      "a is 1 on rank 0, 2 on rank 1; b is x on rank 0, y on rank 1; c is absent on rank 0, 7 "
      "on rank 1");
}

TEST(Agreement, RoundTripsAndRejectsTruncatedBytes) {
  Agreement own;
  own.begin("\"w\"").add("codec", std::string_view("int8")).add("count", 17);
  const std::vector<std::byte> bytes = pack(own.strings());
  EXPECT_EQ(Agreement::parse(unpack(bytes)).options(), own.options());
  for (std::size_t count = 0; count < bytes.size(); ++count)
    EXPECT_THROW(static_cast<void>(Agreement::parse(unpack(std::span(bytes).first(count)))),
                 WireError)
        << count;
}

// The error of a reducer without messages under way has another text.
TEST(Disagreement, IdleReducerKeepsTheDifferencesOfAnotherCall) {
  std::latch are_idle(3);
  run_ranks(3, {}, [&](Transport& transport) {
    const auto own = transport.channel();
    Training run(transport, {.codec = "int8"});
    run.step(0);
    are_idle.arrive_and_wait();
    Values values(5000);
    EXPECT_THROW(allreduce(*own, values, {.codec = own->rank() == 1 ? "int4" : "int8"}),
                 TransportError);
    try {
      for (;;) run.step(1);  // the reducer's thread may not have seen the fault yet
    } catch (const TransportError& error) {
      ASSERT_EQ(error.disagreement().size(), 1u) << error.what();
      EXPECT_EQ(error.disagreement().front().name, "codec");
    }
  });
}

}  // namespace
}  // namespace tersor::testing
