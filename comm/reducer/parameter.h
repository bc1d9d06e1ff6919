// A parameter as a reducer knows it, beside its slot.
#pragma once

#include "comm/reducer/rules.h"

#include <tersor/auto.h>
#include <tersor/reducer.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tersor {

struct ReducerParameter {
  std::string name;
  RuleChoice choice;
  Algorithm algorithm = Algorithm::kAuto;
  std::size_t count = 0;    ///< without padding
  std::uint32_t order = 0;  ///< of its values
  bool given_anew = false;  ///< its gradient lasts for one step: the slot has it from ready() on
  ValueSpan gradient = {};
  double relative_error = 0;
  std::vector<AutoPrediction> ways = {};  ///< "auto": each codec's quickest; else empty
  std::size_t group = 0;                  ///< of the learner's
  bool owes_later = false;                ///< some phase goes two-shot

  const RulePhase& phase(std::uint32_t step) const;
  /// Whether it ever owes as an owner.
  bool may_go_two_shot() const {
    return algorithm == Algorithm::kTwoShot || !ways.empty() || owes_later;
  }
};

}  // namespace tersor
