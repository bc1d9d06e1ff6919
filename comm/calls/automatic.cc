// allreduce with codec "auto": runs the tuner's choice and records the duration.
#include "comm/calls/arguments.h"
#include "comm/collectives/context.h"
#include "kernels/device/device.h"

#include <tersor/auto.h>

#include <string>

namespace tersor {
namespace {

void check_options(const CollectiveOptions& options, Memory memory) {
  if (options.tuner == nullptr)
    throw InvalidArgumentError(
        "codec auto needs a tuner: make one Tuner per transport and pass it as "
        "tuner");
  check_tuner_memory(*options.tuner, memory);
  if (options.algorithm != Algorithm::kAuto)
    throw InvalidArgumentError("codec auto chooses the algorithm: leave algorithm at auto, not " +
                               std::string(algorithm_name(options.algorithm)));
  if (options.error_growth != kDefaultErrorGrowth)
    throw InvalidArgumentError(
        "codec auto chooses the grid: set error_growth in the tuner's options");
}

}  // namespace

// Waits for each call while the tuner still measures. Later calls on a device are not timed.
void allreduce_auto(Transport& transport, ValueSpan gradient, const CollectiveOptions& options,
                    StreamView stream) {
  check_span(transport, gradient, info_of(CallKind::kAllreduce).input);
  check_options(options, gradient.memory());
  Tuner& tuner = *options.tuner;
  AutoChoice choice = tuner.choose(gradient.dtype(), gradient.count());
  CollectiveOptions chosen = options;
  chosen.codec = std::move(choice.codec);
  chosen.algorithm = choice.algorithm;
  chosen.chunk_count = choice.chunk_count;
  if (options.dims.empty()) chosen.dims = choice.dims;
  chosen.error_growth = tuner.error_growth();
  const bool on_device = gradient.memory() == Memory::kDevice;
  if (on_device && tuner.settled(gradient.dtype(), gradient.count()))
    return allreduce(transport, gradient, chosen, stream);
  if (on_device && kernels::capture_of(stream) != 0)
    throw InvalidArgumentError(
        "codec auto still measures calls for these gradients, which cannot be captured: make calls "
        "until settled() of the tuner returns true, then capture");
  if (on_device) kernels::synchronize(stream);
  const auto start = Clock::now();
  allreduce(transport, gradient, chosen, stream);
  if (on_device) kernels::synchronize(stream);
  tuner.record(gradient.dtype(), gradient.count(), seconds_since(start));
}

void check_tuner_memory(const Tuner& tuner, Memory memory) {
  if (tuner.memory() != memory)
    throw InvalidArgumentError(std::string("the tuner was made for gradients on ") +
                               (memory == Memory::kHost
                                    ? "a device, but this gradient is on the host"
                                    : "the host, but this gradient is on a device") +
                               ": make a tuner with another memory");
}

void reject_auto_codec(const CollectiveOptions& options, std::string_view operation) {
  if (options.codec == kAutoCodec)
    throw InvalidArgumentError(
        "codec auto is for allreduce and GradientReducer only: name a codec for " +
        std::string(operation));
}

}  // namespace tersor
