// See injected.h.
#include "tests/gpu/injected.h"

#include "tests/gpu/hooks.h"
#include "tests/support/errors.h"

#include <tersor/error.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <thread>

namespace tersor::test {
namespace {

using Bytes = std::vector<std::byte>;

/// Ends the program if a run takes longer than a minute, because of a hang.
class Watchdog {
 public:
  explicit Watchdog(std::string what) : what_(std::move(what)), thread_([this] { watch(); }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::minutes(1), [this] { return over_; })) return;
    std::cerr << what_ << ": hangs" << std::endl;
    std::abort();
  }

  const std::string what_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

enum class Thrown { kNothing, kOutOfMemory, kCudaError, kTransportError, kAnother };

struct Outcome {
  Thrown thrown = Thrown::kNothing;
  std::string message;
  std::string function;  // of the injected error
};

Outcome run(Scenario& scenario) {
  try {
    scenario.run();
    return {};
  } catch (const OutOfMemoryError& error) {
    return {Thrown::kOutOfMemory, error.what(), {}};
  } catch (const CudaError& error) {
    return {Thrown::kCudaError, error.what(), {}};
  } catch (const TransportError& error) {
    return {Thrown::kTransportError, error.what(), {}};
  } catch (const std::exception& error) {
    return {Thrown::kAnother, error.what(), {}};
  }
}

Outcome run_with_error(Scenario& scenario, std::size_t call, cudaError_t error) {
  hooks().fail_call(call, error);
  Outcome outcome = run(scenario);
  outcome.function = hooks().last_injected();
  hooks().fail_none();
  return outcome;
}

void expect_right_type(const Outcome& outcome, Callers callers, cudaError_t error) {
  if (callers == Callers::kRanks && outcome.thrown == Thrown::kTransportError) return;
  if (callers == Callers::kTestToo && outcome.thrown == Thrown::kCudaError) return;
  const bool is_memory = error == cudaErrorMemoryAllocation;
  EXPECT_EQ(outcome.thrown, is_memory ? Thrown::kOutOfMemory : Thrown::kCudaError)
      << outcome.message;
}

/// The message must name the failed action and contain CUDA's error text.
void expect_right_message(const Outcome& outcome, Callers callers, cudaError_t error) {
  if (outcome.thrown == Thrown::kTransportError || callers == Callers::kTestToo) return;
  if (outcome.thrown == Thrown::kOutOfMemory && says(outcome.message, " bytes of ")) return;
  const std::string text = cudaGetErrorString(error);
  EXPECT_TRUE(says(outcome.message, text));
  EXPECT_GT(outcome.message.size(), text.size() + 5) << outcome.message;
}

std::size_t calls_of_good_run(const Scene& scene, Bytes& result) {
  scene.make()->run();  // queries made once per process
  const auto scenario = scene.make();
  const std::size_t before = hooks().calls("any");
  scenario->run();
  const std::size_t calls = hooks().calls("any") - before;
  result = scenario->result();
  return calls;
}

void expect_result(const Scene& scene, const Bytes& wanted) {
  const auto scenario = scene.make();
  EXPECT_NO_THROW(scenario->run());
  EXPECT_TRUE(scenario->result() == wanted);
}

/// If a transport cannot determine the end of the device's work on a block, the transport keeps the
/// block. The destructors ~Copies and ~HostTransport keep blocks without an error.
bool may_keep_memory(const Scene& scene, const Outcome& outcome, bool is_broken) {
  const bool asks =
      says(outcome.function, "cudaEventRecord") || says(outcome.function, "cudaEventQuery");
  return scene.callers == Callers::kRanks && (is_broken || asks);
}

/// ~GradientReducer asks for the current device, and ignores an error.
bool may_ignore(const Scene& scene, const Outcome& outcome) {
  return is_silent(outcome.function) ||
         (scene.callers == Callers::kRanks && says(outcome.function, "cudaGetDevice"));
}

void try_call(const Scene& scene, std::size_t call, cudaError_t error, const Bytes& wanted) {
  const std::size_t live = hooks().live("any");
  auto scenario = scene.make();
  const Outcome outcome = run_with_error(*scenario, call, error);
  SCOPED_TRACE(scene.name + ": error " + std::to_string(error) + " in call " +
               std::to_string(call) + ", " + outcome.function);
  const bool is_broken = hooks().is_broken() != 0;
  hooks().repair();
  const bool is_left_behind = cudaGetLastError() != cudaSuccess;
  if (outcome.thrown != Thrown::kNothing) {
    EXPECT_TRUE(is_broken || !is_left_behind || scene.callers == Callers::kTestToo ||
                is_silent(outcome.function))
        << "left behind";
    expect_right_type(outcome, scene.callers, error);
    expect_right_message(outcome, scene.callers, error);
  } else {
    EXPECT_TRUE(may_ignore(scene, outcome) || may_keep_memory(scene, outcome, is_broken))
        << "nothing was thrown";
    if (!is_broken) {
      EXPECT_TRUE(scenario->result() == wanted) << "another result";
    }
  }
  scenario.reset();
  if (!may_keep_memory(scene, outcome, is_broken)) {
    EXPECT_EQ(hooks().live("any"), live) << "left behind";
  }
}

}  // namespace

void InjectedErrors::SetUp() {
  if (!hooks().are_there()) GTEST_SKIP() << "this device injects no errors";
}

void InjectedErrors::expect_errors(const Scene& scene, cudaError_t error) {
  Bytes wanted;
  const std::size_t calls = calls_of_good_run(scene, wanted);
  ASSERT_GT(calls, 0u) << scene.name;
  const std::size_t tries = std::min(calls, scene.most_tries);
  for (std::size_t i = 0; i < tries; ++i) {
    const std::size_t call = 1 + i * calls / tries;
    const Watchdog watchdog(scene.name + ", call " + std::to_string(call));
    try_call(scene, call, error, wanted);
    if (i % 8 == 0 || HasFailure()) expect_result(scene, wanted);
    if (HasFailure()) return;
  }
}

}  // namespace tersor::test
