// Tests over NCCL: the test's process starts one process for each rank, itself again, with the name
// of what the rank shall do in its environment.
#pragma once

#include "bench/processes/rank_place.h"

#include <gtest/gtest.h>
#include <tersor/nccl.h>
#include <tersor/stream.h>

#include <chrono>
#include <string>

namespace tersor::test {

using bench::RankPlace;

/// How long a rank waits for the others to come: process and device take seconds to start.
inline constexpr std::chrono::seconds kToMeet{60};

/// What a rank does; it passes where it returns, and says why it does not by what it throws.
using RankBody = void (*)(const RankPlace&);

/// Makes a body known by a name. Only as a static object.
class Registered {
 public:
  Registered(const char* name, RankBody body);
  const char* name() const { return name_; }

 private:
  const char* name_;
};

/// The body that the environment names, as the whole program; nullopt where it names none.
std::optional<int> run_named_body();

/// Throws Error unless it holds.
void require(bool holds, const std::string& what);

/// A communicator of the ranks of a place, who meet by a file of this name beside the place's.
NcclCommunicator meet(const RankPlace& place, const std::string& name = "");

/// Skips its tests by name where there is no GPU or no NCCL, or where NCCL refuses several ranks on
/// one GPU: then it prints what NCCL said.
class OverNccl : public ::testing::Test {
 protected:
  void SetUp() override;

  /// Expects that every rank ends with status 0.
  static void expect_passes(const Registered& body, int ranks);
  /// Expects that the last rank is killed by SIGKILL and all others end with status 0.
  static void expect_all_but_the_last_pass(const Registered& body, int ranks);
};

}  // namespace tersor::test
