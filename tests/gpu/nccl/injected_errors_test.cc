// Injected CUDA errors on one rank over NCCL. The call of this rank throws. The other rank's call
// ends by the deadline, or with the result of a bad frame. Both ranks continue in the same
// processes.

#include "tests/gpu/hooks.h"
#include "tests/gpu/nccl/reduction.h"

namespace tersor::test {
namespace {

constexpr std::chrono::seconds kDeadline{1};
constexpr std::size_t kTries = 16;
constexpr int kCalls = 2;
const Case kWanted{Algorithm::kTwoShot, "int8+ef", 3001};

/// A communicator on this rank. The first call prepares resources reused by the second call.
class Run {
 public:
  Run(const RankIdentity& identity, std::size_t number)
      : transport_(make_nccl_transport(meet(identity, "." + std::to_string(number)))),
        on_device_(kWanted, *transport_, {Memory::kDevice, stream_.view()}) {
    on_device_.options().timeout = kDeadline;
  }

  void call() {
    for (int i = 0; i < kCalls; ++i) {
      on_device_.call();
      ++called_;
      stream_.synchronize();
    }
  }
  /// The values of the last successful call may be NaN, but never the values of another call.
  void require_bits_or_nan(const std::vector<Values>& expected) {
    const Values& wanted = expected[called_ - 1];
    try {
      on_device_.require_bits(wanted);
    } catch (const Error&) {
      on_device_.require_bits_or_nan(wanted);
    }
  }
  void require_bits(const Values& expected) { on_device_.require_bits(expected); }

 private:
  const std::unique_ptr<Transport> transport_;
  const Stream stream_;
  RepeatedAllreduce on_device_;
  std::size_t called_ = 0;
};

/// True if the call threw an exception allowed after a device error or another rank's error.
bool throws(Run& run) {
  try {
    run.call();
    return false;
  } catch (const CudaError&) {
  } catch (const OutOfMemoryError&) {
  } catch (const TransportError&) {
  } catch (const WireError&) {
  }
  return true;
}

std::size_t calls_of_good_run(Run& run) {
  const std::size_t before = hooks().calls("any");
  run.call();
  return hooks().calls("any") - before;
}

/// If the last use of a block cannot be recorded, the block is not reused: see ~QueuedTransfer.
bool may_be_swallowed(const std::string& function) {
  return is_silent(function) || function == "cudaEventRecord";
}

/// Returns true if the run threw an exception.
bool fail_on_first_rank(const RankIdentity& identity, std::size_t call, cudaError_t error,
                        Run& run) {
  if (identity.rank == 0) hooks().fail_call(call, error);
  const bool has_thrown = throws(run);
  const std::string function = hooks().last_injected();
  hooks().fail_none();
  hooks().repair();
  require(identity.rank != 0 || has_thrown || may_be_swallowed(function),
          "error " + std::to_string(error) + " of " + function + ", call " + std::to_string(call) +
              ", was swallowed");
  return has_thrown;
}

const Registered kInjected("injected", [](const RankIdentity& identity) {
  const std::vector<Values> expected = reduced_on_cpu(kWanted, identity.ranks, kCalls);
  std::size_t calls = 0, number = 0;
  {
    Run run(identity, number++);
    calls = calls_of_good_run(run);
  }
  for (std::size_t i = 0; i < kTries; ++i) {
    Run run(identity, number++);
    const cudaError_t error = i % 2 == 0 ? cudaErrorMemoryAllocation : cudaErrorIllegalAddress;
    if (fail_on_first_rank(identity, 1 + i * calls / kTries, error, run)) continue;
    if (identity.rank == 0)
      run.require_bits(expected.back());
    else
      run.require_bits_or_nan(expected);
  }
  Run last(identity, number);
  last.call();
  last.require_bits(expected.back());
});

class NcclInjectedErrors : public OverNccl {};

TEST_F(NcclInjectedErrors, FailTheCallAndNeverGiveWrongResults) {
  if (!hooks().are_there()) GTEST_SKIP() << "this device injects no errors";
  expect_passes(kInjected, 2);
}

}  // namespace
}  // namespace tersor::test
