// The collectives of `tersor-bench allreduce` and `tersor-bench collectives`, and one rank with
// repeated calls of a collective or of the library's own, on a host or a device.
#pragma once

#include <tersor/auto.h>
#include <tersor/buffer.h>
#include <tersor/collectives.h>
#include <tersor/threads.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/ranks/gradients.h"
#include "bench/ranks/iterations.h"

namespace tersor::bench {

/// The amount given or received by a rank: a shard, or a whole of one shard per rank.
enum class Amount : std::uint8_t { kShard, kWhole };

/// The arguments of a rank's call. Sums over all ranks and a broadcast are in place, in the output.
struct CollectiveCall {
  Transport& transport;
  ConstValueSpan input;
  ValueSpan output;
  std::size_t columns;  ///< values per row
  const CollectiveOptions& options;
  StreamView stream;
};

/// A collective (with root 0 if the collective has a root): Tersor's name, MPI's name, the call and
/// the check.
struct CollectiveKind {
  std::string_view name;
  std::string_view library;
  Amount input, output;  ///< for ranks with an input or output
  void (*run)(const CollectiveCall& call);
  /// Returns the relative error of a rank's output; 0 for a rank without output.
  double (*error)(const RankGradients& gradients, int rank, ConstValueSpan output);
  bool sums_for_all = false;  ///< true if all ranks receive the sum, or together the sum
};

/// allreduce, then reduce_scatter, then the collectives of `tersor-bench collectives`.
extern const std::span<const CollectiveKind> kCollectiveKinds;

/// The measured case. Count, dtype and ranks come with the gradients.
struct CollectiveCase {
  std::string codec;
  Algorithm algorithm = Algorithm::kAuto;
  std::size_t chunk_count = 0;  ///< 0: the transport's default
  unsigned threads = 1;         ///< per rank
  std::size_t iterations = 0;   ///< 0: about one second of calls
  /// True for the library's collective instead of Tersor's; `codec` is then the collective's name
  bool by_library = false;
  AutoOptions automatic = {};  ///< for codec auto
  std::vector<int> dims = {};  ///< grid of two-shot
  const CollectiveKind* kind = kCollectiveKinds.data();
  std::size_t columns = 1;  ///< values per row of all_to_all; a shard is whole rows
};

/// All buffers and options of one rank, made before the first call. Each call starts with a fresh
/// copy of the gradient.
class CollectiveRank : public RankCall {
 public:
  /// `input` must outlive this object. Output and state use the memory of `input`. On a device, all
  /// calls are queued on the stream.
  CollectiveRank(const CollectiveCase& config, ConstValueSpan input, Rank& rank,
                 StreamView stream = {});

  /// The codec of the values: "none" for the library's collective.
  std::string codec() const;

  void restore() override;
  void call() override;
  /// Calls until codec auto has chosen, and then checks the result of a call on every rank. All
  /// ranks compare the bits of a sum for all.
  virtual void check(const RankGradients& gradients);
  /// The result of a timed case.
  CallResult result(const IterationTimes& times) const {
    return {times, codec(), relative_error_, tuner_ == nullptr ? "" : tuner_->explain(), wrong_};
  }

  /// The memory for a whole.
  ValueSpan whole() const { return storage_.values(input_.count(), input_.dtype()); }
  const CollectiveStatistics& statistics() const override { return statistics_; }

 protected:
  const CollectiveCase config_;
  Rank& rank_;
  StreamView stream_;
  double relative_error_ = 0;
  std::optional<std::size_t> wrong_;

 private:
  void make_state();
  ConstValueSpan input() const;
  ValueSpan output() const { return config_.kind->output == Amount::kWhole ? whole() : shard(); }
  ValueSpan shard() const;
  Buffer zeros(std::size_t bytes) const;

  ConstValueSpan input_;
  std::unique_ptr<Tuner> tuner_;
  Buffer storage_;
  Threads threads_;
  Buffer residual_, owner_residual_, words_;
  CollectiveState state_;
  CollectiveWorkspace workspace_;
  CollectiveStatistics statistics_;
  CollectiveOptions options_;
};

/// A case and its gradients.
struct MeasuredCase {
  CollectiveCase config;
  const RankGradients* gradients = nullptr;
};

/// Checks and times the cases of a rank, in turns. `make` makes the calls of a case.
std::vector<CallResult> measure_cases(
    Rank& rank, std::span<const MeasuredCase> cases,
    const std::function<std::unique_ptr<CollectiveRank>(const MeasuredCase&)>& make);

/// Times a collective after checking the result of a first call. A whole is a rank's gradient; with
/// shards, the number of ranks must divide the count. Throws the collective's exceptions, and Error
/// for a wrong result.
CallResult measure_collective(Fleet& fleet, const CollectiveCase& config,
                              const RankGradients& gradients);

// The expected result of an allreduce on devices (wrong_values.cc). A sum of the library below must
// agree within rounding errors. Any other result must equal the CPU's bits.

/// Returns the result of `config` on threads of this process. `gradients` holds the gradients of
/// all ranks.
Buffer reduced_on_host(const RankGradients& gradients, const CollectiveCase& config);

/// Returns the number of values that differ in at least one bit.
std::size_t count_different(ConstValueSpan expected, ConstValueSpan actual);

/// Returns the number of values outside the rounding error. The bound assumes rounding of each
/// addend and each partial sum to `rounded_to`, in any order. NaN counts.
std::size_t count_outside(const RankGradients& gradients, Dtype rounded_to, ConstValueSpan actual);

}  // namespace tersor::bench
