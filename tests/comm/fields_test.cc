// Ranks that call otherwise hear in which field they differ, and both values.
#include "comm/collectives/fields.h"
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace tersor::testing {
namespace {

/// What ranks say whose calls end in TransportError, by rank.
std::vector<std::string> errors_of(int ranks, const std::function<void(Transport&)>& call) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  run_ranks(ranks, {}, [&](Transport& transport) {
    try {
      call(transport);
    } catch (const TransportError& error) {
      errors[static_cast<std::size_t>(transport.rank())] = error.what();
    }
  });
  return errors;
}

void expect_says(const std::string& error, const std::string& words) {
  EXPECT_NE(error.find(words), std::string::npos) << error << "\nlacks: " << words;
}

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

TEST(Fields, TellWhichFieldDiffersAndBothValues) {
  auto errors = with_another([](CollectiveOptions& options) { options.codec = "int4"; });
  expect_says(errors[0], "codec is int4 there, int8 on this rank");
  expect_says(errors[1], "codec is int8 there, int4 on this rank");
  errors = with_another([](CollectiveOptions& options) { options.codec = "topk:density=0.01"; });
  expect_says(errors[1], "codec is int8 there, topk:density=0.01 on this rank");
  errors = with_another([](CollectiveOptions& options) { options.reduction = Reduction::kMean; });
  expect_says(errors[2], "reduction is mean there, sum on this rank");
  errors = with_another([](CollectiveOptions& options) { options.chunk_count = 4096; });
  expect_says(errors[1], "chunk_count is 1048576 there, 4096 on this rank");
  errors = with_another([](CollectiveOptions& options) { options.order = 77; });
  expect_says(errors[0], "order in memory is 77 there, 0 on this rank");
  expect_says(errors[1], "order in memory is 0 there, 77 on this rank");
  errors = with_another([](CollectiveOptions&) {}, 70'001);
  expect_says(errors[0], "count is 70001 there, 70000 on this rank");
  errors = with_another([](CollectiveOptions&) {}, 512);  // which goes another way
  expect_says(errors[1], "count is 70000 there, 512 on this rank");
}

TEST(Fields, TellItBeforeHostsAreSplit) {
  const std::vector<int> hosts = {0, 0, 1, 1};
  const auto errors = errors_of(4, [&](Transport& transport) {
    CollectiveOptions options{
        .codec = "int8", .algorithm = Algorithm::kHierarchical, .hosts = hosts};
    if (transport.rank() == 3) options.codec = "int4";
    Values values(70'000);
    allreduce(transport, values, options);
  });
  expect_says(errors[3], "codec is int8 there, int4 on this rank");
}

TEST(Fields, TellAnotherDtypeAndRoot) {
  auto errors = errors_of(2, [](Transport& transport) {
    std::vector<Bf16> halves(5000);
    Values values(5000);
    if (transport.rank() == 0) return allreduce(transport, values, {.codec = "int8"});
    allreduce(transport, halves, {.codec = "int8"});
  });
  expect_says(errors[0], "dtype is bf16 there, f32 on this rank");
  errors = errors_of(3, [](Transport& transport) {
    Values values(5000), sum(5000);
    tersor::reduce(transport, values, sum, transport.rank() == 1 ? 2 : 0, {.codec = "int8"});
  });
  expect_says(errors[1], "root is 0 there, 2 on this rank");
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

TEST(Fields, TellHowReducersDiffer) {
  const ReducerOptions same{.codec = "int8"};
  const Names usual = {"a", "bb", "ccc", "dddd"};
  auto errors = of_reducers({usual, {"a", "ccc", "bb", "dddd"}}, same);
  expect_says(errors[0], "\"ccc\" comes before \"bb\" there, behind it on this rank");
  expect_says(errors[1], "\"bb\" comes before \"ccc\" there, behind it on this rank");
  errors = of_reducers({usual, {"a", "bb", "dddd"}}, same);
  expect_says(errors[0], "\"ccc\" is missing there");
  errors = of_reducers({usual, usual}, {.codec = "int4"});
  expect_says(errors[0], "codec of \"a\" is int4 there, int8 on this rank");
  errors = of_reducers({usual, usual}, {.codec = "int8", .bucket_bytes = 5});
  expect_says(errors[1], "bucket_bytes is 1048576 there, 5 on this rank");
}

TEST(Fields, SayNothingWhereSeveralDiffer) {
  Fields own, other;
  own.add("a", 1).add("b", std::string_view("x"));
  other.add("a", 2).add("b", std::string_view("y"));
  EXPECT_EQ(own.difference(other.signature()), "");
  EXPECT_EQ(own.signature(), Signature().add(1).add(std::string_view("x")).value());
  EXPECT_EQ(explained("nothing of signatures", own), "nothing of signatures");
}

}  // namespace
}  // namespace tersor::testing
