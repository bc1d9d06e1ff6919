// `tersor-bench collectives` with small sizes: the records, and the detection of wrong results.
#include <tersor/error.h>

#include <cstring>
#include <map>
#include <set>
#include <string>

#include "bench/allreduce/rank.h"
#include "tests/bench/program.h"

namespace tersor::bench {
namespace {

class Collectives : public ProgramTest {};

TEST_F(Collectives, MeasuresAllCollectivesWithEveryCodec) {
  const Json records = records_of({"collectives", "--codec", "int8", "--min", "64K", "--max", "64K",
                                   "--iterations", "2", "--ranks", "3"});
  std::set<std::string> seen;
  for (const Json& record : records) {
    expect_fields(record,
                  {"collective", "codec", "transport", "link", "ranks", "dtype", "count", "seconds",
                   "algbw", "wire_bytes", "relative_error", "algorithm", "columns"});
    EXPECT_EQ(record["count"].get<std::size_t>(), 3u * 5 * 1024) << "shards of whole rows";
    EXPECT_GT(record["wire_bytes"], 0);
    if (record["codec"] == "none") EXPECT_LT(record["relative_error"], 1e-6);
    seen.insert(record["collective"].get<std::string>() + " " + record["codec"].get<std::string>());
  }
  EXPECT_EQ(seen.size(), 6u * 3);
  EXPECT_EQ(seen.size(), records.size());
}

TEST_F(Collectives, MeasuresOnlyChosenCollectives) {
  const Json records = records_of({"collectives", "--collective", "scatter", "--codec", "none",
                                   "--max", "4K", "--iterations", "1", "--link", "20Mbit,1ms"});
  ASSERT_EQ(records.size(), 2u);
  for (const Json& record : records) {
    EXPECT_EQ(record["collective"], "scatter");
    EXPECT_EQ(record["link"], "20Mbit,1ms");
  }
}

TEST_F(Collectives, WireBytesMatchTheTable) {
  const Json records = records_of({"collectives", "--codec", "none", "--min", "1M", "--max", "1M",
                                   "--iterations", "1", "--ranks", "4"});
  const std::map<std::string, double> wholes{{"broadcast", 1},     {"reduce", 1},
                                             {"gather", 0.25},     {"scatter", 0.75},
                                             {"all_to_all", 0.75}, {"send_receive", 1}};
  for (const Json& record : records) {
    const double values = record["codec"] == "none" ? 4 : 2;
    const double bytes =
        record["count"].get<double>() * values * wholes.at(record["collective"].get<std::string>());
    EXPECT_GT(record["wire_bytes"], bytes);
    EXPECT_LT(record["wire_bytes"], bytes * 1.02) << record;
  }
}

TEST_F(Collectives, RowsAreNoLongerThanShards) {
  const Json records =
      records_of({"collectives", "--collective", "all_to_all", "--codec", "none", "--columns",
                  "512", "--min", "1K", "--max", "16K", "--factor", "16", "--iterations", "1"});
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0]["columns"], 64);
  EXPECT_EQ(records[2]["columns"], 512);
}

/// Clears the output of rank 1.
void spoil(const CollectiveCall& call) {
  if (call.transport.rank() == 1) std::memset(call.output.pointer(), 0, call.output.bytes());
}

TEST(CollectiveCheck, DetectsWrongResults) {
  const auto fleet = make_thread_fleet(2, {});
  const RankGradients gradients(1 << 12, Dtype::kF32, 2);
  for (CollectiveKind broken : kCollectiveKinds) {
    if (broken.name == "reduce" || broken.name == "gather") continue;  // rank 1 has no output
    broken.run = spoil;
    EXPECT_THROW(
        measure_collective(*fleet, {.codec = "none", .iterations = 1, .kind = &broken}, gradients),
        Error)
        << broken.name;
  }
}

}  // namespace
}  // namespace tersor::bench
