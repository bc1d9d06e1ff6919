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

/// Keeps the exception that says most: the first that is not merely a peer's fault passed on.
class FirstError {
 public:
  void keep(std::exception_ptr error, bool passed_on) {
    const std::lock_guard lock(mutex_);
    if (error_ != nullptr && (passed_on || !passed_on_)) return;
    error_ = std::move(error);
    passed_on_ = passed_on;
  }
  void rethrow() const {
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  bool passed_on_ = false;
};

void run_rank(Transport& transport, const std::function<void(Transport&)>& body,
              FirstError& error) {
  try {
    body(transport);
  } catch (const std::exception& exception) {
    const bool passed_on = dynamic_cast<const TransportError*>(&exception) != nullptr;
    error.keep(std::current_exception(), passed_on);
    transport.poison(exception.what());
  } catch (...) {
    error.keep(std::current_exception(), false);
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
  FirstError error;
  std::vector<std::jthread> threads;
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank) transports.push_back(world.transport(rank));
  for (auto& transport : transports)
    threads.emplace_back(
        [&body, &error, own = std::move(transport)] { run_rank(*own, body, error); });
  threads.clear();
  error.rethrow();
}

}  // namespace tersor
