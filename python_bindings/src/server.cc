// Binds the parameter server for arrays in host memory.
#include "python_bindings/src/arrays.h"
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"
#include "python_bindings/src/waiting.h"

#include <nanobind/ndarray.h>
#include <tersor/server.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tersor::python {
namespace {

using Floats = nb::ndarray<nb::numpy, float, nb::ndim<1>, nb::c_contig>;
using ConstFloats = nb::ndarray<nb::numpy, const float, nb::ndim<1>, nb::c_contig>;

/// Wraps a Python update of `shard`. The argument is a list of (parameter, weights, gradient). The
/// weights keep the shard alive; the gradient is valid only during the call.
Update python_update(nb::object call, const ParameterShard* shard) {
  const std::shared_ptr<nb::object> held(new nb::object(std::move(call)), [](nb::object* last) {
    const GilHeld gil;
    delete last;
  });
  return [held, shard](std::span<const UpdatePart> parts) {
    const GilHeld gil;
    const nb::object owner = nb::find(shard);
    nb::list list;
    for (const UpdatePart& part : parts) {
      const std::size_t shape[] = {part.weights.size()};
      list.append(nb::make_tuple(
          part.parameter,
          Floats(part.weights.data(), 1, shape, owner).cast(nb::rv_policy::reference),
          ConstFloats(part.gradient.data(), 1, shape, nb::none()).cast(nb::rv_policy::reference)));
    }
    try {
      (*held)(list);
      // No thread without the GIL may destroy the Python error.
    } catch (const nb::python_error& error) {
      throw std::runtime_error(std::string("the parameter server's update function raised ") +
                               error.what());
    }
  };
}

/// The fields of ServerStatistics, for pickle.
using Fields = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                          std::vector<int>>;

Fields fields_of(const ServerStatistics& seen) {
  return {seen.pushes, seen.pulls, seen.refused, seen.pushed_bytes, seen.pulled_bytes, seen.lost};
}

void bind_options(nb::module_& module) {
  nb::class_<ServerOptions> options(module, "ServerOptions",
                                    "Options of servers and workers, equal on all of them.");
  options.def(nb::init<>(), "Sets the defaults of all options.")
      .def_rw("push", &ServerOptions::push, "Codec of gradients.")
      .def_rw("pull", &ServerOptions::pull, "Codec of parameters, without \"+ef\".")
      .def_rw("workers", &ServerOptions::workers, "Workers that join before any parameter changes.")
      .def_rw("model", &ServerOptions::model, "Hash of the names and shapes of the parameters.")
      .def_prop_rw(
          "staleness",
          [](const ServerOptions& self) -> std::optional<std::uint32_t> {
            if (self.staleness == kNoBound) return std::nullopt;
            return self.staleness;
          },
          [](ServerOptions& self, std::optional<std::int64_t> bound) {
            if (bound.has_value() && (*bound < 0 || *bound >= kNoBound))
              throw InvalidArgumentError("staleness is " + std::to_string(*bound) +
                                         "; pass a number of clocks from 0 to " +
                                         std::to_string(kNoBound - 1) + ", or None for no bound");
            self.staleness = static_cast<std::uint32_t>(bound.value_or(kNoBound));
          },
          nb::arg("bound").none(),
          "Clocks that a worker may be ahead of the slowest worker; None: no bound.");
  def_choice<&ServerOptions::reduction>(options, "reduction",
                                        "\"mean\" over the workers, or \"sum\".");
  def_flag<&ServerOptions::checksum, Checksum::kOff, Checksum::kOn>(
      options, "checksum", "True if frames have a checksum.");
  def_flag<&ServerOptions::require_finite, FiniteCheck::kOff, FiniteCheck::kOn>(
      options, "require_finite",
      "True if a server refuses pushes that decode to a NaN or an infinity.");
  nb::class_<ServerStatistics>(module, "ServerStatistics",
                               "Statistics of a parameter server. Can be pickled.")
      .def("__getstate__", &fields_of, "For pickle.")
      .def(
          "__getitem__",
          [](nb::handle self, const char* field) {
            deprecated("statistics[\"" + std::string(field) + "\"]", "use ." + std::string(field));
            return nb::object(self.attr(field));
          },
          nb::arg("field"), "Deprecated: use the attribute.")
      .def(
          "__setstate__",
          [](ServerStatistics& self, const Fields& fields) {
            auto [pushes, pulls, refused, pushed_bytes, pulled_bytes, lost] = fields;
            new (&self) ServerStatistics{pushes, pulls, refused, pushed_bytes, pulled_bytes, lost};
          },
          "For pickle.")
      .def_ro("pushes", &ServerStatistics::pushes, "Number of applied pushes.")
      .def_ro("pulls", &ServerStatistics::pulls, "Number of answered pulls.")
      .def_ro("refused", &ServerStatistics::refused, "Number of rejected calls of workers.")
      .def_ro("pushed_bytes", &ServerStatistics::pushed_bytes, "Bytes received in pushes.")
      .def_ro("pulled_bytes", &ServerStatistics::pulled_bytes, "Bytes sent in pulls.")
      .def_ro("lost", &ServerStatistics::lost, "Workers that left without notice.");
}

/// Converts a pair (rate, momentum) to SGD, or a function to an update.
Update update_of(nb::object update, const ParameterShard* shard) {
  std::pair<float, float> sgd;
  if (nb::try_cast(update, sgd)) return sgd_update(sgd.first, sgd.second);
  return python_update(std::move(update), shard);
}

void bind_shard(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<ParameterShard>(module, "ParameterShard",
                             "One server's part of the parameters, without a transport.")
      .def(
          "__init__",
          [](ParameterShard* self, Arrays parameters, nb::object update,
             const ServerOptions& options, int server, int servers) {
            const auto views = import_all(parameters, read_values, {.on_host = true});
            new (self) ParameterShard(views.spans, update_of(std::move(update), self), options,
                                      server, servers);
          },
          "parameters"_a, "update"_a, "options"_a, "server"_a, "servers"_a,
          "Copies this server's part of the parameters.\n\n"
          "Args:\n"
          "  parameters: All initial values, float32 in host memory.\n"
          "  update: A pair (learning rate, momentum) of SGD, or a function of a list of "
          "(parameter, values, gradient).\n"
          "  options: Equal on all servers and workers.\n"
          "  server: Index of this server.\n"
          "  servers: Number of servers.\n\n"
          "Raises:\n"
          "  InvalidArgumentError: A codec is not usable here.")
      .def("join", &ParameterShard::join, "worker"_a, nb::call_guard<GilReleased>(),
           "Adds a worker, and returns its first clock.\n\n"
           "Args:\n"
           "  worker: Number of the worker.\n\n"
           "Raises:\n"
           "  InvalidArgumentError: The worker has already joined.")
      .def("leave", &ParameterShard::leave, "worker"_a, "lost"_a = false,
           nb::call_guard<GilReleased>(),
           "Removes a worker; no worker waits for the removed worker.\n\n"
           "Args:\n"
           "  worker: Number of the worker.\n"
           "  lost: True if the worker left without notice.")
      .def(
          "leave_out_silent",
          [](ParameterShard& self, double seconds) {
            return without_gil(
                [&] { return self.leave_out_silent(Clock::now() - to_timeout(seconds)); });
          },
          "seconds"_a,
          "Removes the slowest workers that were silent while another worker waited.\n\n"
          "Args:\n"
          "  seconds: Silence after which a worker is lost.\n\n"
          "Returns:\n"
          "  The removed workers.")
      .def("missing", &ParameterShard::missing, nb::call_guard<GilReleased>(),
           "Returns the workers of ServerOptions.workers that have not joined.")
      .def(
          "push",
          [](ParameterShard& self, int worker, std::uint32_t clock, nb::handle frame) {
            auto bytes = read_bytes(frame, {.name = "frame", .on_host = true});
            const auto copies = align_frames({&bytes.span, 1}, bytes.memory);
            without_gil([&] { self.push(worker, clock, bytes.span); });
          },
          "worker"_a, "clock"_a, "frame"_a,
          "Applies or stores a gradient.\n\n"
          "Args:\n"
          "  worker: Number of the worker.\n"
          "  clock: Clock of the worker.\n"
          "  frame: Result of WorkerFrames.encode().\n\n"
          "Raises:\n"
          "  InvalidArgumentError: Another clock or worker, a third waiting push, or a value that "
          "is not finite.\n"
          "  WireError: The frame is damaged.")
      .def("waiting", &ParameterShard::waiting, "worker"_a, nb::call_guard<GilReleased>(),
           "Returns the number of a worker's pushes that are not yet applied.\n\n"
           "Args:\n"
           "  worker: Number of the worker.")
      .def(
          "pull",
          [](ParameterShard& self, int worker, std::uint32_t clock, nb::handle out) {
            const auto frame = write_bytes(out, {.name = "out"});
            return without_gil([&] { return self.pull(worker, clock, frame.span); });
          },
          "worker"_a, "clock"_a, "out"_a,
          "Encodes the parameters for a worker.\n\n"
          "Args:\n"
          "  worker: Number of the worker.\n"
          "  clock: Clock of the worker.\n"
          "  out: pull_capacity bytes, aligned to 16 bytes.\n\n"
          "Returns:\n"
          "  The number of bytes in use.")
      .def_prop_ro("pull_capacity", &ParameterShard::pull_capacity,
                   "Maximum bytes of a pull's frame.")
      .def_prop_ro("signature", &ParameterShard::signature,
                   "Hash of parameters, codecs and staleness, equal on workers.")
      .def("may_pull", &ParameterShard::may_pull, "worker"_a, "clock"_a,
           nb::call_guard<GilReleased>(),
           "Returns True if all other workers are close enough.\n\n"
           "Args:\n"
           "  worker: Number of the worker.\n"
           "  clock: Clock of the worker.")
      .def(
          "part",
          [](const ParameterShard& self, std::size_t parameter) {
            const Segment part = self.part(parameter);
            return std::pair(part.first_index, part.count);
          },
          "parameter"_a,
          "Returns the first index and the number of a parameter's values on this server.\n\n"
          "Args:\n"
          "  parameter: Index of the parameter.")
      .def(
          "values",
          [](const ParameterShard& self, std::size_t parameter) {
            auto* values =
                new std::vector<float>(without_gil([&] { return self.weights(parameter); }));
            const nb::capsule owner(
                values, [](void* last) noexcept { delete static_cast<std::vector<float>*>(last); });
            const std::size_t shape[] = {values->size()};
            return Floats(values->data(), 1, shape, owner);
          },
          "parameter"_a,
          "Returns a copy of a parameter's values on this server.\n\n"
          "Args:\n"
          "  parameter: Index of the parameter.")
      .def("statistics", &ParameterShard::statistics, nb::call_guard<GilReleased>(),
           "Returns the ServerStatistics so far.");
  module.def(
      "serve",
      [](Transport& isolated_channel, ParameterShard& shard, double timeout,
         double straggler_timeout) {
        without_gil([&] {
          serve(isolated_channel, shard, to_timeout(timeout), to_timeout(straggler_timeout));
        });
      },
      "channel"_a, "shard"_a, "timeout"_a, "straggler_timeout"_a,
      "Answers workers until all have left or are lost.\n\n"
      "Args:\n"
      "  channel: This server's isolated channel.\n"
      "  shard: The parameters.\n"
      "  timeout: Timeout of the clients in seconds.\n"
      "  straggler_timeout: Seconds after which a silent worker is lost while another waits.\n\n"
      "Raises:\n"
      "  TransportError: A worker did not join within half of `timeout`.");
}

}  // namespace

void bind_server(nb::module_& module) {
  module.def(
      "isolated_channel",
      [](Transport& transport) {
        return make_patient([&] { return transport.isolated_channel(); });
      },
      nb::arg("transport"), nb::keep_alive<0, 1>(),
      "Returns a channel of the same ranks whose operations fail alone. A collective call.\n\n"
      "Args:\n"
      "  transport: Connects the ranks.");
  bind_options(module);
  bind_shard(module);
}

}  // namespace tersor::python
