// All parameters of a reducer: their slots, how they go, and the residuals that are kept of them
// between steps. With the step's lock held, but for `index_of`.
#pragma once

#include "comm/collectives/context.h"
#include "comm/collectives/fields.h"
#include "comm/reducer/parameter.h"
#include "comm/reducer/residence.h"
#include "comm/reducer/residuals.h"

#include <tersor/reducer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tersor {

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
