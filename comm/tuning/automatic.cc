// See automatic.h.
#include "comm/tuning/automatic.h"

#include "comm/collectives/context.h"

#include <tersor/auto.h>

#include <string>

namespace tersor {
namespace {

void check_options(const CollectiveOptions& options) {
  if (options.tuner == nullptr)
    throw InvalidArgument(
        "codec auto needs a tuner: make one Tuner a transport and pass it in "
        "CollectiveOptions::tuner");
  if (options.algorithm != Algorithm::kAuto)
    throw InvalidArgument("codec auto chooses the algorithm too: leave it at auto, not " +
                          std::string(algorithm_name(options.algorithm)));
}

}  // namespace

void allreduce_automatically(Transport& transport, ValueSpan gradient,
                             const CollectiveOptions& options, StreamView stream) {
  check_options(options);
  AutoChoice choice = options.tuner->choose(gradient.dtype(), gradient.count());
  CollectiveOptions chosen = options;
  chosen.codec = std::move(choice.codec);
  chosen.algorithm = choice.algorithm;
  chosen.chunk_count = choice.chunk_count;
  const auto start = Clock::now();
  allreduce(transport, gradient, chosen, stream);
  options.tuner->record(gradient.dtype(), gradient.count(), seconds_since(start));
}

void refuse_automatic(const CollectiveOptions& options, std::string_view operation) {
  if (options.codec == kAutoCodec)
    throw InvalidArgument("codec auto is for allreduce and the GradientReducer; choose one for " +
                          std::string(operation));
}

}  // namespace tersor
