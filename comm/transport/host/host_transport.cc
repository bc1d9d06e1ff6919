// Implements the Transport of ranks on hosts, on any wire: checks arguments and creates transfers.
#include <chrono>
#include <numeric>
#include <string>

#include "comm/transport/arguments.h"
#include "comm/transport/host/rounds.h"
#include "comm/transport/host/staging.h"
#include "kernels/device/device.h"
#include "kernels/host/elementwise.h"

namespace tersor {
namespace host {
namespace {

constexpr std::chrono::seconds kDrainTimeout{10};  // for work queued on a device

/// The first non-empty part, or an empty part. Throws InvalidArgumentError if dtypes or memories
/// differ between non-empty parts.
ValueSpan any_part(const Operation& operation, std::span<const ValueSpan> parts) {
  ValueSpan any;
  for (const ValueSpan& part : parts) {
    if (part.empty()) continue;
    if (any.empty()) any = part;
    if (part.dtype() != any.dtype())
      refuse(operation, "parts are " + std::string(dtype_name(any.dtype())) + " and " +
                            std::string(dtype_name(part.dtype())) + ": give one dtype");
    if (part.memory() != any.memory())
      refuse(operation, "parts are on the host and on a device: give one memory");
  }
  return any;
}

std::size_t count_of(std::span<const ValueSpan> parts) {
  return std::accumulate(
      parts.begin(), parts.end(), std::size_t{0},
      [](std::size_t count, const ValueSpan& part) { return count + part.count(); });
}

class HostTransport final : public Transport {
 public:
  explicit HostTransport(std::shared_ptr<Channel> channel)
      : traits_{.any_thread = channel->engine().traits().any_thread,
                .device = kernels::has_cuda() && !channel->state().is_isolated()},
        channel_(std::move(channel)) {}

  // Notifies the peers still waiting for this rank. If a hung or broken device may still write to
  // memory, the memory is leaked.
  ~HostTransport() override {
    engine().leave(channel_->state());
    if (staging_ != nullptr && !staging_->drain(Clock::now() + kDrainTimeout))
      static_cast<void>(staging_.release());
  }

  int rank() const override { return channel_->rank(); }
  int ranks() const override { return channel_->ranks(); }
  std::vector<int> hosts() const override { return engine().hosts(channel_->state()); }
  TransportTraits traits() const override { return traits_; }
  TransferCounters counters() const override {
    const auto locked = engine().lock();
    return channel_->state().counters;
  }

  std::uint32_t reserve_tags(std::uint32_t count) override {
    if (count > kUnorderedTag - next_tag_) next_tag_ = 0;  // equal on all ranks
    return std::exchange(next_tag_, next_tag_ + count);
  }

  Block block(std::size_t bytes) override {
    return engine().traits().sends_in_place ? Block() : engine().pools().host().take(bytes);
  }

  Handle exchange(const Operation& operation, std::span<const SendTo> sends,
                  std::span<const ReceiveFrom> receives) override {
    if (operation.memory != Memory::kHost) refuse_if_isolated(operation, "device memory");
    check_messages(operation, *this, sends, receives);
    auto exchange = make_exchange(start(operation, operation.calling), receives.size());
    for (const SendTo& message : sends) exchange->add_send(message.peer, message.bytes);
    for (const ReceiveFrom& message : receives)
      exchange->add_receive(message.peer, 0, message.capacity);
    return channel_->start(std::move(exchange));
  }

  Handle all_gather(const Operation& operation, ConstByteSpan send, std::size_t capacity) override {
    refuse_if_isolated(operation, "all_gather and barrier");
    const RoundsTuning tuning;
    if (operation.memory == Memory::kHost && ranks() >= tuning.min_ranks &&
        capacity <= tuning.max_bytes)
      return channel_->start(
          make_gather_in_rounds(start(operation, Calling::kGatherInRounds), send, capacity));
    const bool barrier = operation.calling == Calling::kBarrier;
    auto exchange =
        make_exchange(start(operation, barrier ? Calling::kBarrier : Calling::kAllGather),
                      static_cast<std::size_t>(ranks()) - 1);
    exchange->add_all(send, 0, capacity);
    return channel_->start(std::move(exchange));
  }

  Handle sum(const Operation& operation, std::span<const ValueSpan> parts) override {
    return reduce(operation, parts, Calling::kSum);
  }
  Handle maximum(const Operation& operation, std::span<const ValueSpan> parts) override {
    return reduce(operation, parts, Calling::kMaximum);
  }

  // A fault recorded by calls on frames throws here and aborts the transport on all ranks.
  void begin(const Operation& operation) override {
    if (operation.memory == Memory::kHost) return;
    channel_->check(operation.name);
    try {
      throw_if_faulty(*staging_for(operation).fault());
    } catch (const WireError& error) {
      abort(std::string(operation.name) + ": " + error.what());
      throw;
    }
  }
  FrameFault* fault() override { return traits_.device ? staging().fault() : nullptr; }

  std::unique_ptr<Transport> channel() override {
    return join(all_ranks(ranks()), channel_->state().domain->kind);
  }
  std::unique_ptr<Transport> split(std::span<const int> members) override {
    check_members(members, rank(), ranks());
    return join(members, FaultDomain::Kind::kOrdinary);
  }
  std::unique_ptr<Transport> isolated_channel() override {
    if (!engine().traits().reports_losses) return Transport::isolated_channel();
    return join(all_ranks(ranks()), FaultDomain::Kind::kIsolated);
  }

  void progress() override { channel_->progress(); }
  void wait_activity(Clock::time_point until) override { channel_->wait_activity(until); }
  void wake() override { channel_->wake(); }
  void abort(std::string_view cause) override {
    refuse_if_isolated({.name = "abort"}, "common fault");
    engine().raise(channel_->state(), channel_->name(rank()) + " gave up: " + std::string(cause));
  }
  void close() override { engine().close(); }

 private:
  ProgressEngine& engine() const { return channel_->engine(); }

  /// Throws CudaError in a build without CUDA.
  Staging& staging() {
    if (staging_ == nullptr) staging_ = std::make_unique<Staging>(channel_);
    return *staging_;
  }
  Staging& staging_for(const Operation& operation) {
    staging().check(operation);
    return *staging_;
  }

  Start start(const Operation& operation, Calling call) const {
    return {channel_, operation, {.call = call, .signature = operation.signature}};
  }

  std::unique_ptr<HostExchange> make_exchange(const Start& start, std::size_t receives) {
    if (start.operation.memory == Memory::kHost)
      return std::make_unique<HostExchange>(start, receives);
    return make_staged_exchange(staging_for(start.operation), start, receives);
  }

  Handle reduce(const Operation& operation, std::span<const ValueSpan> parts, Calling call) {
    refuse_if_isolated(operation, "sum and maximum");
    check_entries(operation, parts.size(), ranks());
    Start start = this->start(operation, call);
    Envelope& envelope = start.envelope;
    envelope.signature += operation.whole_bytes;  // selects the algorithm, so the bytes must agree
    const ValueSpan any = any_part(operation, parts);
    envelope.dtype = any.dtype();
    envelope.count = count_of(parts);
    RingWork work{.parts = {parts.begin(), parts.end()},
                  .combine = call == Calling::kSum ? kernels::add_values : kernels::maximum_values};
    for (ValueSpan& part : work.parts)
      if (part.empty()) part = ValueSpan(nullptr, 0, envelope.dtype);
    if (any.memory() == Memory::kHost)
      return channel_->start(make_reduction(start, std::move(work)));
    return channel_->start(make_staged_reduction(staging_for(operation), start, std::move(work)));
  }

  std::unique_ptr<Transport> join(std::span<const int> members, FaultDomain::Kind kind) {
    channel_->check("channel");
    return std::make_unique<HostTransport>(channel_->join(members, kind));
  }

  void refuse_if_isolated(const Operation& operation, std::string_view what) const {
    if (!channel_->state().is_isolated()) return;
    refuse(operation,
           "an isolated channel has no " + std::string(what) + "; use a split of the channel");
  }

  const TransportTraits traits_;
  std::shared_ptr<Channel> channel_;
  std::unique_ptr<Staging> staging_;  // created by the first operation on device memory
  std::uint32_t next_tag_ = 0;
};

}  // namespace
}  // namespace host

std::unique_ptr<Transport> make_transport(std::unique_ptr<Wire> wire) {
  auto engine = std::make_shared<host::ProgressEngine>(std::move(wire));
  return std::make_unique<host::HostTransport>(std::make_shared<host::Channel>(std::move(engine)));
}

}  // namespace tersor
