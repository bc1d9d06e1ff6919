// Files of tensors to measure with: what is read, what is refused and in which words, and the
// errors that `tersor-bench codecs` finds in them.
#include "bench/tensors.h"

#include <minizip/zip.h>
#include <tersor/codec.h>
#include <tersor/error.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "bench/codecs_options.h"
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

using Member = std::pair<std::string, std::string>;

class Tensors : public ProgramTest {
 protected:
  /// An archive of these members.
  std::string npz(const std::string& name, const std::vector<Member>& members, int method) const {
    const zipFile archive = zipOpen64(path(name).c_str(), APPEND_STATUS_CREATE);
    for (const auto& [member, bytes] : members) {
      const zip_fileinfo no_date = {};
      EXPECT_EQ(zipOpenNewFileInZip64(archive, member.c_str(), &no_date, nullptr, 0, nullptr, 0,
                                      nullptr, method, Z_DEFAULT_COMPRESSION, 1),
                ZIP_OK);
      zipWriteInFileInZip(archive, bytes.data(), static_cast<unsigned>(bytes.size()));
      zipCloseFileInZip(archive);
    }
    EXPECT_EQ(zipClose(archive, nullptr), ZIP_OK);
    return path(name);
  }

  void expect_refused(const std::string& file, const std::string& words) const {
    const Outcome outcome = run({"codecs", "--codec", "none", "--data", file});
    EXPECT_EQ(outcome.code, 2) << words;
    EXPECT_NE(outcome.error.find(words), std::string::npos) << outcome.error << words;
  }
};

TEST_F(Tensors, ArchivesAreReadStoredAndDeflated) {
  const std::vector<float> a = {1, -2, 3}, b(5000, 0.25f);
  for (const int method : {0, Z_DEFLATED}) {
    const auto tensors =
        read_tensors(npz("two.npz", {{"a.npy", npy(a)}, {"layer.b.npy", npy(b)}}, method));
    ASSERT_EQ(tensors.size(), 2u);
    EXPECT_EQ(tensors[0].name, "a");
    EXPECT_EQ(tensors[0].values, a);
    EXPECT_EQ(tensors[1].name, "layer.b");
    EXPECT_EQ(tensors[1].values, b);
    EXPECT_EQ(tensors[1].shape, std::vector<std::size_t>{5000});
  }
}

TEST_F(Tensors, ShapesAreThoseOfMemory) {
  const std::vector<float> six = {1, 2, 3, 4, 5, 6};
  const auto c = read_tensors(write("c.npy", npy(six, "False", "2, 3")));
  EXPECT_EQ(c.front().shape, (std::vector<std::size_t>{2, 3}));
  const auto fortran = read_tensors(write("f.npy", npy(six, "True", "2, 3")));
  EXPECT_EQ(fortran.front().shape, (std::vector<std::size_t>{3, 2}));
}

TEST_F(Tensors, DamagedArchivesAreRefused) {
  const std::string bytes = read_file(npz("good.npz", {{"a.npy", npy({1, 2, 3})}}, 0));
  std::string flipped = bytes;
  flipped[bytes.find(raw<float>({2}))] ^= 1;
  expect_refused(write("cut.npz", bytes.substr(0, bytes.size() - 30)), "is no .npz file");
  expect_refused(write("flipped.npz", flipped), "a.npy: is damaged");
  expect_refused(write("none.npz", "not an archive"), "is no .npz file");
  expect_refused(npz("text.npz", {{"a.txt", "x"}}, 0), "a.txt: is no .npy file");
  expect_refused(npz("bad.npz", {{"a.npy", "x"}}, 0), "a.npy: not a .npy file");
  expect_refused(npz("empty.npz", {{"a.npy", npy({})}}, 0), "\"a\" has no values");
  expect_refused(npz("twice.npz", {{"a.npy", npy({1})}, {"a.npy", npy({2})}}, 0),
                 "\"a\" stands there twice");
  expect_refused(npz("nothing.npz", {}, 0), "or empty");
  expect_refused(path("missing.npz"), "No such file");
}

TEST_F(Tensors, SafetensorsOfThreeTypesAreRead) {
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

TEST_F(Tensors, DamagedSafetensorsAreRefused) {
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
      {"has 8 bytes, its shape says 3", safetensors("{" + entry("w", "F32", 3, 0, 8) + "}", eight)},
      {"begins at byte 4, expected 0", safetensors("{" + entry("w", "F32", 1, 4, 8) + "}", eight)},
      {"begins at byte 0, expected 8",
       safetensors("{" + w + "," + entry("v", "F32", 2, 0, 8) + "}", eight)},
      {"8 bytes of values, of which tensors have 4",
       safetensors("{" + entry("w", "F32", 1, 0, 4) + "}", eight)},
      {"\"w\" stands there twice", safetensors("{" + w + "," + w + "}", eight)},
      {"\"w\" has no values", safetensors("{" + entry("w", "F32", 0, 0, 0) + "}", "")},
      {"not finite", safetensors("{" + w + "}", nan)},
      {"more values than memory",
       safetensors("{\"w\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],"
                   "\"data_offsets\":[0,8]}}",
                   eight)},
  };
  for (const auto& [words, bytes] : damaged) expect_refused(write("bad.safetensors", bytes), words);
  expect_refused(write("bad.pt", eight), "FILE.npy, FILE.npz or FILE.safetensors");
}

TEST_F(Tensors, WhatCannotBeMeasuredIsLeftOutByName) {
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

  const std::string integers = npy({1, 2}).replace(21, 3, "<i4");
  const auto arrays = read_tensors(npz("mixed.npz", {{"i.npy", integers}, {"f.npy", npy({1})}}, 0));
  ASSERT_EQ(arrays.size(), 1u);
  EXPECT_EQ(arrays[0].name, "f");
}

TEST_F(Tensors, WhatIsWrittenIsReadAgain) {
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

TEST_F(Errors, AreThoseOfEachCodecAndTensor) {
  std::vector<float> sine(1024);
  for (std::size_t i = 0; i < sine.size(); ++i) sine[i] = std::sin(static_cast<float>(i));
  write_safetensors(path("g.safetensors"), std::vector<Tensor>{{"sine", sine}, {"one", {2}}});
  const Json records = records_of({"codecs", "--codec", "none", "int8", "int8+ef", "intsum",
                                   "--operation", "error", "--data", path("g.safetensors")});
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

TEST_F(Errors, OfSeveralTensorsStandBeforeTheTimes) {
  write_safetensors(path("g.safetensors"), std::vector<Tensor>{{"a", {1, 2, 3}}, {"b", {4, 5}}});
  const Json records = records_of(
      {"codecs", "--codec", "bf16", "--data", path("g.safetensors"), "--repetitions", "1"});
  EXPECT_EQ(records[0]["operation"], "error");
  EXPECT_EQ(records[1]["tensor"], "b");
  EXPECT_EQ(records[2]["operation"], "encode");
  EXPECT_EQ(records[2]["count"], 5) << "all tensors, one behind the other";
}

TEST(AllCodecs, AreThoseOfTheRegistryWithEveryValueOfTheirOptions) {
  const std::vector<std::string> specs = all_specs();
  for (const CodecInfo& codec : codecs())
    EXPECT_NE(
        make_codec(codec.name)->traits().needs_shape,
        std::ranges::any_of(
            specs, [&](const std::string& spec) { return make_codec(spec)->id() == codec.id; }))
        << codec.name;
  for (const char* spec : {"none", "int4:rounding=stochastic", "topk:density=0.001",
                           "topk:density=0.01,values=bf16", "intsum:lanes=32"})
    EXPECT_EQ(std::ranges::count(specs, spec), 1) << spec;
}

}  // namespace
}  // namespace tersor::bench
