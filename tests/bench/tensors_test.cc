// Tensor files for measurements: accepted files, refused files with their error texts, and the
// errors measured by `tersor-bench codecs`.
#include "bench/common/tensors.h"

#include <tersor/codec.h>
#include <tersor/error.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "bench/common/arguments.h"
#include "tests/bench/program.h"

namespace tersor::bench {
namespace {

template <typename T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// A version 1 .npy file of f4.
std::string npy(const std::vector<float>& values, const std::string& order = "False",
                const std::string& shape = "") {
  std::string header = "{'descr': '<f4', 'fortran_order': " + order + ", 'shape': (" +
                       (shape.empty() ? std::to_string(values.size()) + "," : shape) + "), }";
  header.resize(118, ' ');
  return std::string("\x93NUMPY\x01\0\x76\0", 10) + header + raw(values);
}

std::string safetensors(const std::string& header, const std::string& values) {
  return raw(std::vector<std::uint64_t>{header.size()}) + header + values;
}

std::string entry(const std::string& name, const std::string& type, int count, int begin, int end) {
  return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":[1," + std::to_string(count) +
         "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

class Tensors : public ProgramTest {
 protected:
  void expect_refused(const std::string& file, const std::string& words) const {
    const Outcome outcome = run({"codecs", "--codec", "none", "--data", file});
    EXPECT_EQ(outcome.code, 2) << words;
    EXPECT_NE(outcome.error.find(words), std::string::npos) << outcome.error << words;
  }
};

TEST_F(Tensors, ShapesFollowMemoryOrder) {
  const std::vector<float> six = {1, 2, 3, 4, 5, 6};
  const auto c = read_tensors(write("c.npy", npy(six, "False", "2, 3")));
  EXPECT_EQ(c.front().shape, (std::vector<std::size_t>{2, 3}));
  const auto fortran = read_tensors(write("f.npy", npy(six, "True", "2, 3")));
  EXPECT_EQ(fortran.front().shape, (std::vector<std::size_t>{3, 2}));
}

TEST_F(Tensors, RejectsDamagedArrays) {
  const std::vector<float> four = {1, 2, 3, 4};
  const std::string good = npy(four);
  const auto with = [&](const std::string& from, const std::string& to) {
    return std::string(good).replace(good.find(from), from.size(), to);
  };
  const std::map<std::string, std::string> damaged = {
      {"not a .npy file", "text, not an array"},
      {"format version 7", with("NUMPY\x01", "NUMPY\x07")},
      {"the header is cut short", good.substr(0, 40)},
      {"has 12 bytes of values", good.substr(0, good.size() - 4)},
      {"damaged at 'descr'", with("'descr': '", "'descr': [")},
      {"damaged at 'fortran_order'", with("False", "never")},
      {"damaged at 'shape'", npy(four, "False", "-4,")},
      {"damaged at 'shape'", npy(four, "False", "4.0,")},
      {"damaged at 'shape'", npy(four, "False", "2 2")},
      {"damaged at 'shape'", npy(four, "False", "99999999999999999999,")},
      {"more values than memory", npy(four, "False", "4294967296, 4294967296")},
      {"has 16 bytes of values", npy(four, "False", "2, 3")},
      {"has no values", npy({})},
  };
  for (const auto& [words, bytes] : damaged) expect_refused(write("bad.npy", bytes), words);
  expect_refused(path("missing.npy"), "No such file");
  std::filesystem::create_directory(path("folder.npy"));
  expect_refused(path("folder.npy"), "is a folder");
}

/// A version 2 .npy file of four f4 with a possibly long header.
std::string long_npy(const std::string& header) {
  const auto length = static_cast<std::uint32_t>(header.size());
  return std::string("\x93NUMPY\x02\0", 8) + raw(std::vector<std::uint32_t>{length}) + header +
         raw(std::vector<float>{1, 2, 3, 4});
}

TEST_F(Tensors, LongHeadersDoNotExhaustTheStack) {
  const std::string blanks(1 << 20, ' '), letters(1 << 20, '<'), digits(1 << 20, '4');
  const std::string order = "', 'fortran_order': False, 'shape': (";
  const auto read =
      read_tensors(write("b.npy", long_npy("{'descr': '<f4" + order + "4," + blanks + ")}")));
  EXPECT_EQ(read.front().shape, std::vector<std::size_t>{4});
  expect_refused(write("l.npy", long_npy("{'descr': '" + letters + order + "4,)}")), "is of <<<");
  expect_refused(write("d.npy", long_npy("{'descr': '<f4" + order + digits + ")}")), "'shape'");
}

TEST_F(Tensors, ReadsSafetensorsOfThreeTypes) {
  const std::string header = "{\"__metadata__\":{\"format\":\"pt\"}," +
                             entry("h", "F16", 2, 8, 12) + "," + entry("w", "F32", 2, 0, 8) + "," +
                             entry("b", "BF16", 1, 12, 14) + "}  ";
  const std::string values =
      raw(std::vector<float>{1.5f, -2}) + raw(std::vector<std::uint16_t>{0x3c00, 0xc000, 0x4040});
  const auto tensors = read_tensors(write("three.safetensors", safetensors(header, values)));
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name, "w");
  EXPECT_EQ(tensors[0].values, (std::vector<float>{1.5f, -2}));
  EXPECT_EQ(tensors[1].values, (std::vector<float>{1, -2}));
  EXPECT_EQ(tensors[2].name, "b");
  EXPECT_EQ(tensors[2].values, (std::vector<float>{3}));
}

TEST_F(Tensors, RejectsDamagedSafetensors) {
  const std::string eight = raw(std::vector<float>{1, 2});
  const std::string nan = raw(std::vector<float>{1, NAN});
  const std::string w = entry("w", "F32", 2, 0, 8);
  const std::map<std::string, std::string> damaged = {
      {"it is too short", "abc"},
      {"the header is cut short", safetensors("{" + w + "}", "").substr(0, 30)},
      {"the header is damaged", safetensors("{" + w, eight)},
      {"the header is damaged: ", safetensors("{\"w\":{\"dtype\":\"F32\"}}", eight)},
      {"holds no tensors", safetensors("{}", "")},
      {"\"w\" is of I64; F32, BF16 and F16",
       safetensors("{" + entry("w", "I64", 1, 0, 8) + "}", eight)},
      {"ends at byte 8 of 4", safetensors("{" + w + "}", eight.substr(4))},
      {"has 8 bytes of values, its shape says 3",
       safetensors("{" + entry("w", "F32", 3, 0, 8) + "}", eight)},
      {"begins at byte 4, expected 0", safetensors("{" + entry("w", "F32", 1, 4, 8) + "}", eight)},
      {"begins at byte 0, expected 8",
       safetensors("{" + w + "," + entry("v", "F32", 2, 0, 8) + "}", eight)},
      {"8 bytes of values, of which tensors have 4",
       safetensors("{" + entry("w", "F32", 1, 0, 4) + "}", eight)},
      {"\"w\" appears twice", safetensors("{" + w + "," + w + "}", eight)},
      {"\"w\" has no values", safetensors("{" + entry("w", "F32", 0, 0, 0) + "}", "")},
      {"not finite", safetensors("{" + w + "}", nan)},
      {"nested too deeply",
       safetensors("{\"w\":{\"dtype\":\"F32\",\"shape\":" + std::string(100000, '[') +
                       std::string(100000, ']') + ",\"data_offsets\":[0,8]}}",
                   eight)},
      {"it is not an object", safetensors("[" + w.substr(4) + "]", eight)},
      {"1.9 is not a size", safetensors("{\"w\":{\"dtype\":\"F32\",\"shape\":[1.9],"
                                        "\"data_offsets\":[0,4]}}",
                                        eight)},
      {"-2 is not a size", safetensors("{\"w\":{\"dtype\":\"F32\",\"shape\":[2],"
                                       "\"data_offsets\":[-2,8]}}",
                                       eight)},
      {"more values than memory",
       safetensors("{\"w\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],"
                   "\"data_offsets\":[0,8]}}",
                   eight)},
  };
  for (const auto& [words, bytes] : damaged) expect_refused(write("bad.safetensors", bytes), words);
  expect_refused(write("bad.pt", eight), "FILE.npy or FILE.safetensors");
}

TEST_F(Tensors, SkipsAndReportsUnsupportedTensors) {
  const std::string header = "{" + entry("steps", "I64", 1, 0, 8) + "," +
                             entry("w", "F32", 2, 8, 16) + "," + entry("none", "F32", 0, 16, 16) +
                             "," + entry("nan", "F32", 2, 16, 24) + "}";
  const std::string file =
      write("mixed.safetensors", safetensors(header, raw(std::vector<float>{0, 0, 1, 2, 3, NAN})));
  testing::internal::CaptureStderr();
  const auto tensors = read_tensors(file);
  const std::string said = testing::internal::GetCapturedStderr();
  ASSERT_EQ(tensors.size(), 1u);
  EXPECT_EQ(tensors[0].values, (std::vector<float>{1, 2}));
  for (const char* words :
       {"\"steps\" is of I64", "\"none\" has no values", "\"nan\" holds values"})
    EXPECT_NE(said.find(words), std::string::npos) << said << words;
  expect_refused(write("i.npy", npy({1, 2}).replace(21, 3, "<i4")),
                 "is of <i4; F32, BF16 and F16, <f2, <f4 and <f8");
}

TEST_F(Tensors, SafetensorsRoundTrip) {
  const std::vector<Tensor> tensors = {{"layer1.weight", {1, 2, 3, 4, 5, 6}, {3, 1, 2}},
                                       {"layer1.bias", {-0.5f, 1}}};
  write_safetensors(path("w.safetensors"), tensors);
  const auto read = read_tensors(path("w.safetensors"));
  ASSERT_EQ(read.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read[i].name, tensors[i].name);
    EXPECT_EQ(read[i].values, tensors[i].values);
  }
  EXPECT_EQ(read[0].rows(), 3u);
  EXPECT_EQ(read[0].columns(), 2u);
  EXPECT_EQ(read[1].rows(), 2u) << "of a vector whose shape nobody told";
  EXPECT_EQ(read[1].columns(), 0u);
}

using Errors = Tensors;

TEST_F(Errors, RecordsErrorsOfEachCodecAndTensor) {
  std::vector<float> sine(1024);
  for (std::size_t i = 0; i < sine.size(); ++i) sine[i] = std::sin(static_cast<float>(i));
  write_safetensors(path("g.safetensors"), std::vector<Tensor>{{"sine", sine}, {"one", {2}}});
  const Json records = records_of(
      {"codecs", "--codec", "none", "int8", "int8+ef", "intsum", "--data", path("g.safetensors")});
  ASSERT_EQ(records.size(), 2u * 3) << "with feedback a codec loses the same at first";
  for (const Json& record : records) {
    expect_fields(record, {"codec", "operation", "dtype", "count", "data", "tensor", "ranks",
                           "payload_bytes", "bits", "energy_lost", "relative_error", "norm"});
    const double error = record["relative_error"], bits = record["bits"];
    EXPECT_EQ(record["data"], "g.safetensors");
    EXPECT_DOUBLE_EQ(record["energy_lost"], error * error);
    EXPECT_DOUBLE_EQ(bits,
                     8 * record["payload_bytes"].get<double>() / record["count"].get<double>());
    EXPECT_EQ(record["ranks"], record["codec"] == "intsum" ? 8 : 1);
    if (record["codec"] == "none") EXPECT_EQ(error, 0);
  }
  EXPECT_EQ(records[1]["bits"], 8.125);
  EXPECT_EQ(records[2]["bits"], 8.125);
  EXPECT_NEAR(records[1]["relative_error"], 0.5 / 127 / std::sqrt(1.5), 5e-4);
  EXPECT_NEAR(records[2]["relative_error"], 0.5 / 15 / std::sqrt(1.5), 5e-3) << "127 / 8 levels";
  EXPECT_EQ(records[3]["tensor"], "one");
  EXPECT_EQ(records[3]["bits"], 8 * 16) << "of one value a section of 16 bytes";
}

TEST(AllCodecs, SpecsCoverRegistryAndOptionValues) {
  const std::vector<std::string> specs = all_specs();
  for (const CodecInfo& codec : codecs())
    EXPECT_TRUE(std::ranges::any_of(specs, [&](const std::string& spec) {
      return make_codec(spec)->id() == codec.id;
    })) << codec.name;
  for (const char* spec : {"none", "int4:rounding=stochastic", "topk:density=0.001",
                           "topk:density=0.01,values=bf16", "intsum:bits=32"})
    EXPECT_EQ(std::ranges::count(specs, spec), 1) << spec;
}

}  // namespace
}  // namespace tersor::bench
