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
      throw InvalidArgumentError("rank is " + std::to_string(rank) + "; pass 0 to " +
                                 std::to_string(ranks() - 1));
    const std::lock_guard lock(mutex_);
    auto& own = transports_[static_cast<std::size_t>(rank)];
    if (own == nullptr)
      throw InvalidArgumentError("the transport of rank " + std::to_string(rank) +
                                 " was taken before; take each rank's transport once");
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
      .def(nb::init<int, std::string_view>(), "ranks"_a, "link"_a = "none",
           "Args:\n"
           "  ranks: Number of ranks.\n"
           "  link: The emulated link of each rank, such as \"1Gbit,50us\"; \"none\": no delay.")
      .def_prop_ro("ranks", &InProcessWorld::ranks, "Number of ranks.")
      .def("transport", &InProcessWorld::transport, "rank"_a,
           "Returns the transport of one rank, for this rank's thread. Call once per rank.\n\n"
           "Args:\n"
           "  rank: From 0 to ranks - 1.\n\n"
           "Raises:\n"
           "  InvalidArgumentError: No such rank, or the transport was taken before.");
}

}  // namespace

void bind_transport(nb::module_& module) {
  using namespace nb::literals;
  constexpr double kSeconds = std::chrono::duration<double>(kDefaultTimeout).count();
  nb::class_<TransferCounters>(module, "TransferCounters",
                               "Traffic of one channel, including the transport's headers.")
      .def_ro("sent_bytes", &TransferCounters::sent_bytes, "Sent bytes.")
      .def_ro("received_bytes", &TransferCounters::received_bytes, "Received bytes.")
      .def_ro("sent_messages", &TransferCounters::sent_messages, "Number of sent messages.");
  nb::class_<Transport>(
      module, "Transport",
      "A group of ranks that send bytes to each other. After a fault the transport is aborted: "
      "every later call on any rank raises TransportError with the first cause.")
      .def_prop_ro("rank", &Transport::rank, "This rank, from 0.")
      .def_prop_ro("ranks", &Transport::ranks, "Number of ranks.")
      .def("hosts", &Transport::hosts, nb::call_guard<GilReleased>(),
           "Returns the host number of each rank.")
      .def("counters", &Transport::counters, nb::call_guard<GilReleased>(),
           "Returns the TransferCounters since this channel was made.")
      .def(
          "channel",
          [](Transport& transport) { return make_patient([&] { return transport.channel(); }); },
          nb::keep_alive<0, 1>(),
          "Returns a transport of the same ranks with separate messages. A collective call.")
      .def(
          "split",
          [](Transport& transport, const std::vector<int>& members) {
            return make_patient([&] { return transport.split(members); });
          },
          "members"_a, nb::keep_alive<0, 1>(),
          "Returns a transport of some ranks, numbered from 0. All members call split().\n\n"
          "Args:\n"
          "  members: Ascending ranks, including this rank.\n\n"
          "Raises:\n"
          "  InvalidArgumentError: `members` is not ascending, or lacks this rank.")
      .def("barrier", &wait_for_all, "timeout"_a = kSeconds,
           "Waits until all ranks have called barrier().\n\n"
           "Args:\n"
           "  timeout: Seconds, above 0.\n\n"
           "Raises:\n"
           "  TransportError: A rank is late, failed, or made another call.")
      .def(
          "abort",
          [](Transport& self, nb::str cause) {  // any text, because other ranks wait
            const auto text =
                nb::cast<nb::bytes>(cause.attr("encode")("utf-8", "backslashreplace"));
            without_gil([&] { self.abort({text.c_str(), text.size()}); });
          },
          "cause"_a,
          "Aborts the transport on all ranks.\n\n"
          "Args:\n"
          "  cause: The reason, part of the TransportError on every rank.")
      .def(
          "poison",
          [](Transport& self, std::string_view cause) {
            warn_renamed("Transport.poison", "Transport.abort");
            const GilReleased released;
            self.abort(cause);
          },
          "cause"_a, "The former name of `abort`.");
  bind_inprocess(module);
}

}  // namespace tersor::python
