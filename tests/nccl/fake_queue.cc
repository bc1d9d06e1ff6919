// How the stand-in of NCCL moves bytes. A group is two pieces of work on its stream: the first
// comes to it (all is read that is sent), the second runs once every rank has that it needs (all is
// written that is received). One that was revoked or aborted ends at once and writes nothing.
#include "tests/emulated/emulator.h"
#include "tests/emulated/streams.h"
#include "tests/nccl/fake_state.h"

#include <tersor/stream.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kernels/common/convert.h"
#include "kernels/common/device.h"
#include "kernels/common/elementwise.h"

namespace tersor::test::fake {
namespace {

/// A group while it is under way: of each collective its number, of each receive which message.
struct Run {
  std::vector<Call> calls;
  std::vector<std::uint64_t> numbers;
};

Bytes read(const void* pointer, std::size_t bytes) {
  Bytes copy(bytes);
  if (bytes == 0) return copy;
  const emulator::Region region(copy.data(), bytes, emulator::Written::kYes, "NCCL's own memory");
  emulator::copy(copy.data(), pointer, bytes);
  return copy;
}

void write(void* pointer, const Bytes& bytes) {
  if (bytes.empty()) return;
  const emulator::Region region(bytes.data(), bytes.size(), emulator::Written::kYes,
                                "NCCL's own memory");
  emulator::copy(pointer, bytes.data(), bytes.size());
}

std::string kind_of(const Call& call) {
  return std::to_string(call.kind) + " of " + std::to_string(call.count) + " values of type " +
         std::to_string(call.type) + ", " + std::to_string(call.reduction);
}

std::uint64_t come_to_meeting(const Call& call) {
  Communicator& own = *call.communicator;
  const std::uint64_t number = own.meetings++;
  Meeting& meeting = own.clique->meetings[number];
  if (meeting.inputs.empty()) meeting.kind = kind_of(call);
  if (meeting.kind != kind_of(call))
    state().misuse("ranks meet in different collectives: " + meeting.kind + " and " +
                   kind_of(call));
  meeting.inputs[own.rank] = read(call.from, call.count * bytes_of(call.type));
  return number;
}

std::uint64_t come_to(const Call& call) {
  Communicator& own = *call.communicator;
  if (own.stopped()) return 0;
  if (call.kind == Call::kSend) {
    own.clique->sent[{own.rank, call.peer}].push_back(
        read(call.from, call.count * bytes_of(call.type)));
    return own.clique->posted[{own.rank, call.peer}]++;
  }
  if (call.kind == Call::kReceive) return own.clique->waiting[{call.peer, own.rank}]++;
  return come_to_meeting(call);
}

/// Nothing travels in advance: a send ends when its receive has begun.
bool can_end(const Call& call, std::uint64_t number) {
  Clique& clique = *call.communicator->clique;
  const int own = call.communicator->rank;
  if (call.communicator->stopped()) return true;
  if (call.kind == Call::kSend) return clique.waiting[{own, call.peer}] > number;
  if (call.kind == Call::kReceive) return clique.posted[{call.peer, own}] > number;
  return clique.meetings[number].inputs.size() == static_cast<std::size_t>(clique.ranks);
}

void take_message(const Call& call) {
  auto& messages = call.communicator->clique->sent[{call.peer, call.communicator->rank}];
  Bytes message = std::move(messages.front());
  messages.pop_front();
  const std::size_t wanted = call.count * bytes_of(call.type);
  if (message.size() != wanted)
    state().misuse("a receive of " + std::to_string(wanted) + " bytes met a send of " +
                   std::to_string(message.size()));
  message.resize(std::min(message.size(), wanted));
  write(call.to, message);
}

void take_result(const Call& call, std::uint64_t number) {
  Clique& clique = *call.communicator->clique;
  Meeting& meeting = clique.meetings[number];
  Bytes result;
  for (const auto& [rank, input] : meeting.inputs) {
    if (call.kind == Call::kAllGather)
      result.insert(result.end(), input.begin(), input.end());
    else if (result.empty())
      result = input;
    else
      combine(result, input, call.type, call.reduction);
  }
  write(call.to, result);
  if (++meeting.read == clique.ranks) clique.meetings.erase(number);
}

void end(const Call& call, std::uint64_t number) {
  if (call.communicator->stopped() || call.kind == Call::kSend) return;
  if (call.kind == Call::kReceive)
    take_message(call);
  else
    take_result(call, number);
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
  apply(into.data(), other.data(), types.at(type), into.size() / bytes_of(type));
}

// The launches of one communicator keep the host's order, whatever their streams; those of graphs
// keep the graph's.
void queue_calls(std::vector<Call> calls) {
  const StreamView stream{calls.front().stream};
  Communicator& own = *calls.front().communicator;
  const bool captured = kernels::capture_of(stream) != 0;
  const std::uint64_t launch = captured ? 0 : own.queued++;
  const std::string name = "NCCL group of rank " + std::to_string(own.rank);
  auto run = std::make_shared<Run>();
  run->calls = std::move(calls);
  emulator::enqueue_when(
      stream, name + " begins",
      [&own, launch, captured] { return captured || own.stopped() || own.begun == launch; },
      [run, &own, captured] {
        if (!captured) ++own.begun;
        run->numbers.clear();
        for (const Call& call : run->calls) run->numbers.push_back(come_to(call));
      });
  emulator::enqueue_when(
      stream, name + " ends",
      [run] {
        for (std::size_t i = 0; i < run->numbers.size(); ++i)
          if (!can_end(run->calls[i], run->numbers[i])) return false;
        return true;
      },
      [run, &own, captured] {
        for (std::size_t i = 0; i < run->calls.size(); ++i) end(run->calls[i], run->numbers[i]);
        if (!captured) ++own.ended;
      });
}

}  // namespace tersor::test::fake
