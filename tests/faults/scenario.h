// A scenario drawn from a seed: the calls of all ranks in order, and the fault of one rank at a
// given time. Independent of the transport.
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

/// The operations called by all ranks.
enum class Work : std::uint8_t {
  kAllreduce,
  kReduceScatter,
  kAllgather,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kSend,         ///< point-to-point messages: send on one rank, receive on the other
  kAllGather,    ///< Transport::all_gather
  kExchange,     ///< Transport::all_to_all
  kSum,          ///< Transport::sum
  kMaximum,      ///< Transport::maximum
  kBarrier,      ///< Transport::barrier
  kPass,         ///< Transport::send to the next rank, receive from the previous rank
  kReducerStep,  ///< one step of a GradientReducer
};

/// The operation's name in messages: "allreduce", …, "gradient reducer".
std::string_view work_name(Work work);
/// True if the work uses only the transport, without a codec.
bool is_raw(Work work);
/// True if one rank has inputs or results different from the other ranks.
bool is_rooted(Work work);

/// The number of rows from each rank to each other rank: rows[from][to].
using Rows = std::vector<std::vector<std::size_t>>;

/// A call. `count` is the number of values of a rank's gradient, shard, message or row.
struct Step {
  Work work = Work::kBarrier;
  std::string codec = "none";
  Algorithm algorithm = Algorithm::kAuto;
  Reduction reduction = Reduction::kSum;
  Dtype dtype = Dtype::kF32;
  std::size_t count = 0;
  std::uint64_t signature = 0;  ///< of raw work
  int root = 0;
  std::vector<int> dims = {};   ///< of a grid; empty: the default grid
  std::vector<int> hosts = {};  ///< of each rank, for the hierarchical algorithm
  Rows rows = {};               ///< of all_to_all, and of send: rows of one message
};

/// Rows of a rank for the ranks before `to`, in all_to_all and send. If `to` is the number of
/// ranks: all rows.
std::size_t rows_before(const Step& step, int from, int to);

enum class FaultKind : std::uint8_t {
  kNone,
  kThrow,      ///< an exception unrelated to the transport
  kRefused,    ///< a call refused on this rank alone: InvalidArgumentError
  kLeave,      ///< destroys the transport early
  kDisagree,   ///< a call with arguments different from the other ranks
  kOtherRoot,  ///< of a rooted collective; detected at the deadline or earlier
  kStop,       ///< does nothing until all others have given up
  kSkip,       ///< continues without its part of point-to-point messages
  kDamage,     ///< one bit of a frame changes in transit
  kKill,       ///< SIGKILL; processes only
  kSuspend,    ///< SIGSTOP; processes only
};

std::string_view fault_name(FaultKind kind);
/// True if other ranks may detect the fault only at their deadline.
bool is_silent(FaultKind kind);
/// True if the rank makes a mistaken call, so the result of the call is not checked.
bool is_mistake(FaultKind kind);
/// True if the rank never reports, because its process ends or is suspended.
bool is_fatal(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kNone;
  int rank = 0;
  std::size_t step = 0;
  /// The fault happens after this rank has started this many transport operations of the step, at
  /// the latest before the next step. None: before the step.
  std::optional<unsigned> operation = {};
  std::uint32_t choice = 0;  ///< selects the changed argument or bit
};

/// The GradientReducer for the reducer steps of the run.
struct Trainer {
  std::string codec = "bf16";
  ProgressBy progress = ProgressBy::kThread;
  std::vector<std::size_t> counts;  ///< values of each parameter

  std::size_t count() const;
};

struct Scenario {
  std::uint64_t seed = 0;
  int ranks = 2;
  std::string link = "none";  ///< for ranks in one process
  std::chrono::milliseconds timeout{0};
  Trainer trainer;
  std::vector<Step> steps;
  Fault fault;

  /// The same scenario without a fault and without an emulated link.
  Scenario sound() const;
  /// A line for human readers.
  std::string text() const;
};

/// The location of the ranks limits the possible faults.
enum class Home : std::uint8_t { kThreads, kProcesses };

/// The scenario of a seed, equal on every machine.
Scenario draw_scenario(std::uint64_t seed, Home home);

/// The step with mismatched arguments, or with refused arguments, called by the faulty rank.
Step with_other_arguments(const Step& step, const Scenario& scenario);
Step with_refused_arguments(const Step& step, const Scenario& scenario);

}  // namespace tersor::faults
