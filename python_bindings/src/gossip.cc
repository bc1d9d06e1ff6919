// Binds gossip for arrays in host memory.
#include "python_bindings/src/arrays.h"
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"
#include "python_bindings/src/waiting.h"

#include <tersor/gossip.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tersor::python {
namespace {

/// The destructor of the gossip may wait for other ranks.
struct HeldGossip {
  std::shared_ptr<Gossip> own;
  std::vector<nb::ndarray<nb::ro>> memory = {};  ///< of the parameters
};

}  // namespace

void bind_gossip(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<GossipStatistics>(module, "GossipStatistics", "Statistics of one gossip rank.")
      .def_ro("steps", &GossipStatistics::steps, "Number of mixed steps.")
      .def_ro("sent_bytes", &GossipStatistics::sent_bytes, "Bytes sent to the neighbours.")
      .def_ro("lost", &GossipStatistics::lost, "Lost neighbours.")
      .def_ro("cut_off", &GossipStatistics::cut_off, "Ranks without a path to this rank.");
  nb::class_<Topology>(module, "Topology",
                       "The neighbours of each rank, with symmetric mixing weights.")
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
          "edges"_a,
          "Builds a graph from its edges.\n\n"
          "Args:\n"
          "  edges: For each rank, pairs of a neighbour and its mixing weight, above 0.\n\n"
          "Raises:\n"
          "  InvalidArgumentError: The graph is invalid; the message names the ranks.")
      .def_static("named", &Topology::named, "name"_a, "ranks"_a,
                  "Returns a graph by its name.\n\n"
                  "Args:\n"
                  "  name: \"ring\", \"torus\" (as square as possible) or \"exponential\".\n"
                  "  ranks: Number of ranks.\n\n"
                  "Raises:\n"
                  "  InvalidArgumentError: There is no such graph.");
  nb::class_<HeldGossip>(module, "Gossip",
                         "Averages parameters among neighbours: CHOCO-SGD (Koloskova, Stich and "
                         "Jaggi 2019, arXiv:1902.00340).")
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
          nb::keep_alive<1, 2>(),
          "A collective call.\n\n"
          "Args:\n"
          "  transport: Connects the ranks.\n"
          "  topology: The graph, equal on all ranks.\n"
          "  codec: Spec without \"+ef\".\n"
          "  step_size: Share of the way to the neighbours per step; 0: chosen from the codec.\n"
          "  timeout: Seconds after which a silent neighbour is lost.\n"
          "  raises: True if mix() raises TransportError after ranks were cut off.\n\n"
          "Raises:\n"
          "  InvalidArgumentError: An option is invalid.")
      .def(
          "add",
          [](HeldGossip& self, const std::string& name, nb::handle parameter) {
            const auto values = write_values(parameter, {.name = name.c_str(), .on_host = true});
            self.own->add(name, values.span);
            self.memory.push_back(values.owner);
          },
          "name"_a, "parameter"_a,
          "Adds a parameter before the first step.\n\n"
          "Args:\n"
          "  name: Name of the parameter.\n"
          "  parameter: float32 values in host memory; mix() changes the values in place.")
      .def(
          "begin", [](HeldGossip& self) { without_gil([&] { self.own->begin(); }); },
          "Encodes and sends the change of the parameters since the last step.\n\n"
          "Raises:\n"
          "  InvalidArgumentError: A value is not finite; nothing was sent.")
      .def(
          "mix", [](HeldGossip& self) { without_gil([&] { self.own->mix(); }); },
          "Waits for the neighbours and moves the parameters towards the neighbours'. Calls "
          "begin() first if necessary.\n\n"
          "Raises:\n"
          "  TransportError: No path leads to some ranks, and `raises` is True.")
      .def_prop_ro(
          "step_size", [](const HeldGossip& self) { return self.own->step_size(); },
          "Share of the way to the neighbours per step.")
      .def(
          "statistics", [](const HeldGossip& self) { return self.own->statistics(); },
          "Returns the GossipStatistics so far.");
}

}  // namespace tersor::python
