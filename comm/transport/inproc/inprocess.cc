// Implements <tersor/inprocess.h>.
#include <tersor/inprocess.h>

#include <exception>
#include <mutex>
#include <thread>

#include "comm/transport/host/host_transport.h"
#include "comm/transport/inproc/postman.h"
#include "comm/transport/inproc/world.h"

namespace tersor {
namespace {

/// Keeps the first exception of its own kind and the first that may be a peer's fault passed on.
class FirstErrors {
 public:
  void keep(std::exception_ptr error, bool passed_on) {
    const std::lock_guard lock(mutex_);
    std::exception_ptr& first = passed_on ? passed_on_ : own_;
    if (first == nullptr) first = std::move(error);
  }
  /// Throws what says most, if there is anything.
  void rethrow() const {
    if (own_ != nullptr) std::rethrow_exception(own_);
    if (passed_on_ != nullptr) std::rethrow_exception(passed_on_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr own_;
  std::exception_ptr passed_on_;
};

void run_rank(Transport& transport, const std::function<void(Transport&)>& body,
              FirstErrors& errors) {
  try {
    body(transport);
  } catch (const std::exception& exception) {
    const bool passed_on = dynamic_cast<const TransportError*>(&exception) != nullptr;
    errors.keep(std::current_exception(), passed_on);
    transport.poison(exception.what());
  } catch (...) {
    errors.keep(std::current_exception(), false);
    transport.poison("an exception of unknown type");
  }
}

}  // namespace

struct InProcessWorld::State : inproc::World {
  using World::World;
};

InProcessWorld::InProcessWorld(int ranks, Link link)
    : state_(std::make_shared<State>(ranks, link)) {}

InProcessWorld::~InProcessWorld() = default;

int InProcessWorld::ranks() const { return state_->ranks(); }

std::unique_ptr<Transport> InProcessWorld::transport(int rank) {
  return std::make_unique<host::HostTransport>(
      std::make_shared<inproc::InProcessPostman>(state_, state_->claim(rank)), TransportTraits{});
}

void run_ranks(int ranks, const Link& link, const std::function<void(Transport&)>& body) {
  InProcessWorld world(ranks, link);
  FirstErrors errors;
  std::vector<std::jthread> threads;
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank) transports.push_back(world.transport(rank));
  for (auto& transport : transports)
    threads.emplace_back(
        [&body, &errors, own = std::move(transport)] { run_rank(*own, body, errors); });
  threads.clear();
  errors.rethrow();
}

}  // namespace tersor
