// The command line: help, and invalid arguments. Invalid arguments end in exit code 2 and a list of
// valid arguments before any measurement.
#include <tersor/error.h>

#include <map>

#include "bench/common/arguments.h"
#include "tests/bench/program.h"

namespace tersor::bench {
namespace {

const std::map<std::string, std::vector<std::string>> kOptions = {
    {"codecs", {"--codec", "--all-codecs", "--count", "--dtype", "--threads", "--data", "--json"}},
    {"allreduce",
     {"--codec", "--algorithm", "--min", "--max", "--factor", "--ranks", "--transport", "--link",
      "--chunk", "--iterations", "--dtype", "--threads", "--parameters", "--backward", "--json"}},
    {"train",
     {"--codec", "--transport", "--ranks", "--link", "--epochs", "--batch", "--seed", "--data",
      "--json", "--gradients", "--report", "--python"}},
    {"report", {"--output", "--text", "--picture", "--python"}},
};

TEST(Arguments, HelpNamesEveryCommandAndOption) {
  const Outcome program = run({"--help"});
  EXPECT_EQ(program.code, 0);
  for (const auto& [command, options] : kOptions) {
    EXPECT_NE(program.output.find(command), std::string::npos) << command;
    const Outcome outcome = run({command, "--help"});
    EXPECT_EQ(outcome.code, 0);
    for (const std::string& option : options)
      EXPECT_NE(outcome.output.find(option), std::string::npos) << command << " " << option;
  }
}

/// Runs invalid arguments and expects each of `wanted` in the message.
void expect_usage_error(const std::vector<std::string>& arguments,
                        const std::vector<std::string>& wanted) {
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.code, 2) << ::testing::PrintToString(arguments);
  for (const std::string& word : wanted)
    EXPECT_NE(outcome.error.find(word), std::string::npos) << word << " in: " << outcome.error;
}

TEST(Arguments, UnknownOptionErrorListsOptions) {
  for (const auto& [command, options] : kOptions) {
    std::vector<std::string> wanted = options;
    wanted.push_back("--wrong");
    expect_usage_error({command, "--wrong", "1"}, wanted);
  }
}

TEST(Arguments, UnknownCommandErrorListsCommands) {
  expect_usage_error({"wrong"}, {"wrong", "codecs", "allreduce", "train", "report"});
  expect_usage_error({}, {"codecs", "allreduce", "train", "report"});
}

TEST(Arguments, UnknownCodecErrorListsCodecsOrKeys) {
  for (const std::string command : {"codecs", "allreduce", "train"}) {
    expect_usage_error({command, "--codec", "int9"}, {"int9", "none", "bf16", "int8", "topk"});
    expect_usage_error({command, "--codec", "topk:k=3"}, {"\"k\"", "density", "values"});
    expect_usage_error({command, "--codec", "topk:density=2"}, {"density", "2"});
  }
}

TEST(Arguments, InvalidValueErrorListsValidValues) {
  expect_usage_error({"codecs", "--dtype", "f64"}, {"f64", "f32", "bf16", "f16"});
  expect_usage_error({"codecs", "--data", "cauchy"}, {"cauchy", "normal", "laplace", "student"});
  expect_usage_error({"codecs", "--count", "64Q"}, {"--count", "q unit"});
  expect_usage_error({"codecs", "--count", "0"}, {"--count"});
  expect_usage_error({"allreduce", "--link", "fast"}, {"fast", "RATE", "none"});
  expect_usage_error({"allreduce", "--algorithm", "ring"}, {"ring", "two-shot", "one-shot"});
  expect_usage_error({"allreduce", "--transport", "pigeon"}, {"mpi", "inproc"});
  expect_usage_error({"allreduce", "--backward", "1"}, {"--backward", "--parameters"});
  expect_usage_error({"allreduce", "--min", "1M", "--max", "1K"}, {"--min", "--max"});
  expect_usage_error({"train", "--ranks", "0"}, {"--ranks"});
}

TEST(Arguments, OutOfRangeErrorStatesTheRange) {
  expect_usage_error({"codecs", "--count", "0"}, {"--count: 0 is no number above 0\n"});
  expect_usage_error({"codecs", "--threads", "1025"}, {"1025 is no number from 0 to 1024\n"});
  expect_usage_error({"codecs", "--codec", "topk:density=2"},
                     {"it takes numbers above 0, at most 1\n"});
  expect_usage_error({"allreduce", "--chunk", "-1"}, {"-1 is no number above 0\n"});
  expect_usage_error({"predict", "--crowding", "nan"}, {"nan is no number from 0 to 1024\n"});
  expect_usage_error({"predict", "--message", "-5us"}, {"\"-5us\" is no time", "ns, us, ms or s"});
  expect_usage_error({"predict", "--message", "5 parsecs"}, {"is no time"});
}

TEST(Arguments, ParsesTimesWithUnits) {
  const std::map<std::string, std::string> same = {{"5us", "5e-06"}, {"0.5", "0.5"},
                                                   {"2ms", "0.002"}, {"3s", "3"},
                                                   {"0", "0"},       {"8ns", "8e-09"}};
  for (const auto& [time, seconds] : same) EXPECT_EQ(seconds_text(time), seconds);
  for (const char* wrong : {"", "us", "5min", "5us,", "-1", "nan", "inf", "1e999"})
    EXPECT_THROW(seconds_text(wrong), InvalidArgumentError) << wrong;
}

TEST(Arguments, RejectsUnwritableJsonFile) {
  expect_usage_error({"codecs", "--json", "/proc/none/records.json"}, {"/proc/none/records.json"});
}

TEST(Arguments, UnsupportedAlgorithmIsUsageError) {
  const Outcome outcome = run({"allreduce", "--codec", "topk", "--algorithm", "two-shot", "--max",
                               "4K", "--iterations", "1"});
  EXPECT_EQ(outcome.code, 2) << outcome.error;
  EXPECT_NE(outcome.error.find("two-shot"), std::string::npos) << outcome.error;
}

}  // namespace
}  // namespace tersor::bench
