// Runs tersor-bench inside a test and captures the output.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/commands.h"

namespace tersor::bench {

/// The result of a run.
struct Outcome {
  int code;
  std::string output;
  std::string error;
};

inline Outcome run(std::vector<std::string> arguments) {
  std::vector<const char*> words = {"tersor-bench"};
  for (const std::string& argument : arguments) words.push_back(argument.c_str());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int code = run_program(static_cast<int>(words.size()), words.data());
  std::fflush(nullptr);
  const std::string output = ::testing::internal::GetCapturedStdout();
  return {code, output, ::testing::internal::GetCapturedStderr()};
}

/// A fixture with a folder per test.
class ProgramTest : public ::testing::Test {
 protected:
  using Json = nlohmann::json;

  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("tersor_bench_" + std::to_string(getpid()) + "_" + test->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

  /// Runs with --json added. Returns the records; each must name the command and the machine.
  Json records_of(std::vector<std::string> arguments) const {
    const std::string command = arguments.front(), file = path("records.json");
    arguments.insert(arguments.end(), {"--json", file});
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    std::ifstream stream(file);
    const Json records = stream ? Json::parse(stream) : Json::array();
    EXPECT_FALSE(records.empty());
    for (const Json& record : records) {
      EXPECT_EQ(record.value("benchmark", ""), command);
      for (const char* field : {"command", "machine", "date", "commit"})
        EXPECT_FALSE(record.value(field, "").empty()) << field;
    }
    return records;
  }

  static void expect_fields(const Json& record, std::vector<const char*> fields) {
    for (const char* field : fields) EXPECT_TRUE(record.contains(field)) << field << record;
  }

  std::filesystem::path folder_;
};

}  // namespace tersor::bench
