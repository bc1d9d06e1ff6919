// Binds a worker of the parameter server for arrays in host memory.
#include "python_bindings/src/arrays.h"
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"
#include "python_bindings/src/waiting.h"

#include <tersor/server.h>

#include <cstdint>
#include <memory>
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

/// The destructor of the client may wait for other ranks.
struct HeldClient {
  std::shared_ptr<ParameterClient> own;
};

void bind_frames(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<WorkerFrames>(module, "WorkerFrames",
                           "A worker's frames for one server, without a transport.")
      .def(
          "__init__",
          [](WorkerFrames* self, Arrays like, const ServerOptions& options, int worker, int server,
             int servers) {
            const auto counts = counts_of(like);
            new (self) WorkerFrames(counts, options, worker, server, servers);
          },
          "like"_a, "options"_a, "worker"_a, "server"_a, "servers"_a,
          "Prepares codecs and residuals.\n\n"
          "Args:\n"
          "  like: Arrays with the sizes of the parameters.\n"
          "  options: Equal on all servers and workers.\n"
          "  worker: Number of this worker.\n"
          "  server: Index of the server.\n"
          "  servers: Number of servers.\n\n"
          "Raises:\n"
          "  InvalidArgumentError: A codec is not usable here.")
      .def_prop_ro("push_capacity", &WorkerFrames::push_capacity,
                   "Maximum bytes of a push's frame.")
      .def_prop_ro("signature", &WorkerFrames::signature,
                   "Hash of parameters, codecs and staleness, equal on the server.")
      .def(
          "encode",
          [](WorkerFrames& self, Arrays gradients, std::uint32_t clock, nb::handle out) {
            const auto views = readable(gradients);
            const auto frame = write_bytes(out, {.name = "out"});
            return without_gil([&] { return self.encode(views.spans, clock, frame.span); });
          },
          "gradients"_a, "clock"_a, "out"_a,
          "Encodes the server's part of the gradients and keeps the residuals.\n\n"
          "Args:\n"
          "  gradients: float32 arrays of all parameters.\n"
          "  clock: Clock of this worker.\n"
          "  out: push_capacity bytes, aligned to 16 bytes.\n\n"
          "Returns:\n"
          "  The number of bytes in use.")
      .def(
          "decode",
          [](WorkerFrames& self, nb::handle frame, Arrays parameters) {
            auto bytes = read_bytes(frame, {.name = "frame", .on_host = true});
            const auto copies = align_frames({&bytes.span, 1}, bytes.memory);
            const auto views = writable(parameters);
            without_gil([&] { self.decode(bytes.span, views.spans); });
          },
          "frame"_a, "parameters"_a,
          "Decodes the server's part of the parameters.\n\n"
          "Args:\n"
          "  frame: Result of ParameterShard.pull().\n"
          "  parameters: float32 arrays of all parameters; the server's part is overwritten.\n\n"
          "Raises:\n"
          "  WireError: The frame is damaged.");
}

void bind_client(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<ServerAt>(module, "ServerAt", "The connection of a worker to one server.")
      .def(
          "__init__",
          [](ServerAt* self, Transport& isolated_channel, int rank, ParameterShard* own) {
            new (self) ServerAt{&isolated_channel, rank, own};
          },
          "channel"_a, "rank"_a, "own"_a.none(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 4>(),
          "Args:\n"
          "  channel: The server's isolated channel.\n"
          "  rank: Rank of the server.\n"
          "  own: The server's shard if this rank is the server, else None.");
  nb::class_<ClientStatistics>(module, "ClientStatistics", "Traffic of a worker.")
      .def_ro("sent_bytes", &ClientStatistics::sent_bytes, "Bytes sent to the servers.")
      .def_ro("received_bytes", &ClientStatistics::received_bytes,
              "Bytes received from the servers.");
  nb::class_<HeldClient>(module, "ParameterClient", "A worker of a parameter server.")
      .def(
          "__init__",
          [](HeldClient* self, const std::vector<ServerAt>& servers, Arrays like,
             const ServerOptions& options, double timeout) {
            const auto counts = counts_of(like);
            new (self) HeldClient{
                make_without_gil<ParameterClient>(servers, counts, options, to_timeout(timeout))};
          },
          "servers"_a, "like"_a, "options"_a, "timeout"_a, nb::keep_alive<1, 2>(),
          "Joins all servers.\n\n"
          "Args:\n"
          "  servers: List of ServerAt.\n"
          "  like: Arrays with the sizes of the parameters.\n"
          "  options: Equal on all servers and workers.\n"
          "  timeout: Seconds of each call.\n\n"
          "Raises:\n"
          "  TransportError: A server is gone, or has another model or other options.")
      .def_prop_ro(
          "clock", [](const HeldClient& self) { return self.own->clock(); },
          "Number of pushes, plus the first clock.")
      .def(
          "pull",
          [](HeldClient& self, Arrays parameters) {
            const auto views = writable(parameters);
            without_gil([&] { self.own->pull(views.spans); });
          },
          "parameters"_a,
          "Waits until no other worker is too far behind, and reads the parameters.\n\n"
          "Args:\n"
          "  parameters: float32 arrays to overwrite.")
      .def(
          "push",
          [](HeldClient& self, Arrays gradients) {
            const auto views = readable(gradients);
            without_gil([&] { self.own->push(views.spans); });
          },
          "gradients"_a,
          "Sends gradients and increments the clock. At most two pushes are unanswered.\n\n"
          "Args:\n"
          "  gradients: float32 arrays.\n\n"
          "Raises:\n"
          "  InvalidArgumentError: A value is not finite, or a server rejected a push.")
      .def(
          "flush", [](HeldClient& self) { without_gil([&] { self.own->flush(); }); },
          "Waits until the servers have applied all pushes.")
      .def(
          "statistics", [](const HeldClient& self) { return self.own->statistics(); },
          "Returns the ClientStatistics so far.")
      .def(
          "leave", [](HeldClient& self) { without_gil([&] { self.own->leave(); }); },
          "Waits for all pushes, and leaves the servers.")
      .def(
          "abandon", [](HeldClient& self) { without_gil([&] { self.own->abandon(); }); },
          "Leaves the servers without waiting for pushes.");
}

}  // namespace

void bind_worker(nb::module_& module) {
  bind_frames(module);
  bind_client(module);
}

}  // namespace tersor::python
