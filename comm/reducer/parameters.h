// The parameters of a reducer: parameters, codecs, algorithms, and residuals kept between steps.
// Call with the step's lock held, except for `index_of`.
#pragma once

#include <tersor/agreement.h>
#include "comm/collectives/hierarchy.h"
#include "comm/collectives/planner.h"
#include "comm/reducer/memory_backend.h"
#include "comm/reducer/residuals.h"
#include "comm/reducer/rules.h"

#include <tersor/auto.h>
#include <tersor/reducer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tersor {

/// A parameter of a reducer, in addition to its parameter, with state kept between steps.
struct ReducerParameter {
  std::string name;
  RuleChoice choice;
  Algorithm algorithm = Algorithm::kAuto;
  std::size_t count = 0;    ///< values without padding
  std::uint32_t order = 0;  ///< memory order of the values
  /// True if each step passes another gradient; the parameter holds the gradient from ready() on
  bool per_step_gradient = false;
  ValueSpan gradient = {};
  double relative_error = 0;
  /// "auto": the fastest prediction for each codec; otherwise empty
  std::vector<AutoPrediction> predictions = {};
  std::size_t group = 0;  ///< group index in the learner
  bool has_two_shot_phase = false;

  const RulePhase& phase(std::uint32_t step) const;
  /// True if this rank may keep an owner's residual in some step.
  bool may_use_two_shot() const {
    return algorithm == Algorithm::kTwoShot || !predictions.empty() || has_two_shot_phase;
  }
};

/// The ranges with residuals on a rank: the encoded values, and the owned values encoded again.
StateRanges feedback_ranges(const ExchangeContext& context, const ReducerParameter& own,
                            const ExchangeParameter& param, int rank);

/// The divisors of the parameter's residuals (see Owed).
ResidualScales residual_scales(const ExchangeContext& context, const ExchangeParameter& param);

/// The number of values in the codec's memory.
std::size_t memory_count(const ExchangeParameter& param, const Codec& codec);
inline std::size_t memory_count(const ExchangeParameter& param) {
  return memory_count(param, *param.codec);
}

class Parameters {
 public:
  /// Both arguments must outlive this object.
  Parameters(const ReducerOptions& options, const ExchangeContext& context);

  std::size_t count() const { return params.size(); }
  /// The memory that holds all gradients.
  Memory memory() const { return memory_; }
  const ReducerOptions& options() const { return options_; }
  const ExchangeContext& context() const { return context_; }
  /// Throws InvalidArgumentError for an unknown name.
  std::uint32_t index_of(std::string_view name) const;

  /// Makes the parameter of a new parameter, without a codec. Throws InvalidArgumentError if the
  /// gradient uses another memory than earlier gradients, or if the shards are too small.
  ExchangeParameter make_param(const std::string& name, const GradientShape& shape);
  /// The shape of an all-reduced parameter, as added.
  GradientShape shape(std::size_t parameter) const;
  /// Throws InvalidArgumentError if the name is already used.
  void add(ReducerParameter own, ExchangeParameter param);
  /// Allocates residuals of the parameters added since the last call, and binds the flags of all
  /// parameters.
  void allocate_residuals(const MemoryBackend& backend);

  /// Points the parameters to the current residuals for the next step.
  void bind();
  /// Makes the written residuals current for all parameters that took part.
  void commit(const std::function<bool(std::size_t)>& took_part);
  /// Adds owner residuals to sender residuals if a parameter no longer uses two-shot, because only
  /// two-shot uses owner residuals.
  void fold_unused_owners(StreamView stream);
  /// The options that all ranks must pass equally. `learns`: True if codecs may change.
  Agreement agreement(bool learns) const;

  // One entry per parameter, in the order of `add`.
  std::vector<ReducerParameter> all;
  std::vector<ExchangeParameter> params;
  std::vector<ParameterBinding> bindings;
  std::vector<ParameterFeedback> feedback;
  Residuals residuals;
  /// part of the agreement: the loads since the start, each followed by an exchange
  std::uint32_t loaded_states = 0;

 private:
  void check_memory(const std::string& name, Memory memory);
  std::size_t padded_count(const std::string& name, const GradientShape& shape) const;
  void add_parameters(Agreement& agreement) const;
  void add_parameter_extras(Agreement& agreement) const;

  const ReducerOptions& options_;
  const ExchangeContext& context_;
  Memory memory_ = Memory::kHost;
  bool memory_fixed_ = false;
  std::map<std::string, std::uint32_t, std::less<>> names_;
};

}  // namespace tersor
