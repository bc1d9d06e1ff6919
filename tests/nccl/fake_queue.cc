// How the stand-in of NCCL moves bytes. A group is two pieces of work on its stream: the first
// comes to it (all is read that is sent), the second blocks the stream until every rank has what it
// needs (all is written that is received). One that was revoked or aborted ends at once and writes
// nothing.
#include "tests/nccl/fake_state.h"
#include "tests/ptx_device/runtime/hooks.h"
#include "tests/ptx_device/runtime/marks.h"

#include <tersor/stream.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "kernels/device/device.h"
#include "kernels/host/elementwise.h"
#include "kernels/scalar/convert.h"

namespace tersor::test::fake {
namespace {

/// After so long it is a mistake of the transport's, or of a test's, that a stream waits.
constexpr std::chrono::seconds kQueuePatience{60};

/// A group while it is under way: of each collective its number, of each receive which message.
struct Run {
  std::shared_ptr<State> state;
  Communicator& own;
  std::vector<Call> calls;
  bool captured;
  std::uint64_t launch;  ///< of the communicator's; of captured ones without meaning
  std::vector<std::uint64_t> numbers;

  std::string name() const { return "a group of rank " + std::to_string(own.rank); }
  template <typename Ready>
  void wait(Lock& lock, const char* what, const Ready& ready);
  Bytes read(const Call& call);
  void write(void* pointer, const Bytes& bytes);
  std::uint64_t come_to_meeting(const Call& call);
  std::uint64_t come_to(const Call& call);
  bool can_end(const Call& call, std::uint64_t number) const;
  bool can_end() const;
  void take_message(const Call& call);
  void take_result(const Call& call, std::uint64_t number);
  void begin();
  void end();
};

/// The communicator is given up where nothing comes for `kQueuePatience`.
template <typename Ready>
void Run::wait(Lock& lock, const char* what, const Ready& ready) {
  const auto is_over = [&] { return own.stopped() || ready(); };
  if (state->changed.wait_for(lock, kQueuePatience, is_over)) return;
  state->misuse(name() + " waits for ever " + what);
  own.aborted = true;
  state->changed.notify_all();
}

Bytes Run::read(const Call& call) {
  const std::size_t bytes = call.count * bytes_of(call.type);
  Bytes copy{std::vector<std::byte>(bytes), ptx::marks_at(call.from, bytes)};
  if (bytes == 0) return copy;
  if (const char* place = ptx::bytes_at(call.from, bytes))
    std::memcpy(copy.values.data(), place, bytes);
  else
    state->misuse(name() + " sends what is no memory of the device");
  return copy;
}

void Run::write(void* pointer, const Bytes& bytes) {
  if (bytes.values.empty()) return;
  char* place = ptx::bytes_at(pointer, bytes.values.size());
  if (place == nullptr) return state->misuse(name() + " receives into no memory of the device");
  std::memcpy(place, bytes.values.data(), bytes.values.size());
  if (bytes.marks.empty())
    ptx::mark_written(pointer, bytes.values.size());
  else
    ptx::set_marks(pointer, bytes.marks);
}

std::string kind_of(const Call& call) {
  return std::to_string(call.kind) + " of " + std::to_string(call.count) + " values of type " +
         std::to_string(call.type) + ", " + std::to_string(call.reduction);
}

std::uint64_t Run::come_to_meeting(const Call& call) {
  const std::uint64_t number = own.meetings++;
  Meeting& meeting = own.clique->meetings[number];
  if (meeting.inputs.empty()) meeting.kind = kind_of(call);
  if (meeting.kind != kind_of(call))
    state->misuse("ranks meet in different collectives: " + meeting.kind + " and " + kind_of(call));
  meeting.inputs[own.rank] = read(call);
  return number;
}

std::uint64_t Run::come_to(const Call& call) {
  if (own.stopped()) return 0;
  if (call.kind == Call::kSend) {
    own.clique->sent[{own.rank, call.peer}].push_back(read(call));
    return own.clique->posted[{own.rank, call.peer}]++;
  }
  if (call.kind == Call::kReceive) return own.clique->waiting[{call.peer, own.rank}]++;
  return come_to_meeting(call);
}

/// Nothing travels in advance: a send ends when its receive has begun.
bool Run::can_end(const Call& call, std::uint64_t number) const {
  Clique& clique = *own.clique;
  if (call.kind == Call::kSend) return clique.waiting[{own.rank, call.peer}] > number;
  if (call.kind == Call::kReceive) return clique.posted[{call.peer, own.rank}] > number;
  return clique.meetings[number].inputs.size() == static_cast<std::size_t>(clique.ranks);
}

bool Run::can_end() const {
  for (std::size_t i = 0; i < calls.size(); ++i)
    if (!can_end(calls[i], numbers[i])) return false;
  return true;
}

void Run::take_message(const Call& call) {
  auto& messages = own.clique->sent[{call.peer, own.rank}];
  Bytes message = std::move(messages.front());
  messages.pop_front();
  const std::size_t wanted = call.count * bytes_of(call.type), sent = message.values.size();
  if (sent != wanted)
    state->misuse("a receive of " + std::to_string(wanted) + " bytes met a send of " +
                  std::to_string(sent));
  message.values.resize(std::min(sent, wanted));
  message.marks.resize(std::min(message.marks.size(), wanted));
  write(call.to, message);
}

void Run::take_result(const Call& call, std::uint64_t number) {
  Meeting& meeting = own.clique->meetings[number];
  Bytes result;
  for (const auto& [rank, input] : meeting.inputs) {
    if (call.kind == Call::kAllGather) {
      result.values.insert(result.values.end(), input.values.begin(), input.values.end());
      result.marks.insert(result.marks.end(), input.marks.begin(), input.marks.end());
    } else if (result.values.empty()) {
      result = input;
    } else {
      combine(result, input, call.type, call.reduction);
    }
  }
  write(call.to, result);
  if (++meeting.read == own.clique->ranks) own.clique->meetings.erase(number);
}

// The launches of one communicator keep the host's order, whatever their streams; those of graphs
// keep the graph's.
void Run::begin() {
  Lock lock(state->mutex);
  wait(lock, "for its turn", [&] { return captured || own.begun == launch; });
  if (!captured) ++own.begun;
  numbers.clear();
  for (const Call& call : calls) numbers.push_back(come_to(call));
  state->changed.notify_all();
}

void Run::end() {
  Lock lock(state->mutex);
  wait(lock, "for other ranks", [&] { return can_end(); });
  for (std::size_t i = 0; i < calls.size() && !own.stopped(); ++i) {
    if (calls[i].kind == Call::kSend) continue;
    if (calls[i].kind == Call::kReceive)
      take_message(calls[i]);
    else
      take_result(calls[i], numbers[i]);
  }
  if (!captured) ++own.ended;
  state->changed.notify_all();
}

}  // namespace

std::size_t bytes_of(ncclDataType_t type) {
  if (type == ncclInt8 || type == ncclUint8) return 1;
  return type == ncclFloat16 || type == ncclBfloat16 ? 2 : 4;
}

void combine(Bytes& into, const Bytes& other, ncclDataType_t type, ncclRedOp_t reduction) {
  const std::map<ncclDataType_t, Dtype> types = {
      {ncclFloat32, Dtype::kF32}, {ncclBfloat16, Dtype::kBf16}, {ncclFloat16, Dtype::kF16},
      {ncclInt8, Dtype::kI8},     {ncclInt32, Dtype::kI32},     {ncclUint32, Dtype::kU32},
      {ncclUint8, Dtype::kI8}};
  const auto apply = reduction == ncclSum ? kernels::add_values : kernels::maximum_values;
  apply(into.values.data(), other.values.data(), types.at(type),
        into.values.size() / bytes_of(type));
  for (std::size_t i = 0; i < into.marks.size() && i < other.marks.size(); ++i)
    into.marks[i] = static_cast<char>(into.marks[i] & other.marks[i]);
}

void queue_calls(const std::shared_ptr<State>& state, std::vector<Call> calls) {
  const cudaStream_t stream = calls.front().stream;
  Communicator& own = *calls.front().communicator;
  const bool captured = kernels::capture_of({stream}) != 0;
  const std::uint64_t launch = captured ? 0 : own.queued++;
  auto run = std::make_shared<Run>(Run{state, own, std::move(calls), captured, launch, {}});
  const bool queued = ptx::queue_on(
                          stream, [run] { run->begin(); }, true) &&
                      ptx::queue_on(
                          stream, [run] { run->end(); }, true);
  if (!queued) state->misuse("a stream takes no work");
}

}  // namespace tersor::test::fake
