// The codec and the algorithm of each parameter: fixed, by a schedule, or learned by "auto" during
// training. CodecPolicy only decides, equally on all ranks. The caller waits until no work is under
// way, and then adapts residuals and messages.
#pragma once

#include "comm/collectives/context.h"
#include "comm/reducer/parameters.h"
#include "comm/reducer/rules.h"
#include "comm/tuning/learner.h"

#include <tersor/auto.h>
#include <tersor/reducer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tersor {

class CodecPolicy {
 public:
  /// The parameters must outlive this object. Throws InvalidArgumentError for invalid rules.
  explicit CodecPolicy(Parameters& parameters);

  /// Call if all ranks share a host: every parameter then uses the codec within the host.
  void set_single_host(std::shared_ptr<const Codec> codec) {
    single_host_codec_ = std::move(codec);
  }
  /// Finds or makes the tuner of "auto". A collective call. Throws InvalidArgumentError for "auto"
  /// with a fixed algorithm.
  void find_tuner(Transport& transport);
  bool automatic() const { return tuner_ != nullptr; }
  /// The algorithm of encoded values.
  Algorithm algorithm() const { return algorithm_; }

  /// Chooses the first codec and algorithm of a parameter before `add`. Throws InvalidArgumentError
  /// if no rule matches or if the choice is not possible.
  void choose(ReducerParameter& own, ExchangeParameter& param);
  /// Call when all parameters are known, and after adding parameters: learning starts again.
  void begin();
  /// Applies the choices for a training step. Returns the parameters whose schedule changed the
  /// codec.
  std::vector<std::size_t> apply(std::uint32_t step);

  /// True if some parameter has a schedule.
  bool scheduled() const { return schedules_; }
  /// Returns true once if a schedule changes a codec with this step.
  bool enters_phase(std::uint32_t step);
  /// Throws InvalidArgumentError if a schedule continues after this captured step.
  void check_capture(std::uint32_t step) const;

  bool may_learn() const;
  bool learns() const { return may_learn() && !was_captured_; }
  /// `begun`: True after the first step began.
  bool settled(bool begun) const;
  /// True before the first `begin_step` of this step.
  bool is_new(std::uint32_t number) const { return number != begun_step_; }
  /// Ends the previous step. Returns true if ranks must agree on the maximum of `seconds()`.
  bool end_step();
  void begin_step(std::uint32_t number);
  /// True if the learner measures the current step.
  bool is_measuring() const { return learner_->is_measuring(); }
  /// The trainer has waited for the whole step.
  void record_wait() { step_ended_ = Clock::now(); }
  double seconds() const { return learner_->seconds(); }
  /// Returns true if codecs or algorithms change now.
  bool agree(double seconds);
  /// Starts with the codecs chosen in a saved run. Returns true if a codec changes.
  bool adopt(std::span<const std::string> codecs);
  const std::string& chosen_codec(std::size_t parameter) const;

  /// A captured graph keeps its codecs. Throws InvalidArgumentError unless "auto" is settled.
  void begin_capture();
  void record_capture() { was_captured_ = true; }
  bool was_captured() const { return was_captured_; }

  /// The findings of "auto"; empty without "auto".
  std::string explain() const;

 private:
  void choose_automatically(ReducerParameter& own, ExchangeParameter& param);
  void validate_phases(ReducerParameter& own, ExchangeParameter& param);
  void set_codec(ReducerParameter& own, ExchangeParameter& param,
                 std::shared_ptr<const Codec> codec) const;
  void set_choice(ReducerParameter& own, ExchangeParameter& param, const AutoChoice& choice);
  std::size_t count_of_message(const ExchangeParameter& param) const;
  bool in_phase(std::uint32_t step) const;

  Parameters& parameters_;
  const ReducerOptions& options_;
  const Algorithm algorithm_;
  Rules rules_;
  std::unique_ptr<Tuner> own_tuner_;
  Tuner* tuner_ = nullptr;
  std::shared_ptr<const Codec> single_host_codec_;

  bool schedules_ = false;
  std::optional<std::uint32_t> applied_step_;  ///< the step whose phases are applied

  std::unique_ptr<Learner> learner_;
  std::uint32_t begun_step_ = 0;  ///< the last step that began
  bool was_captured_ = false;
  std::optional<Clock::time_point> step_began_, step_ended_;
};

}  // namespace tersor
