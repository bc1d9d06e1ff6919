// Implements rank_run.h.
#include "tests/faults/rank_run.h"

#include <tersor/error.h>
#include <tersor/wire.h>

#include <array>
#include <bit>
#include <memory>
#include <stdexcept>

#include "tests/faults/faulty_transport.h"
#include "tests/faults/survivors.h"

namespace tersor::faults {
namespace {

using namespace std::chrono_literals;

/// A borrowed transport for FaultyTransport.
std::shared_ptr<Transport> borrowed(Transport& transport) {
  return {std::shared_ptr<void>(), &transport};
}

class RankRun {
 public:
  RankRun(const Scenario& scenario, Transport& transport, const Doom& doom)
      : scenario_(scenario), doom_(doom), transport_(transport) {}

  RankReport run();

 private:
  bool mine(std::size_t step) const {
    return scenario_.fault.kind != FaultKind::kNone && scenario_.fault.step == step &&
           scenario_.fault.rank == transport_.rank();
  }
  void call_steps();
  /// Calls a step. Returns false if the rank leaves instead.
  bool call_step(Caller& caller, std::size_t step);
  void call_faulty(Caller& caller, std::size_t step);
  void strike();
  Mistake mistake() const;
  void finish(Ending ending, const std::exception& error);
  void call_once_more();
  void go_on();

  const Scenario& scenario_;
  const Doom& doom_;
  Transport& transport_;
  std::unique_ptr<Transport> isolated_channel_ = isolated_channel_of(transport_);
  std::shared_ptr<Trap> trap_ = std::make_shared<Trap>();
  FaultyTransport faulty_{borrowed(transport_), trap_};
  RankReport report_;
};

// Like a trainer: on an error, the rank gives up and sends the reason to the other ranks.
RankReport RankRun::run() {
  try {
    call_steps();
    if (report_.ending == Ending::kCompleted) call_once_more();
  } catch (const TransportError& error) {
    finish(Ending::kTransportError, error);
  } catch (const WireError& error) {
    finish(Ending::kWireError, error);
  } catch (const InvalidArgumentError& error) {
    finish(Ending::kInvalidArgument, error);
  } catch (const std::exception& error) {
    finish(Ending::kOther, error);
  }
  go_on();
  return report_;
}

// A stalled rank wakes up after the other ranks have finished.
void RankRun::go_on() {
  const bool late =
      scenario_.fault.kind == FaultKind::kStop && scenario_.fault.rank == transport_.rank();
  if (isolated_channel_ != nullptr && report_.ending != Ending::kLeft && !late)
    report_.complaints = faults::go_on(scenario_, *isolated_channel_);
}

void RankRun::finish(Ending ending, const std::exception& error) {
  report_.ended = Clock::now();
  report_.ending = ending;
  report_.message = error.what();
  transport_.abort(error.what());
  call_once_more();
}

void RankRun::call_once_more() {
  const auto start = Clock::now();
  try {
    transport_.barrier({.name = "one more barrier", .timeout = 20s}).wait_synchronize();
  } catch (const TransportError& error) {
    report_.later = error.what();
  }
  report_.later_seconds = std::chrono::duration<double>(Clock::now() - start).count();
}

void RankRun::call_steps() {
  Caller caller(scenario_, faulty_);
  for (std::size_t step = 0; step < scenario_.steps.size(); ++step) {
    report_.begun = Clock::now();
    if (!call_step(caller, step)) {
      report_.ending = Ending::kLeft;
      return;
    }
  }
}

bool RankRun::call_step(Caller& caller, std::size_t step) {
  if (!mine(step)) {
    report_.digests.push_back(digest_of(caller.call(step)));
    return true;
  }
  if (scenario_.fault.kind == FaultKind::kSkip) {
    report_.fault_at = Clock::now();
    report_.digests.push_back(0);
    return true;
  }
  if (scenario_.fault.kind != FaultKind::kLeave) {
    call_faulty(caller, step);
    return true;
  }
  report_.fault_at = Clock::now();
  return false;
}

void RankRun::call_faulty(Caller& caller, std::size_t step) {
  const Fault& fault = scenario_.fault;
  report_.fault_at = Clock::now();
  if (fault.kind == FaultKind::kDamage)
    trap_->damage_next(fault.choice);
  else if (fault.operation)
    trap_->set(*fault.operation, [this] { strike(); });
  else
    strike();
  report_.digests.push_back(digest_of(caller.call(step, mistake())));
  trap_->spring();
}

// May run on the reducer's thread.
void RankRun::strike() {
  report_.fault_at = Clock::now();
  switch (scenario_.fault.kind) {
    case FaultKind::kThrow:
      throw std::runtime_error(std::string(kThrownText));
    case FaultKind::kStop:
      return doom_.stall();
    case FaultKind::kKill:
      return doom_.kill();
    case FaultKind::kSuspend:
      return doom_.suspend();
    default:
      return;
  }
}

Mistake RankRun::mistake() const {
  if (scenario_.fault.kind == FaultKind::kRefused) return Mistake::kRefused;
  return is_mistake(scenario_.fault.kind) ? Mistake::kOtherArguments : Mistake::kNone;
}

}  // namespace

std::string_view ending_name(Ending ending) {
  constexpr std::array<std::string_view, 6> kNames = {
      "completed",        "left", "TransportError", "WireError", "InvalidArgumentError",
      "another exception"};
  return kNames[static_cast<std::size_t>(ending)];
}

RankReport run_rank(const Scenario& scenario, Transport& transport, const Doom& doom) {
  return RankRun(scenario, transport, doom).run();
}

std::uint64_t digest_of(const Values& values) {
  std::uint64_t digest = 0xcbf29ce484222325u;  // FNV-1a over values
  for (const float value : values)
    digest = (digest ^ std::bit_cast<std::uint32_t>(value)) * 0x100000001b3u;
  return digest;
}

}  // namespace tersor::faults
