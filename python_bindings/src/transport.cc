// Binds the transport interface: ranks, hosts, counters, groups. Python moves bytes only by
// collectives.
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"
#include "python_bindings/src/waiting.h"

#include <tersor/error.h>
#include <tersor/inprocess.h>
#include <tersor/transport.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tersor::python {
namespace {

void wait_for_all(Transport& transport, double timeout) {
  Operation operation{.name = "barrier", .timeout = to_timeout(timeout)};
  without_gil([&] {
    operation.tag = transport.reserve_tags(1);
    transport.barrier(operation).wait_synchronize();
  });
}

/// The transports of ranks in this process. Each transport is given out once.
class InProcessWorld {
 public:
  InProcessWorld(int ranks, std::string_view link)
      : transports_(make_inprocess_transports(ranks, parse_link(link))) {}

  int ranks() const { return static_cast<int>(transports_.size()); }

  std::unique_ptr<Transport> transport(int rank) {
    if (rank < 0 || rank >= ranks())
      throw InvalidArgument("rank " + std::to_string(rank) + " is not one of " +
                            std::to_string(ranks()) + " ranks");
    const std::lock_guard lock(mutex_);
    auto& own = transports_[static_cast<std::size_t>(rank)];
    if (own == nullptr)
      throw InvalidArgument("the transport of rank " + std::to_string(rank) +
                            " was given out before");
    return std::make_unique<PatientTransport>(std::move(own));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Transport>> transports_;
};

/// Binds ranks as threads of a process.
void bind_inprocess(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<InProcessWorld>(module, "InProcessWorld",
                             "A group of ranks in this process, over an emulated link.")
      .def(nb::init<int, std::string_view>(), "ranks"_a, "link"_a = "none")
      .def_prop_ro("ranks", &InProcessWorld::ranks, "Number of ranks.")
      .def("transport", &InProcessWorld::transport, "rank"_a,
           "The transport of one rank, once for each; for that rank's thread.");
}

}  // namespace

void bind_transport(nb::module_& module) {
  using namespace nb::literals;
  constexpr double kSeconds = std::chrono::duration<double>(kDefaultTimeout).count();
  nb::class_<TransferCounters>(module, "TransferCounters",
                               "What one channel really moved, headers of the transport included.")
      .def_ro("sent_bytes", &TransferCounters::sent_bytes)
      .def_ro("received_bytes", &TransferCounters::received_bytes)
      .def_ro("sent_messages", &TransferCounters::sent_messages);
  nb::class_<Transport>(module, "Transport",
                        "Ranks and the movement of bytes between them. A fault poisons it: every "
                        "later call on any rank raises TransportError with the first cause.")
      .def_prop_ro("rank", &Transport::rank, "This rank, from 0.")
      .def_prop_ro("ranks", &Transport::ranks, "How many there are.")
      .def("hosts", &Transport::hosts, nb::call_guard<nb::gil_scoped_release>(),
           "For each rank the number of its host.")
      .def("counters", &Transport::counters, nb::call_guard<nb::gil_scoped_release>(),
           "Since this channel was made.")
      .def(
          "channel",
          [](Transport& transport) { return make_patient([&] { return transport.channel(); }); },
          nb::keep_alive<0, 1>(), "The same ranks with messages of their own; a collective call.")
      .def(
          "split",
          [](Transport& transport, const std::vector<int>& members) {
            return make_patient([&] { return transport.split(members); });
          },
          "members"_a, nb::keep_alive<0, 1>(),
          "The ranks of `members` (ascending, this one among them), numbered anew from 0. Called "
          "by all members.")
      .def("barrier", &wait_for_all, "timeout"_a = kSeconds,
           "Waits until all ranks have come here, for `timeout` seconds at most.")
      .def("poison", &Transport::poison, "cause"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Tells every peer that this rank gives up, and why.");
  bind_inprocess(module);
}

}  // namespace tersor::python
