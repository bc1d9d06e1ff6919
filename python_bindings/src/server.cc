// Binds the parameter server and gossip for arrays in host memory.
#include "python_bindings/src/arrays.h"
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"
#include "python_bindings/src/waiting.h"

#include <nanobind/ndarray.h>
#include <tersor/gossip.h>
#include <tersor/server.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tersor::python {
namespace {

ArrayList<ConstValueSpan> readable(Arrays arrays) {
  return import_all(arrays, read_values, {.on_host = true});
}
ArrayList<ValueSpan> writable(Arrays arrays) {
  return import_all(arrays, write_values, {.on_host = true});
}

std::vector<std::size_t> counts_of(Arrays like) {
  std::vector<std::size_t> counts;
  for (const ConstValueSpan& one : readable(like).spans) counts.push_back(one.count());
  return counts;
}

using Floats = nb::ndarray<nb::numpy, float, nb::ndim<1>, nb::c_contig>;
using ConstFloats = nb::ndarray<nb::numpy, const float, nb::ndim<1>, nb::c_contig>;

/// Wraps a Python update. The argument is a list of (parameter, weights, gradient); the arrays are
/// valid only during the call.
Update python_update(nb::object call) {
  const std::shared_ptr<nb::object> held(new nb::object(std::move(call)), [](nb::object* last) {
    const nb::gil_scoped_acquire gil;
    delete last;
  });
  return [held](std::span<const UpdatePart> parts) {
    const nb::gil_scoped_acquire gil;
    nb::list list;
    for (const UpdatePart& part : parts) {
      const std::size_t shape[] = {part.weights.size()};
      list.append(nb::make_tuple(
          part.parameter,
          Floats(part.weights.data(), 1, shape, nb::none()).cast(nb::rv_policy::reference),
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

/// An object with a destructor that may wait for other ranks.
template <typename T>
struct Held {
  std::shared_ptr<T> own;
};
using HeldClient = Held<ParameterClient>;
using HeldGossip = Held<Gossip>;

void bind_options(nb::module_& module) {
  nb::class_<ServerOptions> options(module, "ServerOptions");
  options.def(nb::init<>())
      .def_rw("push", &ServerOptions::push)
      .def_rw("pull", &ServerOptions::pull)
      .def_rw("workers", &ServerOptions::workers)
      .def_rw("model", &ServerOptions::model)
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
          nb::arg("bound").none());
  def_choice<&ServerOptions::reduction>(options, "reduction");
  def_flag<&ServerOptions::checksum, Checksum::kOff, Checksum::kOn>(options, "checksum");
  def_flag<&ServerOptions::require_finite, FiniteCheck::kOff, FiniteCheck::kOn>(options,
                                                                                "require_finite");
  nb::class_<ServerStatistics>(module, "ServerStatistics", "Statistics of a parameter server.")
      .def_ro("pushes", &ServerStatistics::pushes, "Number of applied pushes.")
      .def_ro("pulls", &ServerStatistics::pulls, "Number of answered pulls.")
      .def_ro("refused", &ServerStatistics::refused, "Number of rejected calls of workers.")
      .def_ro("pushed_bytes", &ServerStatistics::pushed_bytes, "Bytes received in pushes.")
      .def_ro("pulled_bytes", &ServerStatistics::pulled_bytes, "Bytes sent in pulls.")
      .def_ro("lost", &ServerStatistics::lost, "Workers that left without notice.");
}

/// Converts a pair (rate, momentum) to SGD, or a function to an update.
Update update_of(nb::object update) {
  std::pair<float, float> sgd;
  if (nb::try_cast(update, sgd)) return sgd_update(sgd.first, sgd.second);
  return python_update(std::move(update));
}

void bind_shard(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<ParameterShard>(module, "ParameterShard")
      .def(
          "__init__",
          [](ParameterShard* self, Arrays weights, nb::object update, const ServerOptions& options,
             int server, int servers) {
            const auto views = readable(weights);
            new (self)
                ParameterShard(views.spans, update_of(std::move(update)), options, server, servers);
          },
          "weights"_a, "update"_a, "options"_a, "server"_a, "servers"_a)
      .def("join", &ParameterShard::join, "worker"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("leave", &ParameterShard::leave, "worker"_a, "lost"_a = false,
           nb::call_guard<nb::gil_scoped_release>())
      .def(
          "leave_out_silent",
          [](ParameterShard& self, double seconds) {
            return without_gil(
                [&] { return self.leave_out_silent(Clock::now() - to_timeout(seconds)); });
          },
          "seconds"_a)
      .def("missing", &ParameterShard::missing, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "push",
          [](ParameterShard& self, int worker, std::uint32_t clock, nb::handle frame) {
            auto bytes = read_bytes(frame, {.name = "frame", .on_host = true});
            const auto copies = align_frames({&bytes.span, 1}, bytes.memory);
            without_gil([&] { self.push(worker, clock, bytes.span); });
          },
          "worker"_a, "clock"_a, "frame"_a)
      .def("waiting", &ParameterShard::waiting, "worker"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def(
          "pull",
          [](ParameterShard& self, int worker, std::uint32_t clock, nb::handle out) {
            const auto frame = write_bytes(out, {.name = "out"});
            return without_gil([&] { return self.pull(worker, clock, frame.span); });
          },
          "worker"_a, "clock"_a, "out"_a)
      .def_prop_ro("pull_capacity", &ParameterShard::pull_capacity)
      .def_prop_ro("signature", &ParameterShard::signature)
      .def("may_pull", &ParameterShard::may_pull, "worker"_a, "clock"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def(
          "part",
          [](const ParameterShard& self, std::size_t parameter) {
            const Segment part = self.part(parameter);
            return std::pair(part.first_index, part.count);
          },
          "parameter"_a)
      .def(
          "weights",
          [](const ParameterShard& self, std::size_t parameter) {
            auto* values =
                new std::vector<float>(without_gil([&] { return self.weights(parameter); }));
            const nb::capsule owner(
                values, [](void* last) noexcept { delete static_cast<std::vector<float>*>(last); });
            const std::size_t shape[] = {values->size()};
            return Floats(values->data(), 1, shape, owner);
          },
          "parameter"_a)
      .def("statistics", &ParameterShard::statistics, nb::call_guard<nb::gil_scoped_release>());
  module.def(
      "serve",
      [](Transport& isolated_channel, ParameterShard& shard, double timeout,
         double straggler_timeout) {
        without_gil([&] {
          serve(isolated_channel, shard, to_timeout(timeout), to_timeout(straggler_timeout));
        });
      },
      "lifeline"_a, "shard"_a, "timeout"_a, "straggler_timeout"_a);
}

void bind_frames(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<WorkerFrames>(module, "WorkerFrames")
      .def(
          "__init__",
          [](WorkerFrames* self, Arrays like, const ServerOptions& options, int worker, int server,
             int servers) {
            const auto counts = counts_of(like);
            new (self) WorkerFrames(counts, options, worker, server, servers);
          },
          "like"_a, "options"_a, "worker"_a, "server"_a, "servers"_a)
      .def_prop_ro("push_capacity", &WorkerFrames::push_capacity)
      .def_prop_ro("signature", &WorkerFrames::signature)
      .def(
          "encode",
          [](WorkerFrames& self, Arrays gradients, std::uint32_t clock, nb::handle out) {
            const auto views = readable(gradients);
            const auto frame = write_bytes(out, {.name = "out"});
            return without_gil([&] { return self.encode(views.spans, clock, frame.span); });
          },
          "gradients"_a, "clock"_a, "out"_a)
      .def(
          "decode",
          [](WorkerFrames& self, nb::handle frame, Arrays weights) {
            auto bytes = read_bytes(frame, {.name = "frame", .on_host = true});
            const auto copies = align_frames({&bytes.span, 1}, bytes.memory);
            const auto views = writable(weights);
            without_gil([&] { self.decode(bytes.span, views.spans); });
          },
          "frame"_a, "weights"_a);
}

void bind_client(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<ServerAt>(module, "ServerAt")
      .def(
          "__init__",
          [](ServerAt* self, Transport& isolated_channel, int rank, ParameterShard* own) {
            new (self) ServerAt{&isolated_channel, rank, own};
          },
          "lifeline"_a, "rank"_a, "own"_a.none(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 4>());
  nb::class_<ClientStatistics>(module, "ClientStatistics", "Traffic of a worker.")
      .def_ro("sent_bytes", &ClientStatistics::sent_bytes, "Bytes sent to the servers.")
      .def_ro("received_bytes", &ClientStatistics::received_bytes,
              "Bytes received from the servers.");
  nb::class_<HeldClient>(module, "ParameterClient")
      .def(
          "__init__",
          [](HeldClient* self, const std::vector<ServerAt>& servers, Arrays like,
             const ServerOptions& options, double timeout) {
            const auto counts = counts_of(like);
            new (self) HeldClient{
                make_without_gil<ParameterClient>(servers, counts, options, to_timeout(timeout))};
          },
          "servers"_a, "like"_a, "options"_a, "timeout"_a, nb::keep_alive<1, 2>())
      .def_prop_ro("clock", [](const HeldClient& self) { return self.own->clock(); })
      .def(
          "pull",
          [](HeldClient& self, Arrays weights) {
            const auto views = writable(weights);
            without_gil([&] { self.own->pull(views.spans); });
          },
          "weights"_a)
      .def(
          "push",
          [](HeldClient& self, Arrays gradients) {
            const auto views = readable(gradients);
            without_gil([&] { self.own->push(views.spans); });
          },
          "gradients"_a)
      .def("flush", [](HeldClient& self) { without_gil([&] { self.own->flush(); }); })
      .def("statistics", [](const HeldClient& self) { return self.own->statistics(); })
      .def("leave", [](HeldClient& self) { without_gil([&] { self.own->leave(); }); });
}

void bind_gossip(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<GossipStatistics>(module, "GossipStatistics", "Statistics of one gossip rank.")
      .def_ro("steps", &GossipStatistics::steps, "Number of mixed steps.")
      .def_ro("sent_bytes", &GossipStatistics::sent_bytes, "Bytes sent to the neighbours.")
      .def_ro("lost", &GossipStatistics::lost, "Lost neighbours.")
      .def_ro("cut_off", &GossipStatistics::cut_off, "Ranks without a path to this rank.");
  nb::class_<Topology>(module, "Topology")
      .def(
          "__init__",
          [](Topology* self, const std::vector<std::vector<std::pair<int, double>>>& edges) {
            std::vector<std::vector<Edge>> all;
            for (const auto& of_rank : edges) {
              all.emplace_back();
              for (const auto& [rank, weight] : of_rank) all.back().push_back({rank, weight});
            }
            new (self) Topology(std::move(all));
          },
          "edges"_a)
      .def_static("named", &Topology::named, "name"_a, "ranks"_a);
  nb::class_<HeldGossip>(module, "Gossip")
      .def(
          "__init__",
          [](HeldGossip* self, Transport& transport, const Topology& topology,
             const std::string& codec, double step_size, double timeout, bool raises) {
            const GossipOptions options{.codec = codec,
                                        .step_size = step_size,
                                        .timeout = to_timeout(timeout),
                                        .on_split = raises ? OnSplit::kThrow : OnSplit::kContinue};
            new (self) HeldGossip{make_without_gil<Gossip>(transport, topology, options)};
          },
          "transport"_a, "topology"_a, "codec"_a, "step_size"_a, "timeout"_a, "raises"_a,
          nb::keep_alive<1, 2>())
      .def(
          "add",
          [](HeldGossip& self, const std::string& name, nb::handle weights) {
            self.own->add(name,
                          write_values(weights, {.name = name.c_str(), .on_host = true}).span);
          },
          "name"_a, "weights"_a, nb::keep_alive<1, 3>(),
          "Adds a parameter before the first step.\n\n"
          "Args:\n"
          "  name: Name of the parameter.\n"
          "  weights: float32 values in host memory; mix() changes them in place.")
      .def("begin", [](HeldGossip& self) { without_gil([&] { self.own->begin(); }); })
      .def("mix", [](HeldGossip& self) { without_gil([&] { self.own->mix(); }); })
      .def_prop_ro("step_size", [](const HeldGossip& self) { return self.own->step_size(); })
      .def("statistics", [](const HeldGossip& self) { return self.own->statistics(); });
}

}  // namespace

void bind_server(nb::module_& module) {
  module.def(
      "lifeline",
      [](Transport& transport) {
        return make_patient([&] { return transport.isolated_channel(); });
      },
      nb::arg("transport"), nb::keep_alive<0, 1>());
  bind_options(module);
  bind_shard(module);
  bind_frames(module);
  bind_client(module);
  bind_gossip(module);
}

}  // namespace tersor::python
