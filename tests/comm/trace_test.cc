// Traces of a reducer's events.
#include "comm/collectives/trace.h"
#include "tests/comm/ranks.h"

#include <tersor/reducer.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace tersor::testing {
namespace {

std::size_t times_in(const std::string& text, const std::string& part) {
  std::size_t times = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++times;
  return times;
}

/// A temporary folder, removed with this object.
class Folder {
 public:
  Folder() : path_(std::filesystem::path(::testing::TempDir()) / "tersor-trace") {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string read(const std::string& name) const {
    std::ifstream file(path_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::filesystem::path path_;
};

TEST(Trace, ContainsEventsOfEachStep) {
  constexpr int kSteps = 3;
  const Folder folder;
  run_ranks(2, {}, [&](Transport& transport) {
    Values large(20'000, 1.0f), small(100, 1.0f);
    GradientReducer reducer(
        transport,
        {.codec = "int8+ef", .algorithm = Algorithm::kTwoShot, .trace = folder.file("trace.json")});
    reducer.add("a \"large\" one", large, 100, 200);
    reducer.add("small", small);
    for (int step = 0; step < kSteps; ++step) {
      reducer.ready("small");
      reducer.ready("a \"large\" one");
      reducer.wait();
    }
    if (transport.rank() == 0) reducer.write_trace();
  });
  for (const std::string rank : {"0", "1"}) {
    const std::string text = folder.read("trace.rank" + rank + ".json");
    EXPECT_GT(times_in(text, R"("args":{"name":"a \"large\" one"})"), 0u) << text;
    EXPECT_EQ(times_in(text, R"("name":"ready","ph":"i","pid":)" + rank), 2u * kSteps);
    EXPECT_EQ(times_in(text, R"("name":"wait")"), 1u * kSteps);
    EXPECT_GE(times_in(text, R"("name":"encode")"), 2u * kSteps);
    EXPECT_GE(times_in(text, R"("name":"reduce")"), 1u * kSteps);
    EXPECT_GE(times_in(text, R"("name":"decode")"), 2u * kSteps);
    EXPECT_GE(times_in(text, R"("name":"on its way")"), 1u);
    for (int step = 0; step < kSteps; ++step)
      EXPECT_GT(times_in(text, "\"args\":{\"step\":" + std::to_string(step) + "}}"), 0u) << step;
    EXPECT_EQ(times_in(text, "-"), 0u) << "a time before another";
  }
}

TEST(Trace, UnwritableFileIsRejectedBeforeFirstStep) {
  run_ranks(1, {}, [](Transport& transport) {
    EXPECT_THROW(GradientReducer(transport, {.trace = "/no/such/folder/trace.json"}),
                 InvalidArgumentError);
    EXPECT_THROW(GradientReducer(transport, {}).write_trace(), InvalidArgumentError);
  });
}

TEST(Trace, ConcurrentReducersWriteSeparateFiles) {
  const Folder folder;
  run_ranks(1, {}, [&](Transport& transport) {
    for (int times = 0; times < 2; ++times) {
      const GradientReducer first(transport, {.trace = folder.file("a.b.json")});
      const GradientReducer second(transport, {.trace = folder.file("a.b.json")});
    }
  });
  EXPECT_GT(times_in(folder.read("a.b.rank0.json"), "traceEvents"), 0u);
  EXPECT_GT(times_in(folder.read("a.b.2.rank0.json"), "traceEvents"), 0u);
  EXPECT_EQ(folder.read("a.b.3.rank0.json"), "");
}

TEST(Trace, KeepsTheNewestEvents) {
  TraceRing ring(3);
  const auto steps = [&] {
    std::vector<std::uint32_t> steps;
    ring.for_each([&](const TraceEvent& event) { steps.push_back(event.step); });
    return steps;
  };
  EXPECT_TRUE(steps().empty());
  for (std::uint32_t step = 0; step < 5; ++step) ring.record({.step = step});
  EXPECT_EQ(steps(), (std::vector<std::uint32_t>{2, 3, 4}));
}

}  // namespace
}  // namespace tersor::testing
