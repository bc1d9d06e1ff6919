// Codec "auto": a Tuner measures the link and the codecs once, and then says for each gradient
// which codec, algorithm and chunk length are quickest. A GradientReducer begins with what it
// predicts and learns the rest while training goes on. docs/algorithms.md has the formulas.
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

/// The spec by which CollectiveOptions, ReducerOptions and rules ask for a choice.
inline constexpr std::string_view kAutoCodec = "auto";

/// What a link costs, as each of its ranks sees it while all of them send.
struct LinkFigures {
  double latency = 0;              ///< seconds, one way, software included
  double seconds_per_byte = 0;     ///< of what a rank sends; it receives as much at the same time
  double seconds_per_message = 0;  ///< beside latency and bytes, of each message that a rank sends
  double core_seconds_per_byte = 0;  ///< of each byte sent: what the codecs' core does for it
};

/// Options of a Tuner. All ranks must pass equal ones.
struct AutoOptions {
  /// Specs that may be chosen beside `none` and `bf16`, which always may. Where one has "+ef", all
  /// go with feedback, `none+ef` and `bf16+ef` too, so that nothing is lost between them: in a
  /// GradientReducer only, which keeps their residuals.
  std::vector<std::string> codecs = {"int8"};
  /// The link's figures, where they are known; else they are measured.
  std::optional<LinkFigures> link = {};
  unsigned threads = 1;  ///< that each rank lends to its codecs
  /// Where the gradients will lie: there codecs are measured.
  Memory memory = Memory::kHost;
  /// Bounds the grids that may be chosen: CollectiveOptions::error_growth.
  double error_growth = kDefaultErrorGrowth;
  std::chrono::milliseconds timeout = kDefaultTimeout;
};

/// How a gradient is to travel.
struct AutoChoice {
  std::string codec;
  Algorithm algorithm = Algorithm::kAuto;
  std::size_t chunk_count = kDefaultChunkCount;
  std::vector<int> dims = {};  ///< of two-shot
};

/// What a way is predicted to take.
struct AutoPrediction {
  AutoChoice way;
  double seconds = 0;
};

/// Chooses for all gradients of one transport. All ranks get the same answers: every figure that a
/// choice depends on was reduced over ranks. One thread at a time.
class Tuner {
 public:
  /// A collective call: measures the link (milliseconds) and, for f32, the codecs (tens of
  /// milliseconds each). Throws InvalidArgument where an option is wrong.
  explicit Tuner(Transport& transport, AutoOptions options = {});
  ~Tuner();
  Tuner(const Tuner&) = delete;
  Tuner& operator=(const Tuner&) = delete;

  /// What the next allreduce of such a gradient should do. The first calls try what the model does
  /// not rule out; then the quickest stays until calls take a fifth more or less. The first call
  /// for a dtype is a collective one.
  AutoChoice choose(Dtype dtype, std::size_t count);
  /// How long the allreduce took that went as `choose` said; on a device, from an idle stream until
  /// it was idle again, and once `settled` no more. All ranks call it after each one; now
  /// and then it is a collective call.
  void record(Dtype dtype, std::size_t count, double seconds);
  /// True once trying is over for such gradients.
  bool settled(Dtype dtype, std::size_t count) const;

  /// What the model alone says, among all codecs, those with "+ef" too. Nothing is tried. A
  /// reduce-scatter is one of `count` values on each rank; of its choice the algorithm is kAuto.
  AutoChoice predict(Dtype dtype, std::size_t count,
                     Collective collective = Collective::kAllreduce);
  /// As above, of each codec its quickest way: `none`, `bf16`, then those allowed, in their order.
  /// Where two-shot goes on a grid that is decided, `dims` are that.
  std::vector<AutoPrediction> predict_each(Dtype dtype, std::size_t count,
                                           Collective collective = Collective::kAllreduce,
                                           std::span<const int> dims = {});

  const LinkFigures& link() const;
  /// AutoOptions::memory: gradients must lie there.
  Memory memory() const;
  /// AutoOptions::error_growth.
  double error_growth() const;
  /// The figures, and for each gradient that was asked for every alternative with its predicted
  /// and measured time, and why it was taken or left.
  std::string explain() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tersor
