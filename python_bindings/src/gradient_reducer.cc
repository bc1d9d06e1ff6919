// Implements gradient_reducer.h.
#include "python_bindings/src/gradient_reducer.h"

#include "kernels/device/event.h"
#include "python_bindings/src/choices.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <utility>

namespace tersor::python {
namespace {

GradientShape shape_of(const Array<ConstValueSpan>& values, std::span<const std::size_t> shape) {
  const auto [count, rows, columns] = matrix_of(shape);
  return {.count = count,
          .dtype = values.span.dtype(),
          .memory = values.memory,
          .rows = rows,
          .columns = columns};
}

/// Returns the matrix of the first axis and the other axes as stored in memory. If the first axis
/// is innermost, the result is the transpose. If the first axis lies between others, the result is
/// the matrix of the outermost axis.
GradientShape lying_shape(const Array<ConstValueSpan>& values) {
  GradientShape shape = shape_of(values, values.shape);
  shape.order = order_of(values.axes, values.shape);
  if (shape.order == 0) return shape;
  const bool transposed = values.axes.back() == 0;
  const std::size_t axis = transposed ? 0 : values.axes.front();
  shape.rows = values.shape[axis];
  shape.columns = shape.count / shape.rows;
  if (transposed) std::swap(shape.rows, shape.columns);
  return shape;
}

std::string numbers_text(const std::vector<std::size_t>& numbers) {
  std::string text;
  for (const std::size_t number : numbers)
    text += (text.empty() ? "" : ", ") + std::to_string(number);
  return "(" + text + ")";
}

}  // namespace

bool ReadyGradients::test() const {
  const bool done = without_gil([this] {
    return std::all_of(handles.begin(), handles.end(),
                       [](const ReducerHandle& handle) { return handle.test(); });
  });
  if (done) {
    reducer->order_results();
    reducer->let_go(names, call);
  }
  return done;
}

void ReadyGradients::wait() const {
  without_gil([this] {
    for (const ReducerHandle& handle : handles) handle.wait();
  });
  reducer->order_results();
  reducer->let_go(names, call);
}

ArrayReducer::Entry& ArrayReducer::entry(const std::string& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end())
    throw InvalidArgumentError("parameter \"" + name + "\" was not added");
  return found->second;
}

// A library with a current stream queues its work on the trainer's stream, if one was given.
nb::object ArrayReducer::stream_of(nb::handle gradient) const {
  if (stream_.handle != nullptr && !stream_source(gradient).is_none()) return nb::none();
  return nb::int_(reinterpret_cast<std::uintptr_t>(stream_.handle));
}

void ArrayReducer::add(const std::string& name, nb::handle like) {
  const auto values =
      read_values(like, {.name = "like", .layout = Layout::kDense, .use = Use::kShape});
  const kernels::DeviceScope scope(values.device);
  const GradientShape shape = lying_shape(values);
  without_gil([&] { reducer_->add(name, shape); });
  entries_[name] = {.count = shape.count, .shape = values.shape, .axes = values.axes};
}

// Values are sent in memory order. A flat gradient is assumed to have this order.
void ArrayReducer::check_lies_as_added(const std::string& name, const Array<ValueSpan>& gradient) {
  const Entry& added = entry(name);
  if (gradient.shape.size() < 2) return;
  const bool in_order = order_of(gradient.axes, {}) == 0 && order_of(added.axes, {}) == 0;
  if (in_order || (gradient.axes == added.axes && gradient.shape == added.shape)) return;
  throw InvalidArgumentError(
      "gradient: \"" + name + "\" has shape " + numbers_text(gradient.shape) +
      " with the axes in memory order " + numbers_text(gradient.axes) +
      ", but the array passed to add has shape " + numbers_text(added.shape) + " and order " +
      numbers_text(added.axes) + "; pass a copy with the same shape and strides, on all ranks");
}

void ArrayReducer::add_sharded(const std::string& name, nb::handle like,
                               const std::vector<std::size_t>& shape, std::size_t shard_count) {
  const auto values =
      read_values(like, {.name = "like", .layout = Layout::kDense, .use = Use::kShape});
  const kernels::DeviceScope scope(values.device);
  GradientShape sharded = shape_of(values, shape);
  sharded.collective = Collective::kReduceScatter;
  sharded.shard_count = shard_count;
  without_gil([&] { reducer_->add(name, sharded); });
  entries_[name].count = sharded.count;
}

// Calls from another thread during the wait belong to the next step.
void ArrayReducer::wait() {
  const std::uint64_t last = calls_;
  without_gil([this] { reducer_->wait(); });
  order_results();
  for (auto& [name, entry] : entries_) let_go(entry, last);
}

void ArrayReducer::order_results() const {
  if (stream_.handle != nullptr || current_stream_.is_none()) return;
  const kernels::DeviceScope scope(device_);
  kernels::Event results;
  kernels::order(stream_, to_stream(current_stream_(), nb::none(), Memory::kDevice), results);
}

void ArrayReducer::let_go(const std::vector<std::string>& names, std::uint64_t call) {
  for (const std::string& name : names) let_go(entry(name), call);
}

// Erases entries before destroying the arrays, because freeing an array may run Python code that
// calls this function again.
void ArrayReducer::let_go(Entry& entry, std::uint64_t call) {
  std::vector<Retained> done;
  const auto under_way =
      std::stable_partition(entry.retained.begin(), entry.retained.end(),
                            [call](const Retained& one) { return one.call > call; });
  std::move(under_way, entry.retained.end(), std::back_inserter(done));
  entry.retained.erase(under_way, entry.retained.end());
}

// A failed call may have taken the new gradients, or may still use the earlier gradients; both are
// kept alive. The GIL is released once for all parts, because other threads may hold the GIL for
// long.
ReadyGradients ArrayReducer::hand_over(const std::vector<Part>& parts) {
  ReadyGradients ready{.handles = {}, .names = {}, .call = ++calls_, .reducer = this};
  std::vector<ReadyGradient> together;
  for (const Part& part : parts) {
    ready.names.emplace_back(part.gradient.name);
    entry(ready.names.back()).retained.push_back({ready.call, part.owners});
    together.push_back(part.gradient);
  }
  ready.handles = without_gil([&] { return reducer_->ready(together); });
  let_go(ready.names, ready.call - 1);
  return ready;
}

Array<ValueSpan> ArrayReducer::values_of(nb::handle values, const char* name, Layout layout) {
  const nb::object stream = stream_of(values);
  auto array = write_values(values, {.name = name, .layout = layout, .stream = stream});
  if (array.memory == Memory::kDevice && current_stream_.is_none()) {
    current_stream_ = stream_source(values);
    device_ = array.device;
  }
  return array;
}

ReadyGradients ArrayReducer::ready(const std::string& name, nb::handle gradient,
                                   std::string_view contribution) {
  const auto values = values_of(gradient, "gradient", Layout::kDense);
  check_lies_as_added(name, values);
  const auto parsed = parse_choice<Contribution>(contribution);
  return hand_over({{{name, values.span, {}, parsed}, {values.owner}}});
}

ReadyGradients ArrayReducer::ready_sharded(const std::vector<std::string>& names,
                                           const std::vector<nb::object>& gradients,
                                           const std::vector<nb::object>& shards) {
  if (names.empty() || names.size() != gradients.size() || names.size() != shards.size())
    throw InvalidArgumentError("got " + std::to_string(names.size()) + " names, " +
                               std::to_string(gradients.size()) + " gradients and " +
                               std::to_string(shards.size()) +
                               " shards; pass one gradient and one shard per name");
  std::vector<Part> parts;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto values = values_of(gradients[i], "gradient", Layout::kDense);
    const auto shard = values_of(shards[i], "shard", Layout::kDense);
    parts.push_back({{names[i], values.span, shard.span}, {values.owner, shard.owner}});
  }
  return hand_over(parts);
}

// Checks before any gradient becomes ready, so an error leaves the step unchanged.
void ArrayReducer::check_counts(const std::vector<std::string>& names, std::size_t count) {
  std::size_t wanted = 0;
  for (const std::string& name : names) wanted += entry(name).count;
  if (wanted != count)
    throw InvalidArgumentError("gradients has " + std::to_string(count) + " values; the " +
                               std::to_string(names.size()) + " parameters have " +
                               std::to_string(wanted));
}

ReadyGradients ArrayReducer::ready_flat(const std::vector<std::string>& names, nb::handle gradients,
                                        std::string_view contribution) {
  const auto parsed = parse_choice<Contribution>(contribution);
  const auto values = values_of(gradients, "gradients", Layout::kContiguous);
  check_counts(names, values.span.count());
  std::vector<Part> parts;
  std::size_t first = 0;
  for (const std::string& name : names) {
    const std::size_t count = entry(name).count;
    parts.push_back({{name, values.span.subspan(first, count), {}, parsed}, {values.owner}});
    first += count;
  }
  return hand_over(parts);
}

}  // namespace tersor::python
