// Binds the TCP transport. The rendezvous uses a Python store, or a store at rank 0's address.
#include <tersor/error.h>
#include <tersor/tcp.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "comm/transport/tcp/rendezvous.h"
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"
#include "python_bindings/src/waiting.h"

namespace tersor::python {

template <>
inline constexpr Texts<3> kChoice<TcpProtection> = {"protect", {"none", "authenticate", "encrypt"}};

namespace {

using namespace std::chrono_literals;

/// Calls `set(key, value)` and `get(key, seconds)` of a Python object with the GIL held. `get`
/// returns None after a timeout. An exception from Python, including Ctrl-C, ends the rendezvous.
class PythonStore final : public KeyValueStore {
 public:
  explicit PythonStore(nb::handle store) : store_(store) {}

  void set(const std::string& key, const std::string& value) override {
    const GilHeld held;
    store_.attr("set")(key, value);
  }

  std::string get(const std::string& key, Clock::time_point until) override {
    const GilHeld held;
    const std::chrono::duration<double> left = until - Clock::now();
    const nb::object found = store_.attr("get")(key, left.count());
    if (found.is_none()) throw TransportError("the rank wrote nothing to the store");
    if (nb::isinstance<nb::bytes>(found)) {  // from PyTorch's stores
      const auto bytes = nb::borrow<nb::bytes>(found);
      return {bytes.c_str(), bytes.size()};
    }
    return nb::cast<std::string>(found);
  }

 private:
  const nb::handle store_;
};

/// A store at rank 0's address. Rank 0 reads the values of ranks 1, 2, … in order and sets a single
/// value for all ranks. Ctrl-C ends each wait.
class RendezvousStore final : public KeyValueStore {
 public:
  RendezvousStore(const std::string& address, int rank, int ranks, const TcpOptions& options)
      : timeout_(options.timeout + kFailsWithin),
        world_(enter(address, rank, ranks, options)),
        channel_(world_->isolated_channel()) {}

  void set(const std::string&, const std::string& value) override {
    const int end = channel_->rank() == 0 ? channel_->ranks() : 1;
    for (int peer = channel_->rank() == 0 ? 1 : 0; peer < end; ++peer)
      wait(channel_->send(operation(timeout_), peer, std::as_bytes(std::span(value))));
  }

  std::string get(const std::string&, Clock::time_point until) override {
    const int peer = channel_->rank() == 0 ? ++asked_ : 0;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    const Handle found =
        wait(channel_->receive(operation(std::max(left, 0ms)), peer, kMostValueBytes));
    const ConstByteSpan value = found.received(peer);
    return {reinterpret_cast<const char*>(value.data()), value.size()};
  }

 private:
  static constexpr auto kLookEvery = 50ms;
  // Time for the call that reports why rank 0 is unreachable.
  static constexpr auto kFailsWithin = 10s;
  static constexpr std::size_t kMostValueBytes = std::size_t{1} << 26;  // 1 KiB per rank

  static Operation operation(std::chrono::milliseconds timeout) {
    return {.name = "rendezvous", .tag = kUnorderedTag, .timeout = timeout};
  }

  /// The host name of rank 0 may resolve only after rank 0 has started.
  static std::unique_ptr<Transport> enter(const std::string& address, int rank, int ranks,
                                          const TcpOptions& options) {
    for (const auto begin = Clock::now();; std::this_thread::sleep_for(kLookEvery)) try {
        raise_signals();
        return tcp::make_rendezvous_transport(address, rank, ranks, options);
      } catch (const TransportError&) {
        if (rank == 0 || Clock::now() - begin >= options.timeout) throw;
      }
  }

  static void raise_signals() {
    const GilHeld held;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }

  Handle wait(Handle handle) {
    while (!handle.test()) {
      channel_->wait_activity(Clock::now() + kLookEvery);
      raise_signals();
    }
    return handle;
  }

  const std::chrono::milliseconds timeout_;
  const std::unique_ptr<Transport> world_, channel_;
  int asked_ = 0;
};

/// `store` is a Python object, or rank 0's address as a string.
std::unique_ptr<Transport> meet(nb::handle store, int rank, int ranks, const TcpOptions& options) {
  const auto address = nb::isinstance<nb::str>(store) ? nb::cast<std::string>(store) : "";
  return without_gil([&] {
    std::unique_ptr<KeyValueStore> found;
    if (address.empty())
      found = std::make_unique<PythonStore>(store);
    else
      found = std::make_unique<RendezvousStore>(address, rank, ranks, options);
    return make_tcp_transport(*found, rank, ranks, options);
  });
}

/// The Python class TcpTransport.
class StoreTransport final : public PatientTransport {
 public:
  using PatientTransport::PatientTransport;
};

}  // namespace

void bind_tcp(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<StoreTransport, Transport>(
      module, "TcpTransport",
      "A transport for host memory over TCP connections between processes.\n\n"
      "Args:\n"
      "  store: An object with set(key, value) and get(key, seconds), or the address of rank 0, "
      "such as \"10.0.0.3:4711\".\n"
      "  rank: This rank, from 0.\n"
      "  ranks: Number of ranks.\n"
      "  address: Interface, address or host name of this rank; empty: chosen by Tersor.\n"
      "  timeout: Seconds for the rendezvous.\n"
      "  secret: At least 16 bytes, equal on all ranks; empty: drawn by rank 0 and shared in the "
      "store.\n"
      "  protect: \"none\", \"authenticate\" or \"encrypt\".\n\n"
      "Raises:\n"
      "  InvalidArgumentError: An argument is invalid.\n"
      "  AddressError: This rank cannot listen at its address.\n"
      "  TransportError: A rank is late or unreachable.")
      .def(
          "__init__",
          [](StoreTransport* made, nb::object store, int rank, int ranks, std::string address,
             double timeout, std::string secret, std::string_view protect) {
            new (made) StoreTransport(meet(store, rank, ranks,
                                           {.address = std::move(address),
                                            .timeout = to_timeout(timeout),
                                            .secret = std::move(secret),
                                            .protect = parse_choice<TcpProtection>(protect)}));
          },
          "store"_a, "rank"_a, "ranks"_a, "address"_a, "timeout"_a, "secret"_a = "",
          "protect"_a = "none", "See the class.")
      .def("close", &StoreTransport::close, nb::call_guard<GilReleased>(),
           "Closes the connections and notifies the other ranks. Later calls raise "
           "TransportError.");
}

}  // namespace tersor::python
