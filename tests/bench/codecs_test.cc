// `tersor-bench codecs` with small counts: records, accepted data, and errors for wrong results.
#include <tersor/codec.h>
#include <tersor/error.h>

#include <cmath>
#include <set>

#include "bench/compare.h"
#include "bench/samples.h"
#include "tests/bench/program.h"

namespace tersor::bench {
namespace {

class Codecs : public ProgramTest {};
class CodecsRealTime : public ProgramTest {};  // measures wall-clock time

TEST_F(Codecs, RecordsHaveEveryFieldAndAgreeWithThemselves) {
  const Json records = records_of({"codecs", "--codec", "none", "int8", "int4+ef", "--count", "64K",
                                   "1001", "--repetitions", "3", "--threads", "1"});
  std::set<std::string> seen;
  for (const Json& record : records) {
    expect_fields(record, {"codec", "operation", "dtype", "count", "isa", "threads", "seconds",
                           "baseline", "baseline_seconds", "ratio", "payload_bytes",
                           "workspace_bytes", "relative_error"});
    const double seconds = record["seconds"], baseline = record["baseline_seconds"];
    EXPECT_GT(seconds, 0);
    EXPECT_NEAR(record["ratio"].get<double>(), baseline / seconds, 1e-9);
    EXPECT_EQ(record["threads"], 1);
    seen.insert(record["codec"].get<std::string>() + " " + record["operation"].get<std::string>() +
                " " + std::to_string(record["count"].get<std::size_t>()));
  }
  for (const char* wanted :
       {"none encode 65536", "none decode 1001", "int8 encode 65536", "int8 decode-add 1001",
        "int4+ef encode+feedback 65536", "int4 decode 65536", "int8+ef reduce 1001"})
    EXPECT_TRUE(seen.contains(wanted)) << wanted;
  EXPECT_EQ(seen.size(), records.size()) << "a case was measured twice";
}

TEST_F(Codecs, BytesAndErrorsAreThoseOfTheCodec) {
  for (const Json& record : records_of({"codecs", "--codec", "none", "int8", "--operation",
                                        "encode", "--count", "64K", "--repetitions", "1"})) {
    const bool is_none = record["codec"] == "none";
    EXPECT_EQ(record["payload_bytes"], is_none ? 4 * 65536 : 65536 + 1024);
    EXPECT_GT(record["share_ratio"], 0);
    const double error = record["relative_error"];
    if (is_none) {
      EXPECT_EQ(error, 0);
    } else {
      EXPECT_NEAR(error, 7e-3, 5e-4);  // Gaussian, blocks of 256
    }
  }
}

TEST_F(Codecs, WhatHasNoFramesIsNotTimed) {
  for (const Json& record : records_of({"codecs", "--codec", "intsum", "int8", "--operation",
                                        "encode", "--count", "1000", "--repetitions", "1"}))
    EXPECT_EQ(record["codec"], "int8");
  const Outcome alone = run({"codecs", "--codec", "intsum", "--count", "1000"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_NE(alone.error.find("none of the codecs has"), std::string::npos) << alone.error;
}

TEST_F(Codecs, TopkIsTimedWhereItsThresholdMisses) {
  std::set<std::string> seen;
  for (const Json& record : records_of({"codecs", "--codec", "topk:density=0.01+ef", "--count",
                                        "1M", "--repetitions", "1", "--data", "student"})) {
    seen.insert(record["operation"]);
    if (record["operation"] == "reference nth_element") EXPECT_EQ(record["baseline"], "encode");
  }
  for (const char* wanted :
       {"encode", "encode+feedback", "encode+feedback, miss", "encode+feedback, overflow",
        "encode+feedback, far miss", "decode", "decode-add", "reference nth_element"})
    EXPECT_TRUE(seen.contains(wanted)) << wanted;
}

TEST_F(Codecs, WhatTheseValuesDoNotLeadToIsLeftOutByName) {
  const std::vector<std::string> arguments = {"codecs",        "--codec", "topk:density=0.001",
                                              "--count",       "1M",      "--feedback",
                                              "--repetitions", "2",       "--isa",
                                              "portable"};
  std::set<std::string> seen;
  for (const Json& record : records_of(arguments)) seen.insert(record["operation"]);
  EXPECT_FALSE(seen.contains("encode+feedback, miss"));
  EXPECT_TRUE(seen.contains("decode-add")) << "the rest of the run is lost";
  const Outcome outcome = run(arguments);
  const std::string line = "encode+feedback, miss  skipped: ";
  EXPECT_NE(outcome.output.find("topk:density=0.001+ef  " + line), std::string::npos)
      << outcome.output;
  EXPECT_EQ(outcome.output.find(line), outcome.output.rfind(line));
}

TEST_F(CodecsRealTime, TopkIsFasterThanThePlainSelection) {
  const Json records = records_of({"codecs", "--codec", "topk:density=0.01", "--count", "1M",
                                   "--operation", "reference nth_element"});
  EXPECT_LT(records[0]["ratio"].get<double>(), 0.5);
}

TEST_F(Codecs, EachDtypeAndInstructionSetIsTaken) {
  for (const std::string dtype : {"f32", "bf16", "f16"}) {
    const Json records =
        records_of({"codecs", "--codec", "int8", "topk", "--count", "5000", "--repetitions", "1",
                    "--dtype", dtype, "--isa", "portable", "--feedback"});
    for (const Json& record : records) {
      EXPECT_EQ(record["dtype"], dtype);
      EXPECT_EQ(record["isa"], "portable");
    }
  }
}

/// A version 1 file of `values` with a header of this type and shape.
std::string npy_of(const std::vector<float>& values, const std::string& type,
                   const std::string& shape) {
  std::string header =
      "{'descr': '" + type + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.resize((header.size() + 10) / 64 * 64 + 64 - 10, ' ');
  header.back() = '\n';
  std::string file = "\x93NUMPY\x01";
  file += '\0';
  file += static_cast<char>(header.size() % 256);
  file += static_cast<char>(header.size() / 256);
  return file + header +
         std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size());
}

TEST_F(Codecs, AFileOfValuesIsTakenWhole) {
  std::vector<float> values(3 * 500);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  const std::string file = write("gradient.npy", npy_of(values, "<f4", "3, 500"));
  const Json records = records_of(
      {"codecs", "--codec", "bf16", "--operation", "encode", "--data", file, "--repetitions", "1"});
  EXPECT_EQ(records[0]["count"], values.size());
  EXPECT_EQ(run({"codecs", "--codec", "bf16", "--data", file, "--count", "1501"}).code, 2);
}

TEST_F(Codecs, ADamagedFileOfValuesIsRefused) {
  const std::vector<float> values(8, 1.0f);
  const std::string good = npy_of(values, "<f4", "8,");
  const std::vector<float> with_nan = {1.0f, NAN};
  const std::map<std::string, std::string> damaged = {
      {"not a .npy", "PK" + good},
      {"has 31 bytes", good.substr(0, good.size() - 1)},
      {"its shape says 9 of 4 bytes", npy_of(values, "<f4", "9,")},
      {"<c8", npy_of(values, "<c8", "4,")},
      {"cut short", good.substr(0, 20)},
      {"not finite", npy_of(with_nan, "<f4", "2,")},
  };
  for (const auto& [message, bytes] : damaged) {
    const Outcome outcome = run({"codecs", "--codec", "none", "--data", write("bad.npy", bytes)});
    EXPECT_EQ(outcome.code, 2) << message;
    EXPECT_NE(outcome.error.find(message), std::string::npos) << outcome.error;
  }
  EXPECT_EQ(run({"codecs", "--data", path("none.npy")}).code, 2);
}

TEST(Samples, AreSeededAndOfVarianceOne) {
  for (const char* name : {"normal", "laplace"}) {
    const SampleSource source(name);
    const std::size_t count = 200'000;
    const Buffer a = sample_buffer(source, count, Dtype::kF32, 7);
    const Buffer b = sample_buffer(source, count, Dtype::kF32, 7);
    const Buffer c = sample_buffer(source, count, Dtype::kF32, 8);
    EXPECT_TRUE(same_bits(a.span(), b.span()));
    EXPECT_FALSE(same_bits(a.span(), c.span()));
    double squares = 0;
    for (const float value : a.values(count, Dtype::kF32).as<float>()) squares += value * value;
    EXPECT_NEAR(squares / static_cast<double>(count), 1.0, 0.03) << name;
  }
}

TEST(Compare, ErrorsAreRelativeAndNansAreSeen) {
  const std::vector<float> expected = {3.0f, 4.0f};
  EXPECT_EQ(relative_error(expected, std::vector<float>{3.0f, 4.0f}), 0);
  EXPECT_DOUBLE_EQ(relative_error(expected, std::vector<float>{3.0f, 9.0f}), 1.0);
  EXPECT_THROW(
      require_within(relative_error(expected, std::vector<float>{3.0f, NAN}), 1.0, "a NaN"), Error);
  EXPECT_NO_THROW(require_within(0.5, 1.0, "within"));
}

}  // namespace
}  // namespace tersor::bench
