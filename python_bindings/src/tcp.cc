// Ranks over TCP connections, which meet in a store that is a Python object.
#include <tersor/error.h>
#include <tersor/tcp.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"
#include "python_bindings/src/waiting.h"

namespace tersor::python {

template <>
inline constexpr Texts<3> kChoice<TcpProtection> = {"protect", {"none", "authenticate", "encrypt"}};

namespace {

/// Calls `set(key, value)` and `get(key, seconds)` of a Python object with the GIL held. `get`
/// returns None after a timeout. An exception from Python, including Ctrl-C, ends the rendezvous.
class PythonStore final : public KeyValueStore {
 public:
  explicit PythonStore(nb::handle store) : store_(store) {}

  void set(const std::string& key, const std::string& value) override {
    const nb::gil_scoped_acquire held;
    store_.attr("set")(key, value);
  }

  std::string get(const std::string& key, Clock::time_point until) override {
    const nb::gil_scoped_acquire held;
    const std::chrono::duration<double> left = until - Clock::now();
    const nb::object found = store_.attr("get")(key, left.count());
    if (found.is_none()) throw TransportError("it left no word in the store");
    return nb::cast<std::string>(found);
  }

 private:
  const nb::handle store_;
};

/// A TcpTransport constructed and destroyed without the GIL.
class StoreTransport final : public ForwardingTransport {
 public:
  StoreTransport(nb::handle store, int rank, int ranks, const TcpOptions& options)
      : StoreTransport(ended_without_gil(without_gil([&] {
          PythonStore words(store);
          return std::make_unique<TcpTransport>(words, rank, ranks, options);
        }))) {}

  void close() { tcp_->close(); }

 private:
  explicit StoreTransport(std::shared_ptr<TcpTransport> tcp)
      : ForwardingTransport(tcp), tcp_(std::move(tcp)) {}

  std::shared_ptr<TcpTransport> tcp_;
};

}  // namespace

void bind_tcp(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<StoreTransport, Transport>(module, "TcpTransport",
                                        "Host memory over TCP connections between processes.")
      .def(
          "__init__",
          [](StoreTransport* made, nb::object store, int rank, int ranks, std::string address,
             double timeout, std::string secret, std::string_view protect) {
            new (made) StoreTransport(store, rank, ranks,
                                      {.address = std::move(address),
                                       .timeout = to_timeout(timeout),
                                       .secret = std::move(secret),
                                       .protect = parse_choice<TcpProtection>(protect)});
          },
          "store"_a, "rank"_a, "ranks"_a, "address"_a, "timeout"_a, "secret"_a = "",
          "protect"_a = "none")
      .def("close", &StoreTransport::close, nb::call_guard<nb::gil_scoped_release>(),
           "Says goodbye to the others and ends the connections. Later calls raise "
           "TransportError.");
}

}  // namespace tersor::python
