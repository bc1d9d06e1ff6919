// Implements <tersor/inprocess.h>.
#include <tersor/error.h>
#include <tersor/inprocess.h>
#include <tersor/network.h>

#include <exception>
#include <mutex>
#include <thread>

#include "comm/transport/inproc/wire.h"

namespace tersor {
namespace {

/// Stores the first original exception and the first exception possibly caused by a peer's fault.
class FirstErrors {
 public:
  void record(std::exception_ptr error, bool secondary) {
    const std::lock_guard lock(mutex_);
    std::exception_ptr& first = secondary ? secondary_ : own_;
    if (first == nullptr) first = std::move(error);
  }
  /// Throws the most informative exception, if any.
  void rethrow() const {
    if (own_ != nullptr) std::rethrow_exception(own_);
    if (secondary_ != nullptr) std::rethrow_exception(secondary_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr own_;
  std::exception_ptr secondary_;
};

void run_rank(Transport& transport, const std::function<void(Transport&)>& body,
              FirstErrors& errors) {
  try {
    body(transport);
  } catch (const std::exception& exception) {
    const bool secondary = dynamic_cast<const TransportError*>(&exception) != nullptr;
    errors.record(std::current_exception(), secondary);
    transport.abort(exception.what());
  } catch (...) {
    errors.record(std::current_exception(), false);
    transport.abort("an exception of unknown type");
  }
}

}  // namespace

std::vector<std::unique_ptr<Transport>> make_inprocess_transports(int ranks, const Link& link) {
  std::vector<std::unique_ptr<Transport>> transports;
  for (auto& wire : inproc::make_wires(ranks, link))
    transports.push_back(make_transport(std::move(wire)));
  return transports;
}

void run_ranks(int ranks, const Link& link, const std::function<void(Transport&)>& body) {
  run_ranks(make_inprocess_transports(ranks, link), body);
}

void run_ranks(std::vector<std::unique_ptr<Transport>> transports,
               const std::function<void(Transport&)>& body) {
  FirstErrors errors;
  std::vector<std::jthread> threads;
  for (auto& transport : transports)
    threads.emplace_back(
        [&body, &errors, own = std::move(transport)] { run_rank(*own, body, errors); });
  threads.clear();
  errors.rethrow();
}

}  // namespace tersor
