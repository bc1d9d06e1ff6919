// `tersor-bench allocate`: output, records and refused arguments.
#include <tersor/allocate.h>

#include <cmath>
#include <map>

#include "bench/common/tensors.h"
#include "tests/bench/program.h"
#include "tests/support/errors.h"

namespace tersor::bench {
namespace {

class Allocate : public ProgramTest {
 protected:
  /// A matrix dominated by the largest values, a matrix of noise, and a vector.
  std::string gradients(const std::string& name, float scale, std::size_t rows = 64) const {
    std::vector<float> spikes(rows * 128, 0.001f), noise(64 * 128), bias(100);
    for (std::size_t i = 0; i < spikes.size(); i += 100) spikes[i] = 30;
    for (std::size_t i = 0; i < noise.size(); ++i)
      noise[i] = scale * std::sin(static_cast<float>(i * i));
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = std::sin(static_cast<float>(i));
    write_safetensors(path(name), std::vector<Tensor>{{"spikes", spikes, {rows, 128}},
                                                      {"noise[0]", noise, {64, 128}},
                                                      {"bias", bias, {100}}});
    return path(name);
  }
};

TEST_F(Allocate, RecordsAddUpToATotalWithinTheBudget) {
  const std::string file = gradients("g.safetensors", 1);
  const Json records = records_of({"allocate", "--gradients", file, "--bits", "3"});
  std::size_t bytes = 0;
  double lost = 0;
  std::map<std::string, std::string> codec_of;
  for (const Json& record : records) {
    expect_fields(record, {"codec", "data", "parameter", "count", "payload_bytes", "energy",
                           "energy_lost", "chosen"});
    EXPECT_EQ(record["data"], "g.safetensors");
    if (record["parameter"].is_null() || !record["chosen"]) continue;
    EXPECT_TRUE(codec_of.emplace(record["parameter"], record["codec"]).second) << record;
    bytes += record["payload_bytes"].get<std::size_t>();
    lost += record["energy_lost"].get<double>();
  }
  ASSERT_EQ(codec_of.size(), 3u);
  EXPECT_TRUE(test::says(codec_of["spikes"], "blocktopk"));
  const auto total = std::ranges::find_if(records, [](const Json& record) {
    return record["parameter"].is_null() && record["chosen"];
  });
  ASSERT_NE(total, records.end());
  EXPECT_EQ((*total)["payload_bytes"], bytes);
  EXPECT_NEAR((*total)["energy_lost"], lost, 1e-9 * lost);
  EXPECT_LE(8.0 * static_cast<double>(bytes) / (2 * 64 * 128 + 100), 3);
}

TEST_F(Allocate, TotalsOfUniformCodecs) {
  const std::string file = gradients("g.safetensors", 1);
  const Json records = records_of({"allocate", "--gradients", file, "--bits", "32"});
  std::map<std::string, std::size_t> bytes_of;
  for (const Json& record : records)
    if (record["parameter"].is_null()) bytes_of.emplace(record["codec"], record["payload_bytes"]);
  EXPECT_EQ(bytes_of.size(), allocation_codecs().size() + 1) << "each, and the allocation";
  EXPECT_EQ(bytes_of["none"], 4u * (2 * 64 * 128 + 100));
  EXPECT_EQ(bytes_of["int8"], 2u * (64 * 128 + 64 * 128 / 64) + 2 * 104) << "a vector as bf16";
}

TEST_F(Allocate, PrintsCodecRules) {
  const Outcome outcome = run({"allocate", "--gradients", gradients("g.safetensors", 1), "--codec",
                               "int8", "none", "--bits", "9"});
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_TRUE(test::says(outcome.output, R"(    .rules = {
        {"spikes", "int8"},
        {"noise\\[0]", "int8"},
        {"bias", "none"},
        {"*", "bf16"},
    })"));
  EXPECT_TRUE(test::says(outcome.output, R"(    rules=[
        ("spikes", "int8"),
        ("noise\\[0]", "int8"),
        ("bias", "none"),
        ("*", "bf16"),
    ])"));
}

TEST_F(Allocate, AddsEnergiesOfSeveralFiles) {
  const std::string one = gradients("1.safetensors", 1), three = gradients("3.safetensors", 3);
  const auto energy_of = [&](std::vector<std::string> files) {
    std::vector<std::string> arguments = {"allocate", "--codec", "int8", "--bits", "9"};
    arguments.push_back("--gradients");
    arguments.insert(arguments.end(), files.begin(), files.end());
    const Json records = records_of(arguments);
    return std::pair(records[1]["energy"].get<double>(), records[1]["energy_lost"].get<double>());
  };
  const auto [energy, lost] = energy_of({one});
  const auto [both, both_lost] = energy_of({one, three});
  EXPECT_NEAR(both, 10 * energy, 1e-6 * both);
  EXPECT_NEAR(both_lost, 10 * lost, 0.1 * both_lost);
}

TEST_F(Allocate, RejectsInvalidArgumentsWithAdvice) {
  const std::string file = gradients("g.safetensors", 1), other = gradients("o.safetensors", 1, 65);
  const auto refused = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "allocate");
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2);
    return outcome.error;
  };
  EXPECT_TRUE(test::says(refused({}), "--gradients is required"));
  EXPECT_TRUE(test::says(refused({"--gradients", "normal"}), "FILE.safetensors"));
  EXPECT_TRUE(test::says(refused({"--gradients", file, other}), "the same names and shapes"));
  EXPECT_TRUE(test::says(refused({"--gradients", file, "--bits", "-1"}), "above 0"));
  EXPECT_TRUE(test::says(refused({"--gradients", file, "--bits", "0.01"}), "give at least"));
  EXPECT_TRUE(test::says(refused({"--gradients", file, "--codec", "int9"}), "int8"));
  EXPECT_TRUE(test::says(refused({"--gradients", file, "--codec", "lowrank:rank=1"}), "\"bias\""));
}

TEST_F(Allocate, ReportsAllZeroTensors) {
  write_safetensors(path("z.safetensors"), std::vector<Tensor>{{"idle", {0, 0, 0}}, {"w", {1}}});
  const Outcome outcome = run({"allocate", "--gradients", path("z.safetensors"), "--bits", "99"});
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_TRUE(test::says(outcome.output, "idle: all values are zero"));
}

}  // namespace
}  // namespace tersor::bench
