// The file of codec speeds: kept, refused where it is damaged or foreign, never in the way.
#include "comm/tuning/codec_speed.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace tersor {
namespace {

class CodecSpeedsFile : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("tersor_speeds_" + std::to_string(getpid()) + "_" + test->name());
    file_ = folder_ / "below" / "codec-speeds";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string read() const {
    std::stringstream text;
    text << std::ifstream(file_).rdbuf();
    return text.str();
  }
  void write(const std::string& text) const { std::ofstream(file_) << text; }

  /// The note of a reader of this text, and whether it took the figures that stand there.
  std::string note_for(const std::string& text) const {
    write(text);
    return CodecSpeeds(file_).note();
  }

  std::filesystem::path folder_, file_;
};

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const auto at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}

TEST_F(CodecSpeedsFile, KeepsWhatWasMeasured) {
  CodecSpeeds first(file_);
  EXPECT_NE(first.note().find("measured now"), std::string::npos) << first.note();
  const CodecCosts measured = first.costs("int8", Dtype::kF32);
  EXPECT_GT(measured.encode.per_value, 0);
  EXPECT_GT(measured.reduce.per_value, 0);
  EXPECT_EQ(measured.encode_native.per_value, 0) << "int8 does not add on the wire";
  CodecSpeeds second(file_);
  EXPECT_NE(second.note().find("from " + file_.string()), std::string::npos) << second.note();
  const double again = second.costs("int8", Dtype::kF32).encode.per_value;
  EXPECT_NEAR(again, measured.encode.per_value, 1e-4 * again);
}

TEST_F(CodecSpeedsFile, ADamagedOrForeignOneIsMeasuredAnewAndRewritten) {
  CodecSpeeds(file_).costs("none", Dtype::kF32);
  const std::string good = read();
  EXPECT_NE(note_for(good).find("codec speeds from"), std::string::npos);
  const std::map<std::string, std::string> broken = {
      {"another machine", replaced(good, machine_line(), "Z80, portable")},
      {"another version", replaced(good, "version 1", "version 2")},
      {"damaged", replaced(good, "none f32 ", "none f32 -1")},  // the figure may be 0
  };
  for (const auto& [word, text] : broken)
    EXPECT_NE(note_for(text).find(word), std::string::npos) << note_for(text);
  for (const char* word : {"nan", "inf", "x", "1e300"})
    EXPECT_NE(note_for(replaced(good, "none f32", "none f32 " + std::string(word))).find("damaged"),
              std::string::npos);
  for (std::size_t bytes = 0; bytes + 1 < good.size(); ++bytes)
    ASSERT_NE(note_for(good.substr(0, bytes)).find("measured anew"), std::string::npos) << bytes;
  write("\xff\x00garbage");
  CodecSpeeds(file_).costs("none", Dtype::kF32);
  EXPECT_NE(CodecSpeeds(file_).note().find("codec speeds from"), std::string::npos);
}

TEST_F(CodecSpeedsFile, AnUnwritablePlaceIsNoError) {
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ / "below") << "a file where the folder should be";
  CodecSpeeds speeds(file_);
  EXPECT_GT(speeds.costs("none", Dtype::kF32).encode.per_value, 0);
  EXPECT_GT(CodecSpeeds({}).costs("none", Dtype::kBf16).decode.per_value, 0);
}

TEST(CodecSpeedsPath, OptionThenEnvironmentThenHome) {
  setenv("XDG_CACHE_HOME", "/cache", 1);
  unsetenv("TERSOR_CODEC_SPEEDS");
  EXPECT_EQ(speeds_path(""), "/cache/tersor/codec-speeds");
  EXPECT_EQ(speeds_path("/own"), "/own");
  EXPECT_EQ(speeds_path("none"), "");
  setenv("TERSOR_CODEC_SPEEDS", "/shipped", 1);
  EXPECT_EQ(speeds_path(""), "/shipped");
  unsetenv("TERSOR_CODEC_SPEEDS");
  setenv("XDG_CACHE_HOME", "", 1);
  setenv("HOME", "/home/somebody", 1);
  EXPECT_EQ(speeds_path(""), "/home/somebody/.cache/tersor/codec-speeds");
}

TEST(MeasureCodec, LargerWorkTakesLonger) {
  for (const char* spec : {"none", "bf16", "int8", "int4+ef", "topk:density=0.01+ef"}) {
    const CodecCosts costs = measure_codec(spec, Dtype::kF32);
    EXPECT_GT(costs.encode.per_value, 0) << spec;
    EXPECT_GT(costs.decode.per_value, 0) << spec;
    EXPECT_LT(costs.encode.seconds(1 << 20), 1.0) << spec;
  }
  EXPECT_GT(measure_adding(), 0);
}

}  // namespace
}  // namespace tersor
