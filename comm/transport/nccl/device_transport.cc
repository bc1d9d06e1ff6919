// Implements device_transport.h: brackets, agreement, channels and splits. Operations:
// operations.cc.
#include "comm/transport/nccl/device_transport.h"
#include "comm/transport/arguments.h"

#include <tersor/agreement.h>
#include <tersor/error.h>
#include <tersor/nccl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <iterator>

#include "comm/transport/host/hosts.h"
#include "kernels/device/device.h"

namespace tersor::nccl {
namespace {

using namespace std::chrono_literals;

// A gather completed on this rank may still be under way for other ranks.
constexpr auto kToAnnounce = 1000ms;
constexpr auto kLongestDeafness = 1ms;

// Longer options are left out.
constexpr std::size_t kMostOptionBytes = std::size_t{1} << 22;

CallRecord record_of(const Operation& operation, std::size_t option_bytes) {
  CallRecord own;
  own.signature = operation.signature;
  own.option_bytes = static_cast<std::uint32_t>(option_bytes);
  operation.name.copy(own.name, sizeof own.name - 1);
  return own;
}

CallRecord record_of(ConstByteSpan message) {
  CallRecord other;
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

bool alike(const CallRecord& one, const CallRecord& other) {
  return one.signature == other.signature && std::strcmp(one.name, other.name) == 0;
}

}  // namespace

std::shared_ptr<Queue> make_queue(const std::shared_ptr<Fabric>& fabric) {
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
    : DeviceTransport(fabric, make_queue(fabric), std::move(communicator), timeout) {
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
  const std::uint64_t key = Signature().add(operation.signature).add(operation.name).value();
  if (ranks() == 1 || agreed_.contains(key)) return;
  if (kernels::capture_of(operation.stream) != 0)
    throw InvalidArgumentError(
        std::string(operation.name) +
        ": all ranks must compare this call first: call it once before capturing");
  const std::vector<std::byte> options = operation.agreement == nullptr
                                             ? std::vector<std::byte>()
                                             : pack(operation.agreement->strings());
  const CallRecord own = record_of(operation, options.size());
  const std::vector<CallRecord> calls = gather_calls(operation, own);
  std::string differing;
  for (std::size_t rank = 0; rank < calls.size(); ++rank)
    if (!alike(own, calls[rank]))
      differing += (differing.empty() ? "rank " : ", rank ") + std::to_string(rank) + " calls " +
                   calls[rank].name +
                   (std::strcmp(own.name, calls[rank].name) == 0 ? " with other arguments" : "");
  if (differing.empty()) {
    agreed_.insert(key);
    return;
  }
  const std::vector<Difference> differences = compare_options(operation, options, calls);
  const std::string cause = "ranks disagree: " + name(rank()) + " calls " + own.name + ", but " +
                            differing + (differences.empty() ? "" : ": " + text_of(differences));
  fabric_->fail(cause, kToAnnounce);
  throw TransportError(cause, differences);
}

std::vector<CallRecord> DeviceTransport::gather_calls(const Operation& operation,
                                                      const CallRecord& own) {
  Handle gathered = gather_staged(operation, std::as_bytes(std::span(&own, 1)), sizeof own);
  gathered.wait_synchronize();
  std::vector<CallRecord> calls(static_cast<std::size_t>(ranks()), own);
  for (int rank = 0; rank < ranks(); ++rank)
    if (rank != this->rank())
      calls[static_cast<std::size_t>(rank)] = record_of(gathered.received(rank));
  return calls;
}

// Each rank compares its options with the options of every rank that makes another call. All ranks
// have the same records, and so all ranks take part in the second gather.
std::vector<Difference> DeviceTransport::compare_options(const Operation& operation,
                                                         ConstByteSpan options,
                                                         const std::vector<CallRecord>& calls) {
  const std::uint32_t most = std::ranges::max(calls, {}, &CallRecord::option_bytes).option_bytes;
  if (most > kMostOptionBytes) return {};
  Handle gathered = gather_staged(operation, options, most);
  gathered.wait_synchronize();
  if (options.empty()) return {};
  std::vector<Difference> all;
  const Agreement own = Agreement::parse(unpack(options));
  for (int rank = 0; rank < ranks(); ++rank) {
    const CallRecord& call = calls[static_cast<std::size_t>(rank)];
    if (rank == this->rank() || call.option_bytes == 0) continue;
    const ConstByteSpan bytes = gathered.received(rank);
    try {
      const auto other = bytes.first(std::min<std::size_t>(bytes.size(), call.option_bytes));
      std::ranges::move(own.differences(Agreement::parse(unpack(other)), this->rank(), rank),
                        std::back_inserter(all));
    } catch (const WireError& error) {
      fail(operation, name(rank) + " sends options that cannot be read: " + error.what());
    }
  }
  return all;
}

std::unique_ptr<Transport> DeviceTransport::channel() {
  return join(all_ranks(ranks()), make_queue(fabric_), "channel");
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
  const auto group_rank = std::find(members.begin(), members.end(), rank()) - members.begin();
  const ncclUniqueId id = spread_id(members, operation);
  NcclCommunicator made;
  try {
    made = NcclCommunicator(make_communicator(id, static_cast<int>(group_rank),
                                              static_cast<int>(members.size()), until));
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
  const Operation operation{.name = "make_nccl_transport", .timeout = timeout_};
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

void DeviceTransport::close() { abort("closed the transport"); }

void DeviceTransport::abort(std::string_view cause) {
  fabric_->fail(name(rank()) + " gave up: " + std::string(cause));
}

}  // namespace tersor::nccl
