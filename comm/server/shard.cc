#include <tersor/buffer.h>
#include <tersor/error.h>
#include <tersor/server.h>

#include "comm/server/layout.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace tersor {
namespace {

std::string named(int worker) { return "worker " + std::to_string(worker); }

Buffer copy_of(ConstByteSpan bytes) {  // aligned for decoders
  Buffer copy(bytes.size());
  std::memcpy(copy.pointer(), bytes.data(), bytes.size());
  return copy;
}

std::vector<std::size_t> counts_of(std::span<const ConstValueSpan> parameters) {
  std::vector<std::size_t> counts;
  for (const ConstValueSpan& one : parameters) counts.push_back(one.count());
  return counts;
}

}  // namespace

Update sgd_update(float rate, float momentum) {
  if (!std::isfinite(rate) || !std::isfinite(momentum))
    throw InvalidArgumentError("sgd_update: the rate is " + std::to_string(rate) +
                               " and the momentum " + std::to_string(momentum) +
                               ": give finite numbers");
  using Moments = std::map<std::size_t, std::vector<float>>;
  return [rate, momentum, moments = Moments()](std::span<const UpdatePart> parts) mutable {
    for (const UpdatePart& part : parts) {
      std::vector<float>& moment = moments[part.parameter];
      moment.resize(part.weights.size());
      for (std::size_t i = 0; i < moment.size(); ++i) {
        moment[i] = momentum * moment[i] + part.gradient[i];
        part.weights[i] -= rate * moment[i];
      }
    }
  };
}

struct ParameterShard::State {
  struct Worker {
    std::uint32_t clock = 0;  // number of pushes since the server's first clock
    std::deque<Buffer>
        pending_frames;    // frames waiting for the other workers' frames of the same clock
    bool pulling = false;  // True if the worker waits for the weights of its clock
    Clock::time_point last_active = Clock::now();  // time of the last call, or end of the last wait
  };

  State(std::span<const ConstValueSpan> parameters, Update rule, const ServerOptions& chosen,
        int server, int servers)
      : options(chosen),
        layout(server_layout(counts_of(parameters), chosen, server, servers)),
        update(std::move(rule)),
        workspace(std::max(layout.push_plan.workspace_bytes, layout.pull_plan.workspace_bytes)),
        pulled(layout.pull_plan.frame_bytes) {
    for (const Segment& part : layout.segments) {
      const auto whole = parameters[part.parameter].as<float>();
      const auto own = whole.subspan(part.first_index, part.count);
      weights.emplace_back(own.begin(), own.end());
      gradients.emplace_back(part.count);
    }
  }

  const ServerOptions options;
  const ServerLayout layout;
  Update update;
  Buffer workspace;
  std::vector<std::vector<float>> weights, gradients;
  std::map<int, Worker> workers;
  std::set<int> arrived;         // workers that have joined or were lost, at any time
  std::uint32_t clock = 0;       // first clock of a worker that joins while no worker is present
  Buffer pulled;                 // the encoded weights
  std::size_t pulled_bytes = 0;  // 0 after a change of the weights
  ServerStatistics statistics;
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  std::uint64_t changes = 0;
  std::function<void()> on_progress;
  std::exception_ptr update_error;  // the update may have changed only some weights

  bool is_synchronous() const { return options.staleness == 0; }
  bool has_begun() const {
    return std::ranges::all_of(options.workers, [this](int one) { return arrived.contains(one); });
  }

  Worker& worker_at(int worker) {
    const auto found = workers.find(worker);
    if (found == workers.end())
      throw rejected(named(worker) + " has not joined, or was left out because it was silent");
    return found->second;
  }
  InvalidArgumentError rejected(const std::string& reason) {
    ++statistics.refused;
    return InvalidArgumentError(reason);
  }

  std::uint32_t slowest() const {
    std::uint32_t minimum = workers.empty() ? clock : kNoBound;
    for (const auto& [rank, worker] : workers) minimum = std::min(minimum, worker.clock);
    return minimum;
  }

  bool may_pull(int worker, std::uint32_t at) {
    const auto found = workers.find(worker);
    if (found == workers.end()) return false;
    found->second.pulling = at == found->second.clock;
    return has_begun() && within_staleness(at);
  }
  bool within_staleness(std::uint32_t at) const {
    return std::uint64_t{slowest()} + options.staleness >= at;
  }

  // True if other workers hold up this worker.
  bool waits(const Worker& worker) const {
    return !worker.pending_frames.empty() || (worker.pulling && !within_staleness(worker.clock));
  }

  void decode(std::span<const ConstByteSpan> frames, std::size_t workers_in_mean) {
    std::vector<ValueSpan> outputs(gradients.begin(), gradients.end());
    const bool mean = options.reduction == Reduction::kMean;
    layout.push->decode({.segments = layout.segments,
                         .frames = frames,
                         .outputs = outputs,
                         .factor = mean ? 1.0f / static_cast<float>(workers_in_mean) : 1.0f,
                         .identity = layout.identity(options.checksum),
                         .execution = {.workspace = workspace.span()}});
  }

  // Checks the gradients of a single push, before weights change.
  void check_finite(int worker, std::uint32_t clock) {
    if (options.require_finite == FiniteCheck::kOff) return;
    for (std::size_t i = 0; i < gradients.size(); ++i)
      if (!std::ranges::all_of(gradients[i], [](float one) { return std::isfinite(one); }))
        throw rejected(named(worker) + "'s push for clock " + std::to_string(clock) +
                       ": the gradient of parameter " + std::to_string(i) +
                       " is not finite, and was not added");
  }

  void apply_update(std::size_t frames) {
    std::vector<UpdatePart> parts;
    for (std::size_t i = 0; i < weights.size(); ++i)
      if (!weights[i].empty()) parts.push_back({i, weights[i], gradients[i]});
    pulled_bytes = 0;
    statistics.pushes += frames;
    try {
      if (!parts.empty()) update(parts);
    } catch (...) {
      update_error = std::current_exception();
    }
  }

  bool queues_pushes() const { return is_synchronous() || !has_begun(); }

  // Applies all frames that may change the weights now, in the order of workers. At staleness 0, a
  // single call applies the frames of all workers.
  void apply_pending() {
    const auto has = [](const auto& one) { return !one.second.pending_frames.empty(); };
    while (!update_error && has_begun() && std::ranges::any_of(workers, has)) {
      if (is_synchronous() && !std::ranges::all_of(workers, has)) return;
      std::vector<ConstByteSpan> frames;
      for (const auto& [rank, worker] : workers)
        if (!worker.pending_frames.empty()) frames.push_back(worker.pending_frames.front().span());
      if (is_synchronous()) {
        decode(frames, frames.size());
        apply_update(frames.size());
      } else {
        for (const ConstByteSpan& frame : frames) {
          decode({&frame, 1}, workers.size());
          apply_update(1);
        }
      }
      for (auto& [rank, worker] : workers) {
        if (worker.pending_frames.empty()) continue;
        worker.pending_frames.pop_front();
        worker.last_active = Clock::now();
      }
    }
  }

  void notify(std::unique_lock<std::mutex>& lock) {
    const auto call = on_progress;
    ++changes;
    changed.notify_all();
    lock.unlock();
    if (call) call();
    check();
  }

  void check() const {
    if (update_error) std::rethrow_exception(update_error);
  }
};

ParameterShard::ParameterShard(std::span<const ConstValueSpan> parameters, Update update,
                               const ServerOptions& options, int server, int servers)
    : state_(std::make_unique<State>(parameters, std::move(update), options, server, servers)) {}
ParameterShard::~ParameterShard() = default;

std::uint64_t ParameterShard::signature() const { return state_->layout.signature(); }
const Agreement& ParameterShard::agreement() const { return state_->layout.agreement; }
std::size_t ParameterShard::pull_capacity() const { return state_->layout.pull_plan.frame_bytes; }
std::size_t ParameterShard::push_capacity() const { return state_->layout.push_plan.frame_bytes; }

std::uint32_t ParameterShard::join(int worker) {
  std::unique_lock lock(state_->mutex);
  if (state_->workers.contains(worker))
    throw state_->rejected(named(worker) + " has joined before");
  const std::uint32_t clock = state_->has_begun() ? state_->slowest() : state_->clock;
  state_->workers[worker].clock = clock;
  state_->arrived.insert(worker);
  state_->apply_pending();
  state_->notify(lock);
  return clock;
}

void ParameterShard::leave(int worker, bool lost) {
  std::unique_lock lock(state_->mutex);
  State& state = *state_;
  const bool was_expected = std::ranges::count(state.options.workers, worker) != 0;
  const bool had_joined = state.workers.contains(worker);
  if (lost && (had_joined || (was_expected && !state.arrived.contains(worker))))
    state.statistics.lost.push_back(worker);
  state.arrived.insert(worker);
  if (state.has_begun()) state.clock = state.slowest();
  state.workers.erase(worker);
  state.apply_pending();
  state.notify(lock);
}

void ParameterShard::push(int worker, std::uint32_t clock, ConstByteSpan frame) {
  std::unique_lock lock(state_->mutex);
  State& state = *state_;
  state.check();
  State::Worker& from = state.worker_at(worker);
  if (clock != from.clock)
    throw state.rejected(named(worker) + " pushes for clock " + std::to_string(clock) +
                         ", but its next clock is " + std::to_string(from.clock));
  if (from.pending_frames.size() >= kMaxPendingPushes)
    throw state.rejected(named(worker) + " pushes while " + std::to_string(kMaxPendingPushes) +
                         " of its pushes wait for other workers; wait for an answer first");
  const bool queued = state.queues_pushes();
  try {  // also before a push is kept, so other workers never see damaged frames
    state.decode({&frame, 1}, queued ? 1 : state.workers.size());
  } catch (const WireError&) {
    ++state.statistics.refused;
    throw;
  }
  state.check_finite(worker, clock);
  if (queued)
    from.pending_frames.push_back(copy_of(frame.first(frame_bytes(frame))));
  else
    state.apply_update(1);
  state.statistics.pushed_bytes += frame_bytes(frame);
  ++from.clock;
  from.pulling = false;
  from.last_active = Clock::now();
  state.apply_pending();
  state.notify(lock);
}

std::size_t ParameterShard::waiting(int worker) const {
  const std::lock_guard lock(state_->mutex);
  state_->check();
  const auto found = state_->workers.find(worker);
  return found == state_->workers.end() ? 0 : found->second.pending_frames.size();
}

bool ParameterShard::may_pull(int worker, std::uint32_t clock) const {
  const std::lock_guard lock(state_->mutex);
  state_->check();
  return state_->may_pull(worker, clock);
}

std::size_t ParameterShard::pull(int worker, std::uint32_t clock, ByteSpan frame) {
  const std::lock_guard lock(state_->mutex);
  State& state = *state_;
  state.check();
  if (!state.may_pull(worker, clock))
    throw state.rejected(named(worker) + " at clock " + std::to_string(clock) +
                         " is ahead of the others, or has not joined");
  if (state.pulled_bytes == 0) {
    std::vector<ConstValueSpan> weights(state.weights.begin(), state.weights.end());
    state.layout.pull->encode({.segments = state.layout.segments,
                               .gradients = weights,
                               .random = {.key = state.layout.signature(), .step = clock},
                               .identity = state.layout.identity(state.options.checksum),
                               .execution = {.workspace = state.workspace.span()}},
                              state.pulled.span());
    state.pulled_bytes = frame_bytes(state.pulled.span());
  }
  std::memcpy(frame.data(), state.pulled.pointer(), state.pulled_bytes);
  state.worker_at(worker).pulling = false;
  state.worker_at(worker).last_active = Clock::now();
  ++state.statistics.pulls;
  state.statistics.pulled_bytes += state.pulled_bytes;
  return state.pulled_bytes;
}

std::vector<int> ParameterShard::leave_out_silent(Clock::time_point since) {
  std::vector<int> silent;
  {
    const std::lock_guard lock(state_->mutex);
    const State& state = *state_;
    const auto waits = [&](const auto& one) { return state.waits(one.second); };
    if (!state.has_begun() || std::ranges::none_of(state.workers, waits)) return {};
    for (const auto& [rank, worker] : state.workers)
      if (worker.clock == state.slowest() && worker.pending_frames.empty() && !worker.pulling &&
          worker.last_active < since)
        silent.push_back(rank);
  }
  for (const int worker : silent) leave(worker, true);
  return silent;
}

std::vector<int> ParameterShard::missing() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<int> missing;
  for (const int worker : state_->options.workers)
    if (!state_->arrived.contains(worker)) missing.push_back(worker);
  return missing;
}

bool ParameterShard::has_begun() const {
  const std::lock_guard lock(state_->mutex);
  return state_->has_begun();
}

bool ParameterShard::is_over() const {
  const std::lock_guard lock(state_->mutex);
  state_->check();
  return state_->has_begun() && !state_->arrived.empty() && state_->workers.empty();
}

Segment ParameterShard::part(std::size_t parameter) const {
  return state_->layout.segments.at(parameter);
}

std::vector<float> ParameterShard::weights(std::size_t parameter) const {
  const std::lock_guard lock(state_->mutex);
  return state_->weights.at(parameter);
}

ServerStatistics ParameterShard::statistics() const {
  const std::lock_guard lock(state_->mutex);
  return state_->statistics;
}

void ParameterShard::on_progress(std::function<void()> call) {
  const std::lock_guard lock(state_->mutex);
  state_->on_progress = std::move(call);
}

void ParameterShard::wait(const std::function<bool()>& done, Clock::time_point until) const {
  for (std::uint64_t seen = 0; Clock::now() < until;) {
    {
      const std::lock_guard lock(state_->mutex);
      seen = state_->changes;
    }
    if (done()) return;
    std::unique_lock lock(state_->mutex);
    state_->changed.wait_until(lock, until, [&] { return state_->changes != seen; });
  }
}

}  // namespace tersor
