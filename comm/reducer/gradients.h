// The gradients passed for a step: their memory, and the parameters without a gradient. Call with
// the step's lock held.
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
  /// Memory passed for a single step.
  struct Spans {
    ValueSpan gradient, shard;
  };

  /// Both arguments must outlive this object.
  Gradients(Parameters& parameters, const StepWeights& weights)
      : parameters_(parameters), weights_(weights) {}

  /// Call before the first step and after adding parameters.
  void set_backend(MemoryBackend& backend);

  bool has(std::uint32_t parameter) const {
    return parameters_.bindings[parameter].input.count() == parameters_.params[parameter].count;
  }
  /// True if the parameter takes part on no rank in this step.
  bool is_globally_unused(std::size_t parameter) const { return globally_unused_[parameter]; }

  /// Checks all parameters of a call first, so an invalid argument leaves the step unchanged.
  /// Throws InvalidArgumentError.
  void check(std::uint32_t parameter, const std::optional<Spans>& spans) const;
  /// Claims a parameter's memory until the step is complete. Throws InvalidArgumentError with the
  /// names of both parameters if the memory overlaps claimed memory whose result has not arrived.
  /// Memory of parameters that are not ready is then no longer claimed.
  void claim_memory(const ReducerStep& step, std::uint32_t parameter,
                    const std::optional<Spans>& spans);
  void stage(std::uint32_t parameter, const std::optional<Spans>& spans, Contribution contribution);
  /// Sends zeros for the parameter. A residual does not change.
  void deactivate(std::uint32_t parameter);
  /// On a single rank, copies the gradient to the shard.
  void copy_to_shard(std::uint32_t parameter);
  /// Call when all results have arrived.
  void end_step();

 private:
  void check_values(std::uint32_t parameter, const ValueSpan& values, std::size_t count) const;
  void claim_memory(const ReducerStep& step, std::uint32_t parameter, const ConstValueSpan& memory);
  void check_spans(std::uint32_t parameter, const Spans& spans) const;
  void bind(std::uint32_t parameter, const Spans& spans);
  bool contributes(std::uint32_t parameter, Contribution contribution) const;
  void mark_globally_unused(std::uint32_t parameter);
  void apply_weight(std::uint32_t parameter);
  void measure_error(std::uint32_t parameter);

  Parameters& parameters_;
  const StepWeights& weights_;
  MemoryBackend* backend_ = nullptr;
  bool any_inactive_ = false;  ///< in this step
  std::vector<bool> globally_unused_;
  struct InUse {
    ConstValueSpan memory;
    std::uint32_t parameter;
  };
  std::vector<InUse> in_use_;  ///< of this step, by address, without overlaps
};

}  // namespace tersor
