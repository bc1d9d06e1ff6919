// A rank that is killed in the middle: the others hear of it within the deadline, and go on without
// it in the same processes.

#include "tests/gpu/nccl/reduction.h"

#include <csignal>

namespace tersor::test {
namespace {

constexpr std::chrono::seconds kDeadline{5}, kSlack{10};
const Reduction kWanted{"int8", Algorithm::kTwoShot, Dtype::kF32, 1'000'001};

/// Calls until the transport says that something is wrong.
void call_until_it_throws(DeviceReduction& on_device, const Stream& stream) {
  constexpr int kMost = 3;
  for (int call = 0; call < kMost; ++call) {
    on_device.call();
    stream.synchronize();
  }
  throw Error("a rank was killed, and nobody noticed");
}

void require_error(DeviceReduction& on_device, const Stream& stream) {
  const auto start = Clock::now();
  try {
    call_until_it_throws(on_device, stream);
  } catch (const TransportError&) {
    require(Clock::now() - start < kDeadline + kSlack, "the error came long after the deadline");
  }
}

void go_on(const RankPlace& place, const Stream& stream) {
  NcclTransport transport(meet(place, ".after"));
  DeviceReduction on_device(kWanted, transport, stream);
  on_device.call();
  on_device.require_bits(reduced_on_cpu(kWanted, place.ranks).front());
}

const Registered kKilled("killed", [](const RankPlace& place) {
  const Stream stream;
  {
    NcclTransport transport(meet(place));
    DeviceReduction on_device(kWanted, transport, stream);
    on_device.options().timeout = kDeadline;
    on_device.call();
    on_device.require_bits(reduced_on_cpu(kWanted, place.ranks).front());
    if (place.rank == place.ranks - 1) std::raise(SIGKILL);
    require_error(on_device, stream);
  }
  go_on({place.rank, place.ranks - 1, place.id_file}, stream);
});

class NcclFailure : public OverNccl {};

TEST_F(NcclFailure, SurvivorsOfAKilledRankGoOnWithoutIt) {
  expect_all_but_the_last_pass(kKilled, 4);
}

}  // namespace
}  // namespace tersor::test
