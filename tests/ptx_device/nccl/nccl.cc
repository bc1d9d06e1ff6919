// A stand-in of NCCL for ranks that are processes of one machine on interpreted devices: messages go
// through shared memory, in the order of the streams that they are queued on. Every pair of ranks
// has a ring of bytes in each direction; a group's messages all move at once.
#include "tests/ptx_device/runtime/hooks.h"

#include <nccl.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kRing = 256 * 1024;
constexpr int kMostRanks = 16;
constexpr std::size_t kWord = 192;  // of what ranks tell each other on the host

struct Ring {
  std::atomic<std::uint64_t> written, read;
  char bytes[kRing];
};
struct Said {
  std::atomic<std::uint64_t> turn;
  char bytes[2][kWord];
};
/// Zeros at first, as the system makes it.
struct Room {
  std::atomic<int> present;
  Said said[kMostRanks];
  Ring ring[kMostRanks][kMostRanks];  // from, to
};

void rest() { std::this_thread::sleep_for(std::chrono::microseconds(30)); }

thread_local std::string last_text;

}  // namespace

struct ncclComm {
  int rank = 0, ranks = 0, device = 0;
  bool blocking = true;
  std::string name;
  Room* room = nullptr;
  std::atomic<bool> stopped{false}, revoked{false};
  std::atomic<ncclResult_t> state{ncclSuccess};
  std::atomic<int> under_way{0};
  std::uint64_t turn = 0, splits = 0;
  std::thread starting;

  bool enter() {
    const std::string path = "/ptx-nccl-" + name;
    const int file = shm_open(path.c_str(), O_CREAT | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, sizeof(Room)) != 0) return false;
    void* memory = mmap(nullptr, sizeof(Room), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) return false;
    room = static_cast<Room*>(memory);
    ++room->present;
    while (room->present < ranks && !stopped) rest();
    if (!stopped && rank == 0) {
      char ready = 1;
      std::vector<char> all(ranks);
      tell(&ready, 1, all.data());
      shm_unlink(path.c_str());  // all have it
      return true;
    }
    char ready = 1;
    std::vector<char> all(ranks);
    return !stopped && tell(&ready, 1, all.data());
  }
  /// What each rank says, on all; on the host. False: stopped.
  bool tell(const void* word, std::size_t bytes, void* all) {
    ++turn;
    Said& own = room->said[rank];
    std::memcpy(own.bytes[turn % 2], word, bytes);
    own.turn.store(turn, std::memory_order_release);
    for (int i = 0; i < ranks; ++i) {
      while (room->said[i].turn.load(std::memory_order_acquire) < turn) {
        if (stopped) return false;
        rest();
      }
      std::memcpy(static_cast<char*>(all) + i * bytes, room->said[i].bytes[turn % 2], bytes);
    }
    return true;
  }
};

namespace {

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    default: return 8;
  }
}

/// A message of a group.
struct Part {
  int peer;
  bool sends;
  char* memory;
  std::size_t bytes;
  std::size_t moved = 0;
};

/// Moves all messages; those between the same two ranks keep their order. False: stopped.
bool move(ncclComm* comm, std::vector<Part>& parts) {
  for (;;) {
    bool left = false, progress = false;
    std::uint32_t sent_to = 0, received_from = 0;
    for (Part& part : parts) {
      if (part.moved == part.bytes) continue;
      left = true;
      std::uint32_t& busy = part.sends ? sent_to : received_from;
      if (((busy >> part.peer) & 1) != 0) continue;
      busy |= 1u << part.peer;
      Ring& ring = part.sends ? comm->room->ring[comm->rank][part.peer] : comm->room->ring[part.peer][comm->rank];
      const std::uint64_t written = ring.written.load(std::memory_order_acquire),
                          read = ring.read.load(std::memory_order_acquire);
      const std::size_t room = part.sends ? kRing - (written - read) : written - read;
      const std::size_t bytes = std::min(room, part.bytes - part.moved);
      if (bytes == 0) continue;
      progress = true;
      std::uint64_t at = part.sends ? written : read;
      for (std::size_t done = 0; done < bytes;) {
        const std::size_t piece = std::min<std::size_t>(bytes - done, kRing - at % kRing);
        char* in_ring = ring.bytes + at % kRing;
        char* own = part.memory + part.moved + done;
        std::memcpy(part.sends ? in_ring : own, part.sends ? own : in_ring, piece);
        done += piece;
        at += piece;
      }
      part.moved += bytes;
      (part.sends ? ring.written : ring.read).store(at, std::memory_order_release);
    }
    if (!left) return true;
    if (comm->stopped || comm->revoked) return false;
    if (!progress) rest();
  }
}

float widen(std::uint16_t bits, ncclDataType_t type) {
  float value;
  if (type == ncclBfloat16) {
    const std::uint32_t wide = std::uint32_t{bits} << 16;
    std::memcpy(&value, &wide, 4);
    return value;
  }
  _Float16 half;
  std::memcpy(&half, &bits, 2);
  return static_cast<float>(half);
}
std::uint16_t narrow(float value, ncclDataType_t type) {
  std::uint16_t bits;
  if (type == ncclBfloat16) {
    std::uint32_t wide;
    std::memcpy(&wide, &value, 4);
    if ((wide & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<std::uint16_t>((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
  }
  const auto half = static_cast<_Float16>(value);
  std::memcpy(&bits, &half, 2);
  return bits;
}
template <class T>
void add_values(char* to, const char* from, std::size_t count, ncclRedOp_t op) {
  for (std::size_t i = 0; i < count; ++i) {
    T a, b;
    std::memcpy(&a, to + i * sizeof(T), sizeof(T));
    std::memcpy(&b, from + i * sizeof(T), sizeof(T));
    a = op == ncclMax ? std::max(a, b) : op == ncclMin ? std::min(a, b) : static_cast<T>(a + b);
    std::memcpy(to + i * sizeof(T), &a, sizeof(T));
  }
}
void add(char* to, const char* from, std::size_t count, ncclDataType_t type, ncclRedOp_t op) {
  switch (type) {
    case ncclFloat16:
    case ncclBfloat16:
      for (std::size_t i = 0; i < count; ++i) {
        std::uint16_t a, b;
        std::memcpy(&a, to + 2 * i, 2);
        std::memcpy(&b, from + 2 * i, 2);
        const float x = widen(a, type), y = widen(b, type);
        a = narrow(op == ncclMax ? std::max(x, y) : op == ncclMin ? std::min(x, y) : x + y, type);
        std::memcpy(to + 2 * i, &a, 2);
      }
      return;
    case ncclFloat32: return add_values<float>(to, from, count, op);
    case ncclFloat64: return add_values<double>(to, from, count, op);
    case ncclInt8: return add_values<std::int8_t>(to, from, count, op);
    case ncclUint8: return add_values<std::uint8_t>(to, from, count, op);
    case ncclInt32: return add_values<std::int32_t>(to, from, count, op);
    case ncclUint32: return add_values<std::uint32_t>(to, from, count, op);
    case ncclInt64: return add_values<std::int64_t>(to, from, count, op);
    default: return add_values<std::uint64_t>(to, from, count, op);
  }
}

enum class What { kSend, kReceive, kAllGather, kAllReduce };
struct Call {
  What what;
  ncclComm* comm;
  cudaStream_t stream;
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t bytes = 0, count = 0;
  int peer = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
};

/// Device memory, or a mistake that a GPU would punish.
char* memory_of(const void* pointer, std::size_t bytes, const char* what) {
  char* memory = bytes == 0 ? nullptr : ptx::bytes_at(pointer, bytes);
  if (memory == nullptr && bytes != 0) {
    std::fprintf(stderr, "ptx-nccl: %s of %zu bytes at %p, which is no memory of the device\n", what, bytes, pointer);
    std::abort();
  }
  return memory;
}

void perform(std::vector<Call> calls) {
  ncclComm* comm = calls.front().comm;
  std::vector<Part> parts;
  std::vector<std::vector<char>> gathered;
  gathered.reserve(calls.size());
  for (const Call& call : calls) {
    switch (call.what) {
      case What::kSend: parts.push_back({call.peer, true, memory_of(call.from, call.bytes, "send"), call.bytes}); break;
      case What::kReceive: parts.push_back({call.peer, false, memory_of(call.to, call.bytes, "receive"), call.bytes}); break;
      default: {
        const bool reduces = call.what == What::kAllReduce;
        char* from = memory_of(call.from, call.bytes, "collective");
        char* to = reduces ? nullptr : memory_of(call.to, call.bytes * comm->ranks, "collective");
        if (reduces) {
          gathered.emplace_back(call.bytes * comm->ranks);
          to = gathered.back().data();
        }
        for (int i = 0; i < comm->ranks; ++i) {
          if (i == comm->rank) {
            if (call.bytes != 0) std::memmove(to + i * call.bytes, from, call.bytes);
            continue;
          }
          parts.push_back({i, true, from, call.bytes});
          parts.push_back({i, false, to + i * call.bytes, call.bytes});
        }
      }
    }
  }
  // To oneself.
  for (Part& send : parts) {
    if (!send.sends || send.peer != comm->rank || send.moved == send.bytes) continue;
    for (Part& receive : parts) {
      if (receive.sends || receive.peer != comm->rank || receive.moved == receive.bytes) continue;
      std::memmove(receive.memory, send.memory, std::min(send.bytes, receive.bytes));
      receive.moved = receive.bytes;
      break;
    }
    send.moved = send.bytes;
  }
  if (move(comm, parts)) {
    std::size_t next = 0;
    for (const Call& call : calls) {
      if (call.what == What::kReceive) ptx::mark_written(call.to, call.bytes);
      if (call.what == What::kAllGather) ptx::mark_written(call.to, call.bytes * comm->ranks);
      if (call.what != What::kAllReduce) continue;
      std::vector<char>& all = gathered[next++];
      for (int i = 1; i < comm->ranks; ++i) add(all.data(), all.data() + i * call.bytes, call.count, call.type, call.op);
      if (call.bytes != 0) std::memcpy(memory_of(call.to, call.bytes, "collective"), all.data(), call.bytes);
      ptx::mark_written(call.to, call.bytes);
    }
  }
}

thread_local int group_depth = 0;
thread_local std::vector<Call> group;

ncclResult_t submit() {
  std::vector<Call> calls = std::move(group);
  group.clear();
  while (!calls.empty()) {
    const Call first = calls.front();
    std::vector<Call> own, others;
    for (const Call& call : calls) (call.comm == first.comm && call.stream == first.stream ? own : others).push_back(call);
    ncclComm* comm = first.comm;
    if (!ptx::queue_on(first.stream, [own, comm] {
          ++comm->under_way;
          perform(own);
          --comm->under_way;
        }, true)) {
      last_text = "the stream takes no work";
      return ncclUnhandledCudaError;
    }
    calls = std::move(others);
  }
  return ncclSuccess;
}
ncclResult_t enqueue(const Call& call) {
  if (call.comm == nullptr || call.peer < 0 || call.peer >= call.comm->ranks) return ncclInvalidArgument;
  if (call.comm->state == ncclInProgress) return ncclInvalidUsage;
  if (call.comm->stopped || call.comm->revoked) return ncclInvalidUsage;
  group.push_back(call);
  return group_depth == 0 ? submit() : ncclSuccess;
}

/// Now, or by a thread where the caller does not want to wait.
template <class Start>
ncclResult_t start(ncclComm* comm, Start start) {
  comm->state = ncclInProgress;
  const auto run = [comm, start] { comm->state = start() ? ncclSuccess : ncclSystemError; };
  if (comm->blocking) {
    run();
    return comm->state;
  }
  comm->starting = std::thread(run);
  return ncclInProgress;
}

void leave(ncclComm* comm, bool wait) {
  if (comm == nullptr) return;
  if (!wait) comm->stopped = true;
  if (comm->starting.joinable()) comm->starting.join();
  // What is queued still names this communicator: it stays, a few words each.
  while (comm->under_way != 0) rest();
  comm->stopped = true;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = 22809;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "internal error";
  }
}
const char* ncclGetLastError(ncclComm_t) { return last_text.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof *id);
  std::uint64_t words[2] = {};
  const int file = open("/dev/urandom", O_RDONLY);
  const bool fine = file >= 0 && read(file, words, sizeof words) == sizeof words;
  if (file >= 0) close(file);
  std::snprintf(id->internal, sizeof id->internal, "%016llx%016llx", static_cast<unsigned long long>(words[0]),
                static_cast<unsigned long long>(words[1]));
  return fine ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (ranks < 1 || ranks > kMostRanks || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  auto* comm = new ncclComm;
  comm->rank = rank;
  comm->ranks = ranks;
  comm->name = std::string(id.internal, strnlen(id.internal, sizeof id.internal));
  comm->blocking = config == nullptr || config->blocking != 0;
  cudaGetDevice(&comm->device);
  *made = comm;
  return start(comm, [comm] { return comm->enter(); });
}
ncclResult_t ncclCommInitRank(ncclComm_t* made, int ranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(made, ranks, id, rank, nullptr);
}
ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  if (parent->stopped || parent->revoked) return ncclInvalidUsage;
  auto* comm = new ncclComm;
  comm->blocking = config == nullptr || config->blocking == NCCL_CONFIG_UNDEF_INT ? parent->blocking : config->blocking != 0;
  comm->device = parent->device;
  *made = color == NCCL_SPLIT_NOCOLOR ? nullptr : comm;
  const std::uint64_t split = ++parent->splits;
  const bool blocking = comm->blocking;
  if (color == NCCL_SPLIT_NOCOLOR) comm->blocking = true;  // nobody could ask how it went
  const ncclResult_t result = start(comm, [=] {
    struct Choice {
      int color, key, rank;
    };
    const Choice own{color, key, parent->rank};
    std::vector<Choice> all(parent->ranks);
    if (!parent->tell(&own, sizeof own, all.data())) return false;
    if (color == NCCL_SPLIT_NOCOLOR) return true;
    std::vector<Choice> mine;
    for (const Choice& choice : all)
      if (choice.color == color) mine.push_back(choice);
    std::stable_sort(mine.begin(), mine.end(), [](const Choice& a, const Choice& b) { return a.key < b.key; });
    comm->ranks = static_cast<int>(mine.size());
    for (int i = 0; i < comm->ranks; ++i)
      if (mine[i].rank == parent->rank) comm->rank = i;
    comm->name = parent->name + "-" + std::to_string(split) + "." + std::to_string(color);
    return comm->enter();
  });
  if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  // A parent that does not wait is busy until its child is there.
  (void)blocking;
  return result;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  leave(comm, true);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  leave(comm, false);
  return ncclSuccess;
}
ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  comm->revoked = true;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->state;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->ranks;
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t, void*, std::size_t, void** handle) {
  *handle = handle;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return ncclInvalidUsage;
  return --group_depth == 0 ? submit() : ncclSuccess;
}
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return enqueue({.what = What::kSend, .comm = comm, .stream = stream, .from = from, .bytes = count * bytes_of(type), .peer = peer});
}
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return enqueue({.what = What::kReceive, .comm = comm, .stream = stream, .to = to, .bytes = count * bytes_of(type), .peer = peer});
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return enqueue({.what = What::kAllGather, .comm = comm, .stream = stream, .from = from, .to = to, .bytes = count * bytes_of(type)});
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return enqueue({.what = What::kAllReduce, .comm = comm, .stream = stream, .from = from, .to = to,
                  .bytes = count * bytes_of(type), .count = count, .type = type, .op = op});
}

}  // extern "C"
