// The codec "auto". A Tuner measures the link and the codecs once, and then returns the fastest
// codec, algorithm and chunk length for each gradient. A GradientReducer starts with the Tuner's
// predictions and improves them during training. docs/explain/algorithms.md lists the formulas.
#pragma once

#include <tersor/collectives.h>
#include <tersor/dtype.h>
#include <tersor/span.h>
#include <tersor/transport.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tersor {

/// The spec that requests an automatic choice in CollectiveOptions, ReducerOptions and rules.
inline constexpr std::string_view kAutoCodec = "auto";

/// The cost model of a link while all its ranks send.
struct LinkFigures {
  double latency = 0;  ///< in seconds, one way, including software
  /// Per sent byte; a rank receives the same amount at the same time.
  double seconds_per_byte = 0;
  /// Per sent message, in addition to latency and bytes.
  double seconds_per_message = 0;
  /// Core time of the codecs' core per sent byte.
  double core_seconds_per_byte = 0;
};

/// Options of a Tuner. All ranks must pass equal options.
struct AutoOptions {
  /// Candidate specs in addition to `none` and `bf16`, which are always candidates. If one spec has
  /// "+ef", all use feedback, including `none+ef` and `bf16+ef`, so no residual is lost at a
  /// change. Feedback works only in a GradientReducer, which keeps the residuals.
  std::vector<std::string> codecs = {"int8"};
  /// The costs of the link, if known. Otherwise, the Tuner measures the costs.
  std::optional<LinkFigures> link = {};
  unsigned threads = 1;  ///< codec threads of each rank
  /// The memory of the gradients. The Tuner measures the codecs there.
  Memory memory = Memory::kHost;
  /// Limits the grids, as CollectiveOptions::error_growth does.
  double error_growth = kDefaultErrorGrowth;
  std::chrono::milliseconds timeout = kDefaultTimeout;  ///< timeout of each measurement
};

/// The choice for one gradient.
struct AutoChoice {
  std::string codec;                             ///< the chosen spec
  Algorithm algorithm = Algorithm::kAuto;        ///< the chosen algorithm
  std::size_t chunk_count = kDefaultChunkCount;  ///< length of a chunk in values
  std::vector<int> dims = {};                    ///< grid of two-shot
};

/// A choice and its predicted time.
struct AutoPrediction {
  AutoChoice choice;   ///< the choice that the time belongs to
  double seconds = 0;  ///< predicted time
};

/// Chooses for all gradients of one transport. All ranks get the same results, because every
/// measured value was reduced over ranks. One thread at a time may call a Tuner.
class Tuner {
 public:
  /// Measures the link (milliseconds) and, for f32, the codecs (tens of milliseconds each). A
  /// collective call. Throws InvalidArgumentError for an invalid option.
  explicit Tuner(Transport& transport, AutoOptions options = {});
  ~Tuner();
  Tuner(const Tuner&) = delete;
  Tuner& operator=(const Tuner&) = delete;

  /// Returns the choice for the next allreduce of `count` values. The first calls try all choices
  /// that the model does not exclude. Then the fastest choice stays until calls take a fifth more
  /// or less time. The first call for a dtype is a collective call.
  AutoChoice choose(Dtype dtype, std::size_t count);
  /// Records the duration in seconds of an allreduce with the choice of `choose`. On a device,
  /// measure from an idle stream until the stream is idle again, and stop once `settled` is true.
  /// All ranks must call `record` after each allreduce. Some calls are collective.
  void record(Dtype dtype, std::size_t count, double seconds);
  /// True once the trials for these gradients are over.
  bool settled(Dtype dtype, std::size_t count) const;

  /// Returns the model's prediction among all codecs, including codecs with "+ef", without trials.
  /// A reduce-scatter has `count` values on each rank, and the choice's algorithm is kAuto.
  AutoChoice predict(Dtype dtype, std::size_t count,
                     Collective collective = Collective::kAllreduce);
  /// Returns the fastest choice of each codec: `none`, `bf16`, then the other candidates in their
  /// order. A given two-shot grid is passed as `dims`.
  std::vector<AutoPrediction> predict_each(Dtype dtype, std::size_t count,
                                           Collective collective = Collective::kAllreduce,
                                           std::span<const int> dims = {});

  /// Returns the measured or given costs of the link.
  const LinkFigures& link() const;
  /// Returns AutoOptions::memory. Gradients must be in this memory.
  Memory memory() const;
  /// Returns AutoOptions::error_growth.
  double error_growth() const;
  /// Returns the costs, and for each requested gradient all alternatives: predicted time, measured
  /// time, and the reason for the choice or the rejection.
  std::string explain() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tersor
