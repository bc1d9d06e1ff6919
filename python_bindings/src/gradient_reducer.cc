// See gradient_reducer.h.
#include "python_bindings/src/gradient_reducer.h"

#include "python_bindings/src/device_scope.h"

#include <algorithm>
#include <cstdint>

namespace tersor::python {
namespace {

GradientShape shape_of(const Array<ConstValueSpan>& values) {
  const std::size_t rows = values.shape.empty() ? 1 : values.shape.front();
  const bool vector = values.shape.size() < 2;
  return {.count = values.span.count(),
          .dtype = values.span.dtype(),
          .memory = values.memory,
          .rows = rows,
          .columns = vector || rows == 0 ? 0 : values.span.count() / rows};
}

}  // namespace

bool ReadyGradients::test() const {
  return without_gil([this] {
    return std::all_of(handles.begin(), handles.end(),
                       [](const ReducerHandle& handle) { return handle.test(); });
  });
}

void ReadyGradients::wait() const {
  without_gil([this] {
    for (const ReducerHandle& handle : handles) handle.wait();
  });
}

ArrayReducer::Entry& ArrayReducer::entry(const std::string& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw InvalidArgument("no parameter \"" + name + "\" was added");
  return found->second;
}

// A library with a current stream queues its work where the trainer does, which is `stream_`.
nb::object ArrayReducer::stream_of(nb::handle gradient) const {
  if (has_current_stream(gradient)) return nb::none();
  return nb::int_(reinterpret_cast<std::uintptr_t>(stream_.handle));
}

void ArrayReducer::add(const std::string& name, nb::handle like) {
  const auto values =
      read_values(like, {.name = "like", .layout = Layout::kDense, .use = Use::kShape});
  const DeviceScope scope(values);
  const GradientShape shape = shape_of(values);
  without_gil([&] { reducer_->add(name, shape); });
  entries_[name].count = shape.count;
}

// A call that fails may do so before it lets go of the former gradients, or after it took these.
// The GIL is given away once for all parts: threads that want it are many, and may keep it for a
// while.
ReadyGradients ArrayReducer::hand_over(const std::vector<Part>& parts,
                                       const nb::ndarray<nb::ro>& owner,
                                       Contribution contribution) {
  for (const Part& part : parts) entry(part.name).gradients.push_back(owner);
  ReadyGradients ready;
  without_gil([&] {
    for (const Part& part : parts)
      ready.handles.push_back(reducer_->ready(part.name, part.gradient, contribution));
  });
  for (const Part& part : parts) {
    auto& kept = entry(part.name).gradients;
    kept.erase(kept.begin(), kept.end() - 1);
  }
  return ready;
}

ReadyGradients ArrayReducer::ready(const std::string& name, nb::handle gradient,
                                   Contribution contribution) {
  const nb::object stream = stream_of(gradient);
  const auto values =
      write_values(gradient, {.name = "gradient", .layout = Layout::kDense, .stream = stream});
  const DeviceScope scope(values);
  return hand_over({{name, values.span}}, values.owner, contribution);
}

// Before any of them is ready: a mistake leaves the step as it was.
void ArrayReducer::check_counts(const std::vector<std::string>& names, std::size_t count) {
  std::size_t wanted = 0;
  for (const std::string& name : names) wanted += entry(name).count;
  if (wanted != count)
    throw InvalidArgument("the " + std::to_string(names.size()) + " parameters have " +
                          std::to_string(wanted) + " values, their gradients " +
                          std::to_string(count));
}

ReadyGradients ArrayReducer::ready_flat(const std::vector<std::string>& names, nb::handle gradients,
                                        Contribution contribution) {
  const nb::object stream = stream_of(gradients);
  const auto values = write_values(gradients, {.name = "gradients", .stream = stream});
  check_counts(names, values.span.count());
  std::vector<Part> parts;
  std::size_t first = 0;
  for (const std::string& name : names) {
    const std::size_t count = entry(name).count;
    parts.push_back({name, values.span.subspan(first, count)});
    first += count;
  }
  const DeviceScope scope(values);
  return hand_over(parts, values.owner, contribution);
}

}  // namespace tersor::python
