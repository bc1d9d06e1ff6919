// A GradientReducer for arrays. The arrays of a step stay alive during the step.
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

/// The handles of the parameters of a `ready` call. Destroy the handles before the reducer.
struct ReadyGradients {
  std::vector<ReducerHandle> handles;
  std::vector<std::string> names;
  std::uint64_t call = 0;  ///< number of the call
  ArrayReducer* reducer = nullptr;

  bool test() const;
  void wait() const;
};

/// A reducer for arrays. All members need the GIL, and release the GIL while the reducer may wait.
class ArrayReducer {
 public:
  ArrayReducer(Transport& transport, const ReducerOptions& options)
      : stream_(options.stream), reducer_(make_without_gil<GradientReducer>(transport, options)) {}

  GradientReducer& reducer() const { return *reducer_; }

  /// Adds a parameter with the shape, dtype, device and layout of this array. The shape becomes a
  /// matrix: the first dimension by the product of the others.
  void add(const std::string& name, nb::handle like);

  /// Adds a parameter with this shape; every rank gets its shard. Only the dtype and the device of
  /// `like` are used.
  void add_sharded(const std::string& name, nb::handle like, const std::vector<std::size_t>& shape,
                   std::size_t shard_count);

  ReadyGradients ready(const std::string& name, nb::handle gradient, std::string_view contribution);

  /// Marks several sharded gradients as ready. `shards` are the destinations of the shards.
  ReadyGradients ready_sharded(const std::vector<std::string>& names,
                               const std::vector<nb::object>& gradients,
                               const std::vector<nb::object>& shards);

  /// Marks the gradients of several parameters as ready, stored consecutively in a single array.
  ReadyGradients ready_flat(const std::vector<std::string>& names, nb::handle gradients,
                            std::string_view contribution);

  /// Ends the step, waits, and releases the step's arrays.
  void wait();

  /// Makes later work of the array library's current stream wait for the results.
  void order_results() const;

  /// Releases the arrays of these parameters from calls up to `call`, after completion of the
  /// results.
  void let_go(const std::vector<std::string>& names, std::uint64_t call);

 private:
  /// The arrays of a parameter in a call.
  struct Retained {
    std::uint64_t call;
    std::vector<nb::ndarray<nb::ro>> owners;
  };

  struct Entry {
    std::size_t count = 0;
    /// Set only for parameters without shards.
    std::vector<std::size_t> shape = {}, axes = {};
    /// Arrays of the current step, and of failed calls.
    std::vector<Retained> retained = {};
  };

  struct Part {
    ReadyGradient gradient;
    std::vector<nb::ndarray<nb::ro>> owners;
  };

  Entry& entry(const std::string& name);

  /// Returns the value of ArrayRequest::stream for a gradient.
  nb::object stream_of(nb::handle gradient) const;
  Array<ValueSpan> values_of(nb::handle values, const char* name, Layout layout);
  ReadyGradients hand_over(const std::vector<Part>& parts);
  void check_lies_as_added(const std::string& name, const Array<ValueSpan>& gradient);
  void check_counts(const std::vector<std::string>& names, std::size_t count);

  static void let_go(Entry& entry, std::uint64_t call);

  StreamView stream_;  ///< of the trainer; null: the library's current stream in each call
  nb::object current_stream_ = nb::none();  ///< see stream_source
  int device_ = -1;                         ///< of the gradients
  std::uint64_t calls_ = 0;
  std::unordered_map<std::string, Entry> entries_;  // declared first, so destroyed last
  std::shared_ptr<GradientReducer> reducer_;
};

}  // namespace tersor::python
