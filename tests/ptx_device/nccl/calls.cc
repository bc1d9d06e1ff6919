// See calls.h. A group's messages all move at once, on the stream's thread.
#include "tests/ptx_device/nccl/calls.h"

#include "tests/ptx_device/nccl/messages.h"
#include "tests/ptx_device/nccl/sums.h"
#include "tests/ptx_device/runtime/hooks.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace ptx::nccl {
namespace {

thread_local int group_depth = 0;
thread_local std::vector<Call> group;
thread_local const char* error_text = "";

/// Device memory, or a mistake that a GPU would punish.
char* memory_of(const void* pointer, std::size_t bytes, const char* what) {
  if (bytes == 0) return nullptr;
  char* memory = bytes_at(pointer, bytes);
  if (memory != nullptr) return memory;
  std::fprintf(stderr, "ptx-nccl: %s of %zu bytes at %p, which is no memory of the device\n", what,
               bytes, pointer);
  std::abort();
}

/// A group's calls on one stream, while they are done.
struct Batch {
  const ncclComm& comm;
  std::vector<Message> messages;
  std::vector<std::vector<char>> gathered;  // of each kAllReduce, all ranks' values

  std::size_t ranks() const { return static_cast<std::size_t>(comm.ranks); }
  void add(const Call& call);
  void add_to_all(const Call& call, char* to);
  void finish(const Call& call);
  void reduce(const Call& call, std::vector<char>& all);
};

void Batch::add_to_all(const Call& call, char* to) {
  char* from = memory_of(call.from, call.bytes, "collective");
  for (int i = 0; i < comm.ranks; ++i) {
    char* part = to + static_cast<std::size_t>(i) * call.bytes;
    if (i == comm.rank) {
      if (call.bytes != 0) std::memmove(part, from, call.bytes);
    } else {
      messages.push_back({i, Way::kSend, from, call.bytes});
      messages.push_back({i, Way::kReceive, part, call.bytes});
    }
  }
}

void Batch::add(const Call& call) {
  switch (call.what) {
    case What::kSend:
      messages.push_back(
          {call.peer, Way::kSend, memory_of(call.from, call.bytes, "send"), call.bytes});
      return;
    case What::kReceive:
      messages.push_back(
          {call.peer, Way::kReceive, memory_of(call.to, call.bytes, "receive"), call.bytes});
      return;
    case What::kAllGather:
      return add_to_all(call, memory_of(call.to, call.bytes * ranks(), "collective"));
    case What::kAllReduce:
      gathered.emplace_back(call.bytes * ranks());
      return add_to_all(call, gathered.back().data());
  }
}

void Batch::reduce(const Call& call, std::vector<char>& all) {
  for (std::size_t i = 1; i < ranks(); ++i)
    combine(all.data(), all.data() + i * call.bytes, call.count, call.type, call.op);
  if (call.bytes == 0) return;
  std::memcpy(memory_of(call.to, call.bytes, "collective"), all.data(), call.bytes);
  mark_written(call.to, call.bytes);
}

void Batch::finish(const Call& call) {
  if (call.what == What::kReceive) mark_written(call.to, call.bytes);
  if (call.what == What::kAllGather) mark_written(call.to, call.bytes * ranks());
}

void perform(const std::vector<Call>& calls) {
  Batch batch{*calls.front().comm, {}, {}};
  for (const Call& call : calls) batch.add(call);
  if (!move(batch.comm, batch.messages)) return;
  auto next = batch.gathered.begin();
  for (const Call& call : calls) {
    batch.finish(call);
    if (call.what == What::kAllReduce) batch.reduce(call, *next++);
  }
}

bool queue_calls(const std::vector<Call>& calls) {
  ncclComm* comm = calls.front().comm;
  const auto work = [calls, comm] {
    ++comm->under_way;
    perform(calls);
    --comm->under_way;
  };
  return queue_on(calls.front().stream, work, true);
}

/// Those on the same stream of the same communicator together.
ncclResult_t submit() {
  std::vector<Call> left = std::move(group);
  group.clear();
  while (!left.empty()) {
    const Call first = left.front();
    const auto others = std::stable_partition(left.begin(), left.end(), [&](const Call& call) {
      return call.comm == first.comm && call.stream == first.stream;
    });
    if (!queue_calls({left.begin(), others})) {
      error_text = "the stream takes no work";
      return ncclUnhandledCudaError;
    }
    left.erase(left.begin(), others);
  }
  return ncclSuccess;
}

}  // namespace

void begin_group() { ++group_depth; }

ncclResult_t end_group() {
  if (group_depth == 0) return ncclInvalidUsage;
  return --group_depth == 0 ? submit() : ncclSuccess;
}

ncclResult_t enqueue(const Call& call) {
  const ncclComm* comm = call.comm;
  if (comm == nullptr || call.peer < 0 || call.peer >= comm->ranks) return ncclInvalidArgument;
  if (comm->state == ncclInProgress || comm->is_over()) return ncclInvalidUsage;
  group.push_back(call);
  return group_depth == 0 ? submit() : ncclSuccess;
}

const char* last_error_text() { return error_text; }

}  // namespace ptx::nccl
