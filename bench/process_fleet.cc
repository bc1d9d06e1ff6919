// Implements process_fleet.h.

#include "bench/process_fleet.h"

#include <tersor/error.h>

#include <cstdio>
#include <utility>

namespace tersor::bench {
namespace {

class ProcessRank final : public Rank {
 public:
  ProcessRank(ProcessFleetParts& parts, Transport& measured)
      : control_(*parts.transport),
        measured_(measured),
        library_(parts.library ? &*parts.library : nullptr),
        barriers_(parts.barriers) {}

  Transport& transport() override { return measured_; }
  bool stores() override { return true; }
  const Library* library() const override { return library_; }

  void meet() override {
    for (int round = 0; round < barriers_; ++round)
      control_.barrier({.name = "meeting", .tag = control_.reserve_tags(1)}).wait_synchronize();
  }

  std::vector<std::vector<std::byte>> gather_bytes(ConstByteSpan own) override {
    Handle handle = control_.all_gather({.name = "gathering", .tag = control_.reserve_tags(1)}, own,
                                        own.size());
    handle.wait_synchronize();
    std::vector<std::vector<std::byte>> all;
    for (int rank = 0; rank < control_.ranks(); ++rank) {
      const ConstByteSpan bytes = rank == control_.rank() ? own : handle.received(rank);
      all.emplace_back(bytes.begin(), bytes.end());
    }
    return all;
  }

 private:
  Transport& control_;
  Transport& measured_;
  const Library* library_;
  int barriers_;
};

class ProcessFleet final : public Fleet {
 public:
  explicit ProcessFleet(ProcessFleetParts parts)
      : parts_(std::move(parts)), measured_(parts_.transport->channel()) {}

  int ranks() const override { return measured_->ranks(); }
  std::string text() const override { return parts_.text; }
  bool leads() const override { return measured_->rank() == 0; }
  std::optional<int> only_rank() const override { return measured_->rank(); }
  const Library* library() const override { return parts_.library ? &*parts_.library : nullptr; }

  void run(const std::function<void(Rank&)>& body) override {
    ProcessRank rank(parts_, *measured_);
    try {
      body(rank);
    } catch (const TransportError&) {
      throw;
    } catch (const std::exception& error) {
      parts_.transport->poison(error.what());  // the other ranks would wait for this rank
      throw;
    }
  }

 private:
  ProcessFleetParts parts_;
  std::unique_ptr<Transport> measured_;
};

}  // namespace

std::unique_ptr<Fleet> make_process_fleet(ProcessFleetParts parts) {
  if (parts.transport->rank() != 0 && std::freopen("/dev/null", "w", stdout) == nullptr)
    throw Error("cannot silence this rank's output");
  return std::make_unique<ProcessFleet>(std::move(parts));
}

}  // namespace tersor::bench
