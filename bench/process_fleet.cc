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
        library_(parts.library),
        barriers_(parts.barriers) {}

  Transport& transport() override { return measured_; }
  bool stores() override { return true; }

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

  void library_sum(ValueSpan values, StreamView stream) override {
    if (!library_) return Rank::library_sum(values, stream);
    library_->sum(values, stream);
  }
  void library_call(std::string_view name, ConstValueSpan input, ValueSpan output) override {
    if (!library_ || !library_->call) return Rank::library_call(name, input, output);
    library_->call(name, input, output);
  }

 private:
  Transport& control_;
  Transport& measured_;
  const std::optional<Library>& library_;
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
  std::optional<std::string> library() const override {
    return parts_.library ? std::optional(parts_.library->name) : std::nullopt;
  }
  bool has_library_calls() const override { return parts_.library && parts_.library->call; }

  void run(const std::function<void(Rank&)>& body) override {
    ProcessRank rank(parts_, *measured_);
    try {
      body(rank);
    } catch (const TransportError&) {
      throw;
    } catch (const std::exception& error) {
      parts_.transport->poison(error.what());  // the others would wait for us
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
