// Implements device_transport.h: brackets, agreement, channels and splits. Operations:
// operations.cc.
#include "comm/transport/nccl/device_transport.h"
#include "comm/transport/arguments.h"

#include <tersor/error.h>
#include <tersor/nccl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>

#include "comm/transport/host/hosts.h"
#include "comm/transport/host/signatures.h"
#include "kernels/device/device.h"

namespace tersor::nccl {
namespace {

using namespace std::chrono_literals;

// A gather completed on this rank may still be under way for other ranks.
constexpr auto kTellOthers = 1000ms;
constexpr auto kLongestDeafness = 1ms;

Agreement agreement_of(const Operation& operation) {
  Agreement own;
  own.signature = operation.signature;
  operation.name.copy(own.name, sizeof own.name - 1);
  return own;
}

Agreement agreement_of(ConstByteSpan message) {
  Agreement other;
  std::memcpy(&other, message.data(), std::min(message.size(), sizeof other));
  other.name[sizeof other.name - 1] = '\0';
  return other;
}

/// A hash of the host name and Linux's boot id. Equal for all processes of a machine, including
/// containers with the same host name.
std::uint64_t machine_number() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string started;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> started;
  return Signature().add(std::string_view(name.data())).add(started).value();
}

bool alike(const Agreement& one, const Agreement& other) {
  return one.signature == other.signature && std::strcmp(one.name, other.name) == 0;
}

}  // namespace

std::shared_ptr<Queue> make_lane(const std::shared_ptr<Fabric>& fabric) {
  auto queue = std::make_unique<Queue>(fabric->fault());
  fabric->add(*queue);
  return {queue.release(), [fabric](Queue* made) {
            fabric->remove(*made);
            delete made;
          }};
}

DeviceTransport::DeviceTransport(std::shared_ptr<Fabric> fabric, std::shared_ptr<Queue> queue,
                                 std::unique_ptr<Communicator> communicator,
                                 std::chrono::milliseconds timeout)
    : fabric_(std::move(fabric)),
      queue_(std::move(queue)),
      communicator_(std::move(communicator)),
      timeout_(timeout) {
  fabric_->add(*communicator_);
}

DeviceTransport::DeviceTransport(std::shared_ptr<Fabric> fabric,
                                 std::unique_ptr<Communicator> communicator,
                                 std::chrono::milliseconds timeout)
    : DeviceTransport(fabric, make_lane(fabric), std::move(communicator), timeout) {
  fabric_->watch(name(rank()));
  gather_hosts();
}

// Destroys the communicator before the registered device memory.
DeviceTransport::~DeviceTransport() {
  try {
    queue_->finish();
  } catch (const std::exception&) {
    // after a device failure, no work is queued any more
  }
  fabric_->remove(*communicator_);
  communicator_.reset();
}

TransportTraits DeviceTransport::traits() const {
  return {.ordered = true,
          .receive_any = false,
          .host = false,
          .device = true,
          .queues = true,
          .deterministic = false,
          .chunk_count = kNcclChunkCount};
}

TransferCounters DeviceTransport::counters() const {
  return {.sent_bytes = sent_bytes_,
          .received_bytes = received_bytes_,
          .sent_messages = sent_messages_};
}

std::uint32_t DeviceTransport::reserve_tags(std::uint32_t count) {
  const std::uint32_t first = next_tag_;
  next_tag_ += count;
  return first;
}

std::string DeviceTransport::name(int rank) const {
  return "rank " + std::to_string(rank) + " of " + std::to_string(ranks());
}

void DeviceTransport::fail(const Operation& operation, const std::string& cause) {
  fabric_->fail(std::string(operation.name) + " on " + fabric_->who() + ": " + cause);
  fabric_->check(operation.name);
  throw TransportError(cause);
}

void DeviceTransport::begin(const Operation& operation) {
  fabric_->check(operation.name);
  if (queue_->in_bracket()) return queue_->open(operation, 0);
  open(operation);
}

// All ranks stop, because a frame contradicting the call became NaN on this rank only.
void DeviceTransport::check_frames(std::string_view operation) {
  if (const auto damage = queue_->find_damage())
    fabric_->fail(name(rank()) + ": " + *damage, {}, Blame::kFrame);
  fabric_->check(operation);
}

// Point-to-point operations need no agreement by all ranks.
void DeviceTransport::open(const Operation& operation) {
  kernels::check_stream(operation.stream);
  check_frames(operation.name);
  if (operation.calling != Calling::kSend) agree(operation);
  queue_->open(operation, fabric_->number_of(operation.name));
}

void DeviceTransport::agree(const Operation& operation) {
  const Agreement own = agreement_of(operation);
  const std::uint64_t key = Signature().add(own.signature).add(operation.name).value();
  if (ranks() == 1 || agreed_.contains(key)) return;
  if (kernels::capture_of(operation.stream) != 0)
    throw InvalidArgument(std::string(operation.name) +
                          ": all ranks must agree on it first: call it once before capturing");
  Handle gathered = gather_staged(operation, std::as_bytes(std::span(&own, 1)), sizeof own);
  gathered.wait_synchronize();
  const std::string differing = find_differing(own, gathered);
  if (differing.empty()) {
    agreed_.insert(key);
    return;
  }
  fabric_->fail("ranks disagree: " + name(rank()) + " calls " + own.name + ", but " + differing,
                kTellOthers);
  fabric_->check(operation.name);
}

std::string DeviceTransport::find_differing(const Agreement& own, const Handle& gathered) const {
  std::string differing;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank == this->rank()) continue;
    const Agreement other = agreement_of(gathered.received(rank));
    if (alike(own, other)) continue;
    differing +=
        (differing.empty() ? "rank " : ", rank ") + std::to_string(rank) + " calls " + other.name;
    if (std::strcmp(own.name, other.name) == 0)
      differing += " with other arguments" + host::signatures_text(other.signature, own.signature);
  }
  return differing;
}

std::unique_ptr<Transport> DeviceTransport::channel() {
  return join(all_ranks(ranks()), make_lane(fabric_), "channel");
}

std::unique_ptr<Transport> DeviceTransport::split(std::span<const int> members) {
  check_members(members, rank(), ranks());
  return join(members, queue_, "split");
}

// Creates a communicator from a new id. ncclCommSplit would require calls by all ranks, not only by
// the members.
std::unique_ptr<Transport> DeviceTransport::join(std::span<const int> members,
                                                 std::shared_ptr<Queue> queue,
                                                 std::string_view name) {
  const Operation operation{.name = name, .timeout = timeout_};
  fabric_->check(name);
  const auto until = Clock::now() + timeout_;
  const auto place = std::find(members.begin(), members.end(), rank()) - members.begin();
  const ncclUniqueId id = spread_id(members, operation);
  NcclCommunicator made;
  try {
    made = NcclCommunicator(
        make_communicator(id, static_cast<int>(place), static_cast<int>(members.size()), until));
  } catch (const TransportError& error) {
    fail(operation, error.what());
  }
  auto communicator =
      std::make_unique<Communicator>(made.handle(), Owner::kTransport, fabric_->fault());
  made.release();
  std::unique_ptr<DeviceTransport> joined(
      new DeviceTransport(fabric_, std::move(queue), std::move(communicator), timeout_));
  std::vector<int> hosts;
  for (const int member : members) hosts.push_back(hosts_[static_cast<std::size_t>(member)]);
  joined->hosts_ = host::number_hosts(hosts);
  return joined;
}

void DeviceTransport::gather_hosts() {
  const Operation operation{.name = "NcclTransport", .timeout = timeout_};
  const std::uint64_t own = machine_number();
  Handle handle = gather_staged(operation, std::as_bytes(std::span(&own, 1)), sizeof own);
  handle.wait_synchronize();
  std::vector<std::uint64_t> numbers(static_cast<std::size_t>(ranks()), own);
  for (int rank = 0; rank < ranks(); ++rank)
    if (rank != this->rank())
      std::memcpy(&numbers[static_cast<std::size_t>(rank)], handle.received(rank).data(),
                  sizeof own);
  hosts_ = host::number_hosts(numbers);
}

void DeviceTransport::wait_activity(Clock::time_point until) {
  fabric_->check("waiting");
  kernels::rest();
  std::unique_lock lock(wake_mutex_);
  woken_changed_.wait_until(lock, std::min(until, Clock::now() + kLongestDeafness),
                            [this] { return woken_; });
  woken_ = false;
}

void DeviceTransport::wake() {
  {
    const std::lock_guard lock(wake_mutex_);
    woken_ = true;
  }
  woken_changed_.notify_all();
}

void DeviceTransport::poison(std::string_view cause) {
  fabric_->fail(name(rank()) + " gave up: " + std::string(cause));
}

}  // namespace tersor::nccl
