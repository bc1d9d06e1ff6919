// `tersor-bench collectives` on small sizes: the records, and what its check finds.
#include <tersor/error.h>

#include <cstring>
#include <set>
#include <string>

#include "bench/collective_case.h"
#include "tests/bench/program.h"

namespace tersor::bench {
namespace {

class Collectives : public ProgramTest {};

TEST_F(Collectives, AllAreMeasuredByEveryCodec) {
  const Json records = records_of({"collectives", "--codec", "int8", "--min", "64K", "--max", "64K",
                                   "--iterations", "2", "--ranks", "3"});
  std::set<std::string> seen;
  for (const Json& record : records) {
    expect_fields(record, {"collective", "codec", "transport", "link", "ranks", "dtype", "count",
                           "seconds", "algbw", "wire_bytes", "relative_error"});
    EXPECT_EQ(record["count"].get<std::size_t>() % 3, 0u);
    EXPECT_GT(record["wire_bytes"], 0);
    if (record["codec"] == "none") EXPECT_LT(record["relative_error"], 1e-6);
    seen.insert(record["collective"].get<std::string>() + " " + record["codec"].get<std::string>());
  }
  EXPECT_EQ(seen.size(), 4u * 3);
  EXPECT_EQ(seen.size(), records.size());
}

TEST_F(Collectives, SomeCanBeChosen) {
  const Json records = records_of({"collectives", "--collective", "scatter", "--codec", "none",
                                   "--max", "4K", "--iterations", "1", "--link", "20Mbit,1ms"});
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0]["collective"], "scatter");
  EXPECT_GT(records[0]["seconds"], 1e-3);
}

TEST(CollectiveCheck, FindsAWrongResult) {
  const auto fleet = make_thread_fleet(2, {});
  const RankGradients gradients(1 << 12, Dtype::kF32, 2);
  CollectiveKind broken = collective_kinds().front();
  broken.call = [](Transport& transport, ConstValueSpan, ValueSpan output,
                   const CollectiveOptions&) {
    if (transport.rank() == 1) std::memset(output.pointer(), 0, output.bytes());
  };
  EXPECT_THROW(
      measure_collective(*fleet, {.kind = &broken, .codec = "none", .iterations = 1}, gradients),
      Error);
}

}  // namespace
}  // namespace tersor::bench
