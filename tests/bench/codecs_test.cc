// `tersor-bench codecs`: accepted and refused data. Samples, and comparisons of values.
#include <tersor/error.h>

#include <cmath>
#include <map>

#include "bench/common/compare.h"
#include "bench/common/samples.h"
#include "tests/bench/program.h"

namespace tersor::bench {
namespace {

class Codecs : public ProgramTest {};

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

TEST_F(Codecs, MeasuresAllValuesOfAFile) {
  std::vector<float> values(3 * 500);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  const std::string file = write("gradient.npy", npy_of(values, "<f4", "3, 500"));
  const Json records = records_of({"codecs", "--codec", "bf16", "--data", file});
  EXPECT_EQ(records[0]["count"], values.size());
}

TEST_F(Codecs, RejectsDamagedValueFiles) {
  const std::vector<float> values(8, 1.0f);
  const std::string good = npy_of(values, "<f4", "8,");
  const std::vector<float> with_nan = {1.0f, NAN};
  const std::map<std::string, std::string> damaged = {
      {"not a .npy", "PK" + good},
      {"has 31 bytes", good.substr(0, good.size() - 1)},
      {"its shape says 9 of 4 bytes", npy_of(values, "<f4", "9,")},
      {"its shape says 536870912 of 4 bytes", npy_of(values, "<f4", "536870912,")},  // 2 GiB
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

TEST(Samples, AreSeededWithUnitVariance) {
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

TEST(Compare, ErrorsAreRelativeAndDetectNans) {
  const std::vector<float> expected = {3.0f, 4.0f};
  EXPECT_EQ(relative_error(expected, std::vector<float>{3.0f, 4.0f}), 0);
  EXPECT_DOUBLE_EQ(relative_error(expected, std::vector<float>{3.0f, 9.0f}), 1.0);
  EXPECT_THROW(
      require_within(relative_error(expected, std::vector<float>{3.0f, NAN}), 1.0, "a NaN"), Error);
  EXPECT_NO_THROW(require_within(0.5, 1.0, "within"));
}

}  // namespace
}  // namespace tersor::bench
