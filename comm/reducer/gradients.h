// What a trainer gives for a step: where gradients lie, and who has none. With the step's lock
// held.
#pragma once

#include "comm/reducer/parameters.h"
#include "comm/reducer/step.h"
#include "comm/reducer/weights.h"

#include <tersor/reducer.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tersor {

class Gradients {
 public:
  /// For one step.
  struct Given {
    ValueSpan gradient, shard;
  };

  /// Both outlive it.
  Gradients(Parameters& parameters, const StepWeights& weights)
      : parameters_(parameters), weights_(weights) {}

  /// Before the first step, and where parameters were added.
  void place(Residence& residence);

  bool has(std::uint32_t parameter) const {
    const Slot& slot = parameters_.slots[parameter];
    return slot.input.count() == slot.count;
  }
  /// Whether it is left out of this step on all ranks.
  bool is_nowhere(std::size_t parameter) const { return nowhere_[parameter]; }

  /// Before any of a call is taken: a mistake, which throws InvalidArgument, leaves the step as it
  /// was.
  void check(std::uint32_t parameter, const std::optional<Given>& given) const;
  /// Lends a parameter's memory until the step is complete. Throws InvalidArgument, which names two
  /// parameters, if the memory overlaps lent memory whose result is not back. Then memory of
  /// parameters that are not ready is not lent any more.
  void lend(const ReducerStep& step, std::uint32_t parameter, const std::optional<Given>& given);
  void take(std::uint32_t parameter, const std::optional<Given>& given, Contribution contribution);
  /// It sends zeros; one with a residual keeps it.
  void leave_out(std::uint32_t parameter);
  /// Of a single rank the shard is all there is.
  void keep_own(std::uint32_t parameter);
  /// All are back.
  void end_step();

 private:
  void check_values(std::uint32_t parameter, const ValueSpan& values, std::size_t count) const;
  void lend(const ReducerStep& step, std::uint32_t parameter, const ConstValueSpan& memory);
  void check_given(std::uint32_t parameter, const Given& given) const;
  void bind(std::uint32_t parameter, const Given& given);
  bool contributes(std::uint32_t parameter, Contribution contribution) const;
  void leave_alone(std::uint32_t parameter);
  void weigh(std::uint32_t parameter);
  void measure_error(std::uint32_t parameter);

  Parameters& parameters_;
  const StepWeights& weights_;
  Residence* residence_ = nullptr;
  bool left_out_ = false;  ///< in this step some parameter is inactive
  std::vector<bool> nowhere_;
  struct Lent {
    ConstValueSpan memory;
    std::uint32_t parameter;
  };
  std::vector<Lent> lent_;  ///< in this step, by address; none overlaps another
};

}  // namespace tersor
