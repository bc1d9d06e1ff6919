// Binds <tersor/delta.h>. Values are arrays of bytes; tersor.delta knows their dtypes.
#include "python_bindings/src/arrays.h"
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/waiting.h"

#include <tersor/delta.h>
#include <tersor/error.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tersor::python {
namespace {

using namespace nb::literals;

/// Name, dtype and shape of a tensor.
using Described = std::tuple<std::string, std::string, std::vector<std::uint64_t>>;

std::vector<DeltaTensor> tensors_of(const std::vector<Described>& described) {
  std::vector<DeltaTensor> tensors;
  for (const auto& [name, dtype, shape] : described) {
    unsigned number = 0;
    while (number < 9 && delta_dtype_name(static_cast<DeltaDtype>(number)) != dtype) ++number;
    tensors.push_back({name, static_cast<DeltaDtype>(number), shape});
  }
  return tensors;
}

/// Weights on the host or on a device, and the current stream of the first array.
template <typename Span>
struct PlacedWeights {
  PlacedWeights(const Arrays& list, Array<Span> (*import)(nb::handle, const ArrayRequest&))
      : call_stream(nb::len(list) == 0 ? nb::none()
                                       : stream_of_call(nb::none(), list[0], "weights")),
        values(import_all(list, import, {.name = "weights", .stream = call_stream})) {
    if (values.arrays.empty()) return;
    const Array<Span>& first = values.arrays.front();
    for (const Array<Span>& array : values.arrays) check_same_device(first, array, "weights");
    memory = first.memory;
    stream = to_stream(call_stream, nb::none(), memory);
    scope.emplace(first.device);
  }

  nb::object call_stream;
  ArrayList<Span> values;
  Memory memory = Memory::kHost;
  StreamView stream;
  std::optional<kernels::DeviceScope> scope;
};

DeltaOptions delta_options(bool trusts, Threads& threads) {
  return {.base = trusts ? DeltaBase::kTrust : DeltaBase::kCheck, .threads = &threads};
}

nb::bytes encode_delta(const std::vector<Described>& described, const Arrays& base,
                       const Arrays& now, unsigned classes, unsigned threads) {
  const auto olds = import_all(base, read_bytes, {.name = "weights", .on_host = true});
  const auto news = import_all(now, read_bytes, {.name = "weights", .on_host = true});
  std::vector<std::byte> delta;
  {
    const GilReleased released;
    Threads pool(threads);
    DeltaOptions options = delta_options(false, pool);
    options.classes = classes;
    delta = delta_encode(tensors_of(described), olds.spans, news.spans, options);
  }
  return nb::bytes(delta.data(), delta.size());
}

void check_delta(const std::vector<Described>& described, const Arrays& base, nb::handle delta,
                 bool trusts, unsigned threads) {
  const auto values = import_all(base, read_bytes, {.name = "weights", .on_host = true});
  const auto bytes = read_bytes(delta, {.name = "delta", .on_host = true});
  const GilReleased released;
  Threads pool(threads);
  delta_check(tensors_of(described), values.spans, bytes.span, delta_options(trusts, pool));
}

void apply_delta(const std::vector<Described>& described, const Arrays& weights, nb::handle delta,
                 bool trusts, unsigned threads) {
  const auto values = import_all(weights, write_bytes, {.name = "weights", .on_host = true});
  const auto bytes = read_bytes(delta, {.name = "delta", .on_host = true});
  const GilReleased released;
  Threads pool(threads);
  delta_apply(tensors_of(described), values.spans, bytes.span, delta_options(trusts, pool));
}

/// A checked and decoded delta for weights on the host or on a device.
class Prepared {
 public:
  Prepared(const std::vector<Described>& described, const Arrays& base, nb::handle delta,
           bool trusts, unsigned threads) {
    const PlacedWeights placed(base, read_bytes);
    const auto bytes = read_bytes(delta, {.name = "delta", .on_host = true});
    const GilReleased released;
    Threads pool(threads);
    const DeltaOptions options = delta_options(trusts, pool);
    const std::vector<DeltaTensor> tensors = tensors_of(described);
    if (placed.memory == Memory::kHost)
      host_.emplace(tensors, placed.values.spans, bytes.span, options);
    else
      device_.emplace(tensors, placed.values.spans, bytes.span, placed.stream, options);
  }

  void write(const Arrays& weights, unsigned threads) {
    const PlacedWeights placed(weights, write_bytes);
    const GilReleased released;
    Threads pool(threads);
    if (host_)
      host_->write(placed.values.spans, &pool);
    else
      device_->write(placed.values.spans, placed.stream);
  }

  void undo(const Arrays& weights) {
    const PlacedWeights placed(weights, write_bytes);
    const GilReleased released;
    if (host_)
      host_->undo(placed.values.spans);
    else
      device_->undo(placed.values.spans, placed.stream);
  }

  std::size_t bytes() const { return host_ ? host_->bytes() : device_->bytes(); }

 private:
  std::optional<PreparedDelta> host_;
  std::optional<PreparedDeviceDelta> device_;
};

std::vector<DeltaEntry> entries_of_delta(nb::handle delta) {
  return delta_entries(read_bytes(delta, {.name = "delta", .on_host = true}).span);
}

}  // namespace

void bind_delta(nb::module_& module) {
  const nb::object type =
      nb::exception<BaseMismatchError>(module, "BaseMismatchError", module.attr("Error"));
  type.attr("__doc__") =
      "The weights are not the base of a delta: a delta before is missing, or a value changed. "
      "Nothing was written.\n\n"
      "Example::\n\n"
      "    weights = {\"bias\": numpy.zeros(3, numpy.float32)}\n"
      "    other = {\"bias\": numpy.ones(3, numpy.float32)}\n"
      "    delta = tersor.delta.encode(weights, other)\n"
      "    try:\n"
      "        tersor.delta.apply(other, delta)\n"
      "    except tersor.delta.BaseMismatchError:\n"
      "        ...  # receive all weights";
  nb::class_<DeltaEntry>(module, "DeltaEntry", "A tensor in a delta.")
      .def_prop_ro(
          "name", [](const DeltaEntry& self) { return self.tensor.name; }, "Name of the tensor.")
      .def_prop_ro(
          "dtype",
          [](const DeltaEntry& self) { return std::string(delta_dtype_name(self.tensor.dtype)); },
          "Name of the dtype.")
      .def_prop_ro(
          "shape", [](const DeltaEntry& self) { return self.tensor.shape; }, "The dimensions.")
      .def_ro("count", &DeltaEntry::count, "Number of values.")
      .def_ro("changed", &DeltaEntry::changed, "Number of changed values.")
      .def_ro("classes", &DeltaEntry::classes, "Classes of exponents.")
      .def_ro("bytes", &DeltaEntry::bytes, "Bytes in the delta.");
  module.def("delta_encode", &encode_delta, "tensors"_a, "base"_a, "new"_a, "classes"_a,
             "threads"_a,
             "Returns the delta between two lists of arrays.\n\n"
             "Args:\n"
             "  tensors: Name, dtype and shape of each array.\n"
             "  base: Bytes of the old values.\n"
             "  new: Bytes of the new values.\n"
             "  classes: 1, 2 or 4; 0: the fewest bytes.\n"
             "  threads: Number of threads; 0: one per core.\n\n"
             "Raises:\n"
             "  InvalidArgumentError: Arrays do not fit.");
  module.def("delta_check", &check_delta, "tensors"_a, "base"_a, "delta"_a, "trusts"_a, "threads"_a,
             "Checks a delta, and writes nothing.\n\n"
             "Args:\n"
             "  tensors: Name, dtype and shape of each array.\n"
             "  base: Bytes of the old values.\n"
             "  delta: The delta.\n"
             "  trusts: True if the base's checksum need not be read.\n"
             "  threads: Number of threads; 0: one per core.\n\n"
             "Raises:\n"
             "  WireError: The delta is damaged.\n"
             "  InvalidArgumentError: The delta belongs to another model.\n"
             "  BaseMismatchError: The delta belongs to another base.");
  module.def("delta_apply", &apply_delta, "tensors"_a, "weights"_a, "delta"_a, "trusts"_a,
             "threads"_a,
             "Checks a delta, then changes the arrays in place.\n\n"
             "Args:\n"
             "  tensors: Name, dtype and shape of each array.\n"
             "  weights: Bytes of the old values.\n"
             "  delta: The delta.\n"
             "  trusts: True if the base's checksum need not be read.\n"
             "  threads: Number of threads; 0: one per core.\n\n"
             "Raises:\n"
             "  As delta_check.");
  nb::class_<Prepared>(module, "PreparedDelta", "A checked and decoded delta.")
      .def(nb::init<const std::vector<Described>&, const Arrays&, nb::handle, bool, unsigned>(),
           "tensors"_a, "base"_a, "delta"_a, "trusts"_a, "threads"_a,
           "Checks and decodes a delta, and writes nothing.\n\n"
           "Args:\n"
           "  tensors: Name, dtype and shape of each array.\n"
           "  base: Bytes of the old values, all on the host or all on a device.\n"
           "  delta: The delta.\n"
           "  trusts: True if the base's checksum need not be read.\n"
           "  threads: Number of threads; 0: one per core.\n\n"
           "Raises:\n"
           "  As delta_check.")
      .def("write", &Prepared::write, "weights"_a, "threads"_a,
           "Turns the base into the result, in place.")
      .def("undo", &Prepared::undo, "weights"_a,
           "Turns the result, or a mixture of result and base, into the base.")
      .def_prop_ro("bytes", &Prepared::bytes, "Size in bytes.");
  module.def("delta_entries", &entries_of_delta, "delta"_a,
             "Returns a DeltaEntry for each tensor.\n\n"
             "Args:\n"
             "  delta: The delta.\n\n"
             "Raises:\n"
             "  WireError: The delta is damaged.");
}

}  // namespace tersor::python
