// Tests over NCCL. The test program starts itself once per rank, with the name of the rank's
// function in the environment.
#pragma once

#include "bench/processes/rank_processes.h"

#include <gtest/gtest.h>
#include <tersor/nccl.h>
#include <tersor/stream.h>

#include <chrono>
#include <string>

namespace tersor::test {

using bench::RankIdentity;

/// Timeout of the rendezvous. Starting a process and a device takes seconds.
inline constexpr std::chrono::seconds kToMeet{60};

/// The function of a rank. The rank passes if the function returns, and fails with the text of a
/// thrown exception.
using RankBody = void (*)(const RankIdentity&);

/// Registers a body by name. Use static objects only.
class Registered {
 public:
  Registered(const char* name, RankBody body);
  const char* name() const { return name_; }

 private:
  const char* name_;
};

/// Runs the body named in the environment and returns the exit status. Returns nullopt if the
/// environment names no body.
std::optional<int> run_named_body();

/// Throws Error unless `holds`.
void require(bool holds, const std::string& what);

/// Creates a communicator. The ranks meet through a file with this name next to the place's file.
NcclCommunicator meet(const RankIdentity& identity, const std::string& name = "");

/// Skips the tests by name without a GPU or NCCL, or if NCCL refuses several ranks on one GPU.
/// Prints NCCL's message in the last case.
class OverNccl : public ::testing::Test {
 protected:
  void SetUp() override;

  /// Expects exit status 0 on every rank.
  static void expect_passes(const Registered& body, int ranks);
  /// Expects that the last rank is killed by SIGKILL and all other ranks end with status 0.
  static void expect_all_but_the_last_pass(const Registered& body, int ranks);
};

}  // namespace tersor::test
