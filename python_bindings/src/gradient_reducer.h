// A GradientReducer whose gradients are arrays: it keeps what a step works on alive.
#pragma once

#include "python_bindings/src/arrays.h"
#include "python_bindings/src/waiting.h"

#include <nanobind/nanobind.h>
#include <tersor/reducer.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tersor::python {

/// Handles of the parameters that one call made ready. Goes before its reducer.
struct ReadyGradients {
  std::vector<ReducerHandle> handles;

  bool test() const;
  void wait() const;
};

/// Every member needs the GIL, which is given up while the reducer may wait.
class ArrayReducer {
 public:
  ArrayReducer(Transport& transport, const ReducerOptions& options)
      : stream_(options.stream), reducer_(transport, options) {}

  GradientReducer& reducer() const { return *reducer_; }

  /// A parameter whose gradients will be like this array. Its shape, a matrix of its first
  /// dimension and the others, goes along.
  void add(const std::string& name, nb::handle like);

  ReadyGradients ready(const std::string& name, nb::handle gradient, Contribution contribution);

  /// The gradients of several parameters, one after another in one array.
  ReadyGradients ready_flat(const std::vector<std::string>& names, nb::handle gradients,
                            Contribution contribution);

 private:
  struct Entry {
    std::size_t count = 0;
    std::vector<nb::ndarray<nb::ro>> gradients;  ///< of this step, or of the last; the last stands
                                                 ///< behind those of calls that failed
  };

  struct Part {
    const std::string& name;
    ValueSpan gradient;
  };

  Entry& entry(const std::string& name);

  /// What the gradient's library orders its own work before, as ArrayRequest has it.
  nb::object stream_of(nb::handle gradient) const;
  ReadyGradients hand_over(const std::vector<Part>& parts, const nb::ndarray<nb::ro>& owner,
                           Contribution contribution);
  void check_counts(const std::vector<std::string>& names, std::size_t count);

  StreamView stream_;
  std::unordered_map<std::string, Entry> entries_;  // declared before, so they go after
  Patient<GradientReducer> reducer_;
};

}  // namespace tersor::python
