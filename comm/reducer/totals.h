// What a reducer counts from one reset to the next, as of the last complete step. With the step's
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
  /// A step is complete: the driver has nothing under way, so that its counters stand still.
  /// `wire_seconds`: all of the sender's.
  void note_step(const ExchangeContext& context, double wire_seconds,
                 const std::function<bool(std::uint32_t)>& took_part);
  /// The trainer waited.
  void note_exposed(double seconds) { exposed_seconds_ += seconds; }
  void note_discarded(std::uint32_t steps) { discarded_ += steps; }
  /// "auto" goes another way.
  void note_codec_change() { codec_changes_ += 1; }
  /// What another reducer counted counts here, too, as it does in the context.
  void go_on_from(const Totals& before, ExchangeContext& context);
  /// Counts anew, and so does the context.
  void reset(ExchangeContext& context, double wire_seconds);

  /// Of all parameters, but for what a device counts of overflows.
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
  std::vector<SlotCounters> slots_;
  std::vector<std::uint64_t> slot_steps_;
  std::uint64_t sent_before_ = 0;  ///< the last reset
  double wire_before_ = 0;
};

}  // namespace tersor
