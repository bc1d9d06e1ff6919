// Statistics of a reducer since the last reset, up to the last complete step. Call with the step's
// lock held.
#pragma once

#include "comm/reducer/parameters.h"

#include <tersor/reducer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace tersor {

class Totals {
 public:
  void set_parameters(std::size_t count);
  /// Call after a complete step, while the driver has no work and its counters do not change.
  /// `wire_seconds`: the sender's total.
  void record_step(const ExchangeContext& context, double wire_seconds,
                   const std::function<bool(std::uint32_t)>& took_part);
  /// Adds time in which the trainer waited.
  void record_exposed(double seconds) { exposed_seconds_ += seconds; }
  void record_discarded(std::uint32_t steps) { discarded_ += steps; }
  /// Counts a codec change by "auto".
  void record_codec_change() { codec_changes_ += 1; }
  /// Continues the counters of another reducer, here and in the context.
  void continue_from(const Totals& previous, ExchangeContext& context);
  /// Resets the counters, here and in the context.
  void reset(ExchangeContext& context, double wire_seconds);

  /// Returns the sums over all parameters, without overflows counted on a device.
  ReducerStatistics all(const Parameters& parameters) const;
  std::vector<ReducerStatistics> of_each(const Parameters& parameters) const;

 private:
  std::uint64_t gradient_bytes(std::size_t parameter, const Parameters& parameters) const;
  ReducerStatistics of(std::size_t parameter, const Parameters& parameters, double share) const;

  std::uint64_t steps_ = 0;
  std::uint64_t sent_bytes_ = 0;
  double wire_seconds_ = 0;
  double exposed_seconds_ = 0;
  std::uint64_t overflows_ = 0;
  std::uint64_t discarded_ = 0;
  std::uint64_t codec_changes_ = 0;
  std::vector<ParamCounters> params_;
  std::vector<std::uint64_t> param_steps_;
  std::uint64_t sent_before_ = 0;  ///< at the last reset
  double wire_before_ = 0;
};

}  // namespace tersor
