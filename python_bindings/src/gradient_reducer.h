// A GradientReducer whose gradients are arrays: it keeps what a step works on alive.
#pragma once

#include "python_bindings/src/arrays.h"
#include "python_bindings/src/waiting.h"

#include <nanobind/nanobind.h>
#include <tersor/reducer.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tersor::python {

class ArrayReducer;

/// Handles of the parameters that one call made ready. Goes before its reducer.
struct ReadyGradients {
  std::vector<ReducerHandle> handles;
  std::vector<std::string> names;
  std::uint64_t call = 0;  ///< its number
  ArrayReducer* reducer = nullptr;

  bool test() const;
  void wait() const;
};

/// Every member needs the GIL, which is given up while the reducer may wait.
class ArrayReducer {
 public:
  ArrayReducer(Transport& transport, const ReducerOptions& options)
      : stream_(options.stream), reducer_(make_without_gil<GradientReducer>(transport, options)) {}

  GradientReducer& reducer() const { return *reducer_; }

  /// A parameter whose gradients will be like this array, and lie like it. Its shape, a matrix of
  /// its first dimension and the others, goes along.
  void add(const std::string& name, nb::handle like);

  /// A parameter of this shape, of which every rank gets its shard. Of `like` the dtype and the
  /// place count.
  void add_sharded(const std::string& name, nb::handle like, const std::vector<std::size_t>& shape,
                   std::size_t shard_count);

  ReadyGradients ready(const std::string& name, nb::handle gradient, Contribution contribution);

  /// Several of those, and where their shards are to go.
  ReadyGradients ready_sharded(const std::vector<std::string>& names,
                               const std::vector<nb::object>& gradients,
                               const std::vector<nb::object>& shards);

  /// The gradients of several parameters, one after another in one array.
  ReadyGradients ready_flat(const std::vector<std::string>& names, nb::handle gradients,
                            Contribution contribution);

  /// Ends the step and waits; lets go of its gradients.
  void wait();

  /// The results of these parameters are there that were handed over in calls up to this one.
  void let_go(const std::vector<std::string>& names, std::uint64_t call);

 private:
  /// What one call gave of a parameter.
  struct Kept {
    std::uint64_t call;
    std::vector<nb::ndarray<nb::ro>> owners;
  };

  struct Entry {
    std::size_t count = 0;
    std::vector<std::size_t> shape = {}, axes = {};  ///< of a parameter that is not sharded
    /// Of the step under way; also of calls that failed, which may have taken it before.
    std::vector<Kept> kept = {};
  };

  struct Part {
    ReadyGradient gradient;
    std::vector<nb::ndarray<nb::ro>> owners;
  };

  Entry& entry(const std::string& name);

  /// What the gradient's library orders its own work before, as ArrayRequest has it.
  nb::object stream_of(nb::handle gradient) const;
  Array<ValueSpan> values_of(nb::handle values, const char* name, Layout layout) const;
  ReadyGradients hand_over(const std::vector<Part>& parts);
  void check_lies_as_added(const std::string& name, const Array<ValueSpan>& gradient);
  void check_counts(const std::vector<std::string>& names, std::size_t count);

  static void let_go(Entry& entry, std::uint64_t call);

  StreamView stream_;
  std::uint64_t calls_ = 0;
  std::unordered_map<std::string, Entry> entries_;  // declared before, so they go after
  std::shared_ptr<GradientReducer> reducer_;
};

}  // namespace tersor::python
