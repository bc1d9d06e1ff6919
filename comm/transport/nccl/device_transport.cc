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
constexpr auto kAnnounceDelay = 1000ms;
constexpr auto kMaxWakeLatency = 1ms;

// Longer options are left out.
constexpr std::size_t kMaxOptionBytes = std::size_t{1} << 22;

CallRecord record_of(const Operation& operation, std::size_t option_bytes) {
  CallRecord own;
  own.signature = operation.signature;
  own.option_bytes = static_cast<std::uint32_t>(option_bytes);
  operation.name.copy(own.name, sizeof own.name - 1);
  return own;
}

/// A hash of the host name and Linux's boot id. Equal for all processes of a machine, including
/// containers with the same host name.
std::uint64_t machine_hash() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  return Signature().add(std::string_view(name.data())).add(boot_id).value();
}

bool same_call(const CallRecord& one, const CallRecord& other) {
  return one.signature == other.signature && std::strcmp(one.name, other.name) == 0;
}

}  // namespace

std::shared_ptr<Queue> make_queue(const std::shared_ptr<Watcher>& watcher) {
  auto queue = std::make_unique<Queue>(watcher->fault());
  watcher->add(*queue);
  return {queue.release(), [watcher](Queue* made) {
            watcher->remove(*made);
            delete made;
          }};
}

DeviceTransport::DeviceTransport(std::shared_ptr<Watcher> watcher, std::shared_ptr<Queue> queue,
                                 std::unique_ptr<Communicator> communicator,
                                 std::chrono::milliseconds timeout)
    : watcher_(std::move(watcher)),
      queue_(std::move(queue)),
      communicator_(std::move(communicator)),
      timeout_(timeout) {
  watcher_->add(*communicator_);
}

DeviceTransport::DeviceTransport(std::shared_ptr<Watcher> watcher,
                                 std::unique_ptr<Communicator> communicator,
                                 std::chrono::milliseconds timeout)
    : DeviceTransport(watcher, make_queue(watcher), std::move(communicator), timeout) {
  watcher_->start(name(rank()));
  const Operation operation{.name = "make_nccl_transport", .timeout = timeout_};
  hosts_ = host::number_hosts(gather_values(operation, machine_hash()));
}

// Destroys the communicator before the registered device memory.
DeviceTransport::~DeviceTransport() {
  try {
    queue_->finish();
  } catch (const std::exception&) {
    // after a device failure, no work is queued any more
  }
  watcher_->remove(*communicator_);
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
  watcher_->fail(std::string(operation.name) + " on " + watcher_->rank_name() + ": " + cause);
  watcher_->check(operation.name);
  throw TransportError(cause);
}

void DeviceTransport::begin(const Operation& operation) {
  watcher_->check(operation.name);
  if (queue_->in_bracket()) return queue_->open(operation, 0);
  open(operation);
}

// All ranks stop, because a frame contradicting the call became NaN on this rank only.
void DeviceTransport::check_frames(std::string_view operation) {
  if (const auto fault_text = queue_->find_frame_fault())
    watcher_->fail(name(rank()) + ": " + *fault_text, {}, FaultSource::kFrame);
  watcher_->check(operation);
}

// Point-to-point operations need no agreement by all ranks.
void DeviceTransport::open(const Operation& operation) {
  kernels::check_stream(operation.stream);
  check_frames(operation.name);
  if (operation.calling != Calling::kSend) agree(operation);
  queue_->open(operation, watcher_->number_of(operation.name));
}

void DeviceTransport::agree(const Operation& operation) {
  const std::uint64_t key = Signature().add(operation.signature).add(operation.name).value();
  if (ranks() == 1 || agreed_.contains(key)) return;
  if (kernels::capture_of(operation.stream) != 0)
    refuse(operation, "all ranks must compare this call first: call it once before capturing");
  const std::vector<std::byte> options = operation.agreement == nullptr
                                             ? std::vector<std::byte>()
                                             : pack(operation.agreement->strings());
  const CallRecord own = record_of(operation, options.size());
  std::vector<CallRecord> calls = gather_values(operation, own);
  for (CallRecord& call : calls) call.name[sizeof call.name - 1] = '\0';
  std::string mismatches;
  for (std::size_t rank = 0; rank < calls.size(); ++rank)
    if (!same_call(own, calls[rank]))
      mismatches += (mismatches.empty() ? "rank " : ", rank ") + std::to_string(rank) + " calls " +
                    calls[rank].name +
                    (std::strcmp(own.name, calls[rank].name) == 0 ? " with other arguments" : "");
  if (mismatches.empty()) {
    agreed_.insert(key);
    return;
  }
  const std::vector<Difference> differences = compare_options(operation, options, calls);
  const std::string cause = "ranks disagree: " + name(rank()) + " calls " + own.name + ", but " +
                            mismatches + (differences.empty() ? "" : ": " + text_of(differences));
  watcher_->fail(cause, kAnnounceDelay);
  throw TransportError(cause, differences);
}

template <typename Value>
std::vector<Value> DeviceTransport::gather_values(const Operation& operation, const Value& own) {
  Handle gathered = gather_staged(operation, std::as_bytes(std::span(&own, 1)), sizeof own);
  gathered.wait_synchronize();
  std::vector<Value> values(static_cast<std::size_t>(ranks()));
  values[static_cast<std::size_t>(rank())] = own;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank == this->rank()) continue;
    const ConstByteSpan message = gathered.received(rank);
    std::memcpy(&values[static_cast<std::size_t>(rank)], message.data(),
                std::min(message.size(), sizeof own));
  }
  return values;
}

// Each rank compares its options with the options of every rank that makes another call. All ranks
// have the same records, and so all ranks take part in the second gather.
std::vector<Difference> DeviceTransport::compare_options(const Operation& operation,
                                                         ConstByteSpan options,
                                                         const std::vector<CallRecord>& calls) {
  const std::uint32_t largest = std::ranges::max(calls, {}, &CallRecord::option_bytes).option_bytes;
  if (largest > kMaxOptionBytes) return {};
  Handle gathered = gather_staged(operation, options, largest);
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
  return join(all_ranks(ranks()), make_queue(watcher_), "channel");
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
  watcher_->check(name);
  const auto until = Clock::now() + timeout_;
  const auto group_rank = std::find(members.begin(), members.end(), rank()) - members.begin();
  const ncclUniqueId id = broadcast_id(members, operation);
  NcclCommunicator made;
  try {
    made = NcclCommunicator(make_communicator(id, static_cast<int>(group_rank),
                                              static_cast<int>(members.size()), until));
  } catch (const TransportError& error) {
    fail(operation, error.what());
  }
  auto communicator =
      std::make_unique<Communicator>(made.handle(), Owner::kTransport, watcher_->fault());
  made.release();
  std::unique_ptr<DeviceTransport> joined(
      new DeviceTransport(watcher_, std::move(queue), std::move(communicator), timeout_));
  std::vector<int> hosts;
  for (const int member : members) hosts.push_back(hosts_[static_cast<std::size_t>(member)]);
  joined->hosts_ = host::number_hosts(hosts);
  return joined;
}

void DeviceTransport::wait_activity(Clock::time_point until) {
  watcher_->check("waiting");
  kernels::sleep_between_polls();
  std::unique_lock lock(wake_mutex_);
  woken_changed_.wait_until(lock, std::min(until, Clock::now() + kMaxWakeLatency),
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
  watcher_->fail(name(rank()) + " gave up: " + std::string(cause));
}

}  // namespace tersor::nccl
