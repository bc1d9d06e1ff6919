// All parameters of a reducer: their slots, how they go, and the residuals that are kept of them
// between steps. With the step's lock held, but for `index_of`.
#pragma once

#include "comm/collectives/fields.h"
#include "comm/collectives/hierarchy.h"
#include "comm/collectives/planner.h"
#include "comm/reducer/residence.h"
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

/// A parameter as a reducer knows it, beside its slot, and what is kept of it between steps.
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

/// What a rank keeps residuals of: of what it encodes, and of what it owns and encodes once more.
StateRanges kept_ranges(const ExchangeContext& context, const ReducerParameter& own,
                        const Slot& slot, int rank);

/// What the values of its residuals count for in the sum over ranks.
Owed owed(const ExchangeContext& context, const Slot& slot);

/// Values of a codec's own memory; and of the codec's that needs most, where a schedule has
/// several.
std::size_t memory_count(const Slot& slot, const Codec& codec);
inline std::size_t memory_count(const Slot& slot) { return memory_count(slot, *slot.codec); }
std::size_t most_memory(const ReducerParameter& own, const Slot& slot);

class Parameters {
 public:
  /// Both outlive it.
  Parameters(const ReducerOptions& options, const ExchangeContext& context);

  std::size_t count() const { return slots.size(); }
  /// Of all gradients.
  Memory memory() const { return memory_; }
  const ReducerOptions& options() const { return options_; }
  const ExchangeContext& context() const { return context_; }
  /// Throws InvalidArgument where there is none of that name.
  std::uint32_t index_of(std::string_view name) const;

  /// The slot of one that is about to be added; its codec is not chosen yet. Throws InvalidArgument
  /// where its gradient lies elsewhere than those of others, or its shards do not hold it.
  Slot make_slot(const std::string& name, const GradientShape& shape, ValueSpan gradient);
  /// Of one that is all-reduced, as it was added.
  GradientShape shape(std::size_t parameter) const;
  /// Throws InvalidArgument where another has its name.
  void add(ReducerParameter own, Slot slot);
  /// Residuals of those that were added since the last call, and the flags of all.
  void place(const Residence& residence);

  /// The next step reads and writes residuals where they are now.
  void bind();
  /// What was written counts from now on, of those that took part.
  void commit(const std::function<bool(std::size_t)>& took_part);
  /// They may go by another algorithm than before: by two-shot alone an owner pays, by others its
  /// senders do.
  void hand_over(StreamView stream);
  /// What ranks agree on; `learns`: how these go may change.
  Fields fields(bool learns) const;

  // As many, in the order in which they were added.
  std::vector<ReducerParameter> all;
  std::vector<Slot> slots;
  Residuals residuals;
  std::uint32_t loaded_states = 0;  ///< a part of `fields`: loads with an exchange after each

 private:
  void check_memory(const std::string& name, Memory memory);
  void shape_shards(const std::string& name, const GradientShape& shape, Slot& slot) const;
  void hand_over(std::size_t parameter, StreamView stream);
  void add_each(Fields& fields) const;
  void add_rest_of_each(Fields& fields) const;

  const ReducerOptions& options_;
  const ExchangeContext& context_;
  Memory memory_ = Memory::kHost;
  bool placed_ = false;
  std::map<std::string, std::uint32_t, std::less<>> names_;
};

}  // namespace tersor
