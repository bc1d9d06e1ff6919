// See ranks.h.

#include "tests/gpu/nccl/ranks.h"

#include "bench/processes/rank_processes.h"

#include <cuda_runtime_api.h>
#include <sys/prctl.h>
#include <tersor/error.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <map>

namespace tersor::test {
namespace {

using bench::RankResult;

constexpr const char* kBodyVariable = "TERSOR_NCCL_TEST_BODY";
constexpr std::chrono::seconds kTimeLimit{200};  // less than ctest's limit
constexpr int kKilled = 128 + SIGKILL;

std::map<std::string, RankBody>& bodies() {
  static std::map<std::string, RankBody> all;
  return all;
}

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

void run_body(const std::string& name) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // an aborted test must not leave ranks behind
  const RankIdentity identity = bench::identity_of_process().value();
  require(device_count() > 0, "there is no GPU that can be used");
  cudaSetDevice(bench::device_of(identity.rank, device_count()));
  bodies().at(name)(identity);
}

std::vector<RankResult> results_of(const Registered& body, int ranks,
                                   bench::Variables variables = {}) {
  variables.emplace_back(kBodyVariable, body.name());
  bench::RankProcesses processes({.argv = {bench::own_command().front()},
                                  .ranks = ranks,
                                  .devices = device_count(),
                                  .output = bench::RankOutput::kCaptured,
                                  .variables = std::move(variables)});
  return processes.wait({.all = kTimeLimit, .after_failure = kTimeLimit});
}

std::string text_of(const std::vector<RankResult>& results) {
  std::string text;
  for (std::size_t rank = 0; rank < results.size(); ++rank)
    text += "rank " + std::to_string(rank) + ", status " + std::to_string(results[rank].status) +
            (results[rank].timed_out ? ", out of time" : "") + ":\n" + results[rank].output;
  return text;
}

const Registered kMeet("meet", [](const RankIdentity& identity) { meet(identity); });

std::string missing_library() {
  try {
    nccl_library();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

/// NCCL's message if NCCL requires a GPU per rank. Other failures are left to the tests.
std::string refused_sharing() {
  constexpr int kRanks = 2;
  if (device_count() >= kRanks) return "";
  const auto results = results_of(kMeet, kRanks, {{"NCCL_DEBUG", "WARN"}});
  const std::string said = text_of(results);
  const bool refused = said.find("Duplicate GPU") != std::string::npos ||
                       said.find("invalid usage") != std::string::npos;
  return refused ? "NCCL refuses several ranks on one GPU:\n" + said : "";
}

std::string why_skipped() {
  if (device_count() == 0) return "there is no GPU that can be used";
  if (std::string missing = missing_library(); !missing.empty()) return missing;
  std::cout << device_count() << " GPUs, " << nccl_library() << std::endl;
  return refused_sharing();
}

}  // namespace

Registered::Registered(const char* name, RankBody body) : name_(name) { bodies()[name] = body; }

std::optional<int> run_named_body() {
  const char* name = std::getenv(kBodyVariable);
  if (name == nullptr) return std::nullopt;
  try {
    run_body(name);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << name << ": " << error.what() << std::endl;
    return 1;
  }
}

void require(bool holds, const std::string& what) {
  if (!holds) throw Error(what);
}

NcclCommunicator meet(const RankIdentity& identity, const std::string& name) {
  return NcclCommunicator::from_file(identity.file.string() + name, identity.rank, identity.ranks,
                                     kToMeet);
}

void OverNccl::SetUp() {
  static const std::string why = why_skipped();
  if (!why.empty()) GTEST_SKIP() << why;
}

void OverNccl::expect_passes(const Registered& body, int ranks) {
  const auto results = results_of(body, ranks);
  for (const RankResult& result : results) EXPECT_EQ(result.status, 0) << text_of(results);
}

void OverNccl::expect_all_but_the_last_pass(const Registered& body, int ranks) {
  const auto results = results_of(body, ranks);
  for (const RankResult& result : results) {
    EXPECT_EQ(result.status, &result == &results.back() ? kKilled : 0) << text_of(results);
    EXPECT_FALSE(result.timed_out) << text_of(results);
  }
}

}  // namespace tersor::test
