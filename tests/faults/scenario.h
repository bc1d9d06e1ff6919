// A run in which something goes wrong, drawn from a seed: what the ranks call, one call after the
// other, and what one of them does wrong, and when. Knows no transport.
#pragma once

#include <tersor/collectives.h>
#include <tersor/reducer.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tersor::faults {

/// What all ranks call together.
enum class Work : std::uint8_t {
  kAllreduce,
  kReduceScatter,
  kAllgather,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kSend,         ///< messages between two: send on one, receive on the other
  kAllGather,    ///< Transport::all_gather
  kExchange,     ///< Transport::all_to_all
  kSum,          ///< Transport::sum
  kMaximum,      ///< Transport::maximum
  kBarrier,      ///< Transport::barrier
  kPass,         ///< Transport::send to the next rank, receive from the one before
  kReducerStep,  ///< one step of a GradientReducer
};

/// How messages call it: "allreduce", …, "gradient reducer".
std::string_view work_name(Work work);
/// Whether it goes through the transport alone, without a codec.
bool is_raw(Work work);
/// Whether one rank has, or gets, what is not for the others.
bool is_rooted(Work work);

/// Rows that each rank has for each other one: rows[from][to].
using Rows = std::vector<std::vector<std::size_t>>;

/// One call. `count` is the values of a rank's gradient, shard, message or row.
struct Step {
  Work work = Work::kBarrier;
  std::string codec = "none";
  Algorithm algorithm = Algorithm::kAuto;
  Reduction reduction = Reduction::kSum;
  Dtype dtype = Dtype::kF32;
  std::size_t count = 0;
  std::uint64_t signature = 0;  ///< of raw work
  int root = 0;
  std::vector<int> dims = {};   ///< of a grid; empty: the standard one
  std::vector<int> hosts = {};  ///< of each rank, where it goes by hosts
  Rows rows = {};               ///< of all_to_all, and of send: those of one message
};

/// Rows that a rank has for those before `to`, in all_to_all and send; of all: `to` is their
/// number.
std::size_t rows_before(const Step& step, int from, int to);

enum class FaultKind : std::uint8_t {
  kNone,
  kThrow,      ///< an exception that has nothing to do with the transport
  kRefused,    ///< a call that this rank alone is refused: InvalidArgument
  kLeave,      ///< the transport goes away early
  kDisagree,   ///< a call with other arguments than the other ranks'
  kOtherRoot,  ///< of a rooted collective; found at the deadline, if not before
  kStop,       ///< does nothing until all others have given up
  kSkip,       ///< goes on without its ends of messages between two
  kDamage,     ///< one bit of a frame changes on its way
  kKill,       ///< SIGKILL; processes only
  kSuspend,    ///< SIGSTOP; processes only
};

std::string_view fault_name(FaultKind kind);
/// Whether the others may have to wait for their deadline to know of it.
bool is_silent(FaultKind kind);
/// Whether the rank calls a step in a way of its own, so that what it has then says nothing.
bool is_mistake(FaultKind kind);
/// Whether the rank never reports, because its process ends or stands still.
bool is_fatal(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kNone;
  int rank = 0;
  std::size_t step = 0;
  /// As soon as this rank has started so many transport operations of the step, at the latest
  /// before the next step. None: before the step.
  std::optional<unsigned> operation = {};
  std::uint32_t choice = 0;  ///< which argument is another one; which bit changes
};

/// The GradientReducer of the run's reducer steps.
struct Trainer {
  std::string codec = "bf16";
  ProgressBy progress = ProgressBy::kThread;
  std::vector<std::size_t> counts;  ///< values of each parameter

  std::size_t count() const;
};

struct Scenario {
  std::uint64_t seed = 0;
  int ranks = 2;
  std::string link = "none";  ///< of ranks in one process
  std::chrono::milliseconds timeout{0};
  Trainer trainer;
  std::vector<Step> steps;
  Fault fault;

  /// The same without a fault, over no link.
  Scenario sound() const;
  /// One line for people.
  std::string text() const;
};

/// Where ranks live decides what can befall them.
enum class Home : std::uint8_t { kThreads, kProcesses };

/// The scenario of a seed: the same on every machine.
Scenario draw_scenario(std::uint64_t seed, Home home);

/// The step as the fault's rank calls it, which disagrees with the others; or which is refused.
Step with_other_arguments(const Step& step, const Scenario& scenario);
Step with_refused_arguments(const Step& step, const Scenario& scenario);

}  // namespace tersor::faults
