// `tersor-bench train` and `report` on a tiny set of images.
#include <cstdlib>

#include "bench/common/tensors.h"
#include "tests/bench/program.h"

namespace tersor::bench {
namespace {

class Train : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    write_images("train-images-idx3-ubyte", 320, 1);
    write_labels("train-labels-idx1-ubyte", 320);
    write_images("t10k-images-idx3-ubyte", 100, 2);
    write_labels("t10k-labels-idx1-ubyte", 100);
  }

  std::vector<std::string> tiny(std::vector<std::string> more) const {
    std::vector<std::string> all = {"train",  "--data", folder_.string(), "--epochs", "2",
                                    "--link", "none",   "--batch",        "8"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

 private:
  static std::string header(char dimensions, const std::vector<std::uint32_t>& lengths) {
    std::string bytes = {0, 0, 8, dimensions};
    for (const std::uint32_t length : lengths)
      for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(length >> shift);
    return bytes;
  }

  /// Images of class i % 4: one bright quarter, and noise.
  void write_images(const std::string& name, std::uint32_t count, std::uint32_t noise) const {
    std::string bytes = header(3, {count, 4, 4});
    for (std::uint32_t image = 0; image < count; ++image)
      for (std::uint32_t pixel = 0; pixel < 16; ++pixel) {
        noise = noise * 1664525 + 1013904223;
        bytes += static_cast<char>(pixel / 4 == image % 4 ? 200 : noise >> 26);
      }
    write(name, bytes);
  }

  void write_labels(const std::string& name, std::uint32_t count) const {
    std::string bytes = header(1, {count});
    for (std::uint32_t image = 0; image < count; ++image) bytes += static_cast<char>(image % 4);
    write(name, bytes);
  }
};

TEST_F(Train, RecordsContainAllFieldsPerEpoch) {
  const Json records =
      records_of(tiny({"--codec", "none", "topk:density=0.1+ef", "--seed", "1", "2"}));
  ASSERT_EQ(records.size(), 2u * 2 * 2);
  for (const Json& record : records) {
    expect_fields(record, {"codec", "seed", "ranks", "link", "epoch", "step_seconds", "seconds",
                           "accuracy", "loss", "wire_bytes", "compute_seconds", "encode_seconds",
                           "wire_seconds", "decode_seconds", "exposed_seconds"});
    const double step = record["step_seconds"], compute = record["compute_seconds"];
    EXPECT_NEAR(step, compute + record["exposed_seconds"].get<double>(), 1e-9);
    EXPECT_GE(record["accuracy"], 0.0);
    EXPECT_LE(record["accuracy"], 1.0);
    EXPECT_GT(record["wire_bytes"], 0.0);
  }
  EXPECT_EQ(records[0]["epoch"], 1);
  EXPECT_EQ(records[2]["epoch"], 2);
  EXPECT_GT(records[2]["seconds"], records[0]["seconds"]);
  EXPECT_LT(records[1]["wire_bytes"], records[0]["wire_bytes"]) << "topk against none";
}

TEST_F(Train, InterleavedCodecsMatchSeparateTraining) {
  const std::vector<std::string> codecs = {"none", "int8:rounding=stochastic",
                                           "topk:density=0.1+ef"};
  const auto train = [&](const std::vector<std::string>& of) {
    std::vector<std::string> more = {"--epochs", "3", "--gradients", path("g.safetensors"),
                                     "--codec"};
    more.insert(more.end(), of.begin(), of.end());
    const Json records = records_of(tiny(more));
    return std::pair(records, read_tensors(path("g.safetensors")));
  };
  const auto [together, last] = train(codecs);
  ASSERT_EQ(together.size(), 3 * codecs.size());
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    const auto [alone, gradients] = train({codecs[i]});
    for (std::size_t epoch = 0; epoch < 3; ++epoch) {
      const Json& one = together[epoch * codecs.size() + i];
      for (const char* field : {"codec", "epoch", "accuracy", "loss", "wire_bytes"})
        EXPECT_EQ(one[field], alone[epoch][field]) << field << " of " << one;
    }
    if (i + 1 < codecs.size()) continue;
    ASSERT_EQ(last.size(), gradients.size());
    for (std::size_t k = 0; k < last.size(); ++k) EXPECT_EQ(last[k].values, gradients[k].values);
  }
}

TEST_F(Train, LearnsReproducibly) {
  const std::vector<std::string> arguments = tiny({"--codec", "int8", "--ranks", "2"});
  const Json first = records_of(arguments), second = records_of(arguments);
  EXPECT_GT(first[1]["accuracy"], 0.9) << "four bright quarters are easily told apart";
  for (const char* field : {"accuracy", "loss", "wire_bytes"})
    EXPECT_EQ(first[1][field], second[1][field]) << field;
}

TEST_F(Train, WritesGradientsReproducibly) {
  const auto gradients = [&](const std::string& codec, const std::string& ranks) {
    records_of(tiny({"--codec", codec, "--ranks", ranks, "--gradients", path("g.safetensors")}));
    return read_tensors(path("g.safetensors"));
  };
  const auto of_one = gradients("none", "1"), again = gradients("none", "1");
  ASSERT_EQ(of_one.size(), again.size());
  EXPECT_EQ(of_one.back().name, "layer1.bias");
  for (std::size_t i = 0; i < of_one.size(); ++i) EXPECT_EQ(of_one[i].values, again[i].values);
  EXPECT_EQ(run(tiny({"--gradients", "g.npy"})).code, 2);
}

TEST_F(Train, TheTableShowsAllCodecs) {
  const Outcome outcome = run(tiny({"--codec", "none", "int4+ef"}));
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  for (const char* word : {"epoch  2 of 2", "accuracy", "exposed", "\nnone ", "\nint4+ef "})
    EXPECT_NE(outcome.output.find(word), std::string::npos) << word << outcome.output;
}

TEST_F(Train, MissingDataErrorNamesThePackage) {
  const Outcome outcome = run({"train", "--data", path("nowhere")});
  EXPECT_NE(outcome.code, 0);
  EXPECT_NE(outcome.error.find("dataset-fashion-mnist"), std::string::npos) << outcome.error;
}

/// True if a Python with matplotlib is available for the report.
bool can_draw() {
  return std::system("python3 -c 'import matplotlib' 2>/dev/null") == 0 ||
         std::system("/usr/bin/python3 -c 'import matplotlib' 2>/dev/null") == 0;
}

TEST_F(Train, RejectsUnwritableReportFolderBeforeTraining) {
  if (!can_draw()) GTEST_SKIP() << "matplotlib is missing: apt-get install python3-matplotlib";
  const std::string folder = write("file", "in the way") + "/report";
  const Outcome outcome = run(tiny({"--report", folder}));
  EXPECT_NE(outcome.code, 0);
  EXPECT_EQ(outcome.output.find("epoch"), std::string::npos) << "it trained";
  EXPECT_NE(outcome.error.find(folder), std::string::npos) << outcome.error;
}

TEST_F(Train, WritesReportAfterTraining) {
  if (!can_draw()) GTEST_SKIP() << "matplotlib is missing: apt-get install python3-matplotlib";
  const Outcome outcome = run(tiny({"--codec", "none", "int8", "--report", path("report")}));
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_TRUE(std::filesystem::exists(path("report/index.html")));
  const Outcome again = run({"report", path("report/train.json"), "-o", path("again")});
  EXPECT_EQ(again.code, 0) << again.error;
  EXPECT_TRUE(std::filesystem::exists(path("again/index.html")));
  EXPECT_NE(again.output.find("index.html"), std::string::npos);
}

TEST_F(Train, ReportRejectsMissingOrEmptyRecords) {
  EXPECT_EQ(run({"report", path("none.json"), "-o", path("report")}).code, 2);
  EXPECT_EQ(run({"report", write("records.json", "[]")}).code, 2);
}

}  // namespace
}  // namespace tersor::bench
