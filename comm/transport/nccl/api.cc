#include "comm/transport/nccl/api.h"

#include <dlfcn.h>
#include <tersor/error.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "comm/transport/nccl/library.h"

namespace tersor::nccl {
namespace {

std::atomic<const Api*> replacement{nullptr};

enum class Need { kRequired, kOptional };

/// Fills a table from a library.
class SymbolLoader {
 public:
  SymbolLoader(void* library, int version) : library_(library), version_(version) {}

  /// `since` is the version that introduced the function, or the oldest supported version.
  template <typename Function>
  void load(Function& entry, const char* name, const char* since, Need need = Need::kRequired) {
    entry = reinterpret_cast<Function>(dlsym(library_, name));
    if (entry == nullptr && need == Need::kRequired)
      throw TransportError("NCCL " + version_name(version_) + " has no " + name +
                           ": Tersor needs NCCL " + since + " or newer");
  }

 private:
  void* library_;
  int version_;
};

void load_communicators(SymbolLoader loader, Api& api) {
  loader.load(api.get_unique_id, "ncclGetUniqueId", "2.14");
  loader.load(api.comm_init, "ncclCommInitRankConfig", "2.14");
  loader.load(api.comm_split, "ncclCommSplit", "2.18", Need::kOptional);
  loader.load(api.comm_finalize, "ncclCommFinalize", "2.14");
  loader.load(api.comm_destroy, "ncclCommDestroy", "2.14");
  loader.load(api.comm_abort, "ncclCommAbort", "2.14");
  loader.load(api.comm_revoke, "ncclCommRevoke", "2.28.9", Need::kOptional);
  loader.load(api.comm_async_error, "ncclCommGetAsyncError", "2.14");
  loader.load(api.comm_count, "ncclCommCount", "2.14");
  loader.load(api.comm_device, "ncclCommCuDevice", "2.14");
  loader.load(api.comm_rank, "ncclCommUserRank", "2.14");
  loader.load(api.comm_register, "ncclCommRegister", "2.19", Need::kOptional);
  loader.load(api.comm_deregister, "ncclCommDeregister", "2.19", Need::kOptional);
}

void load_operations(SymbolLoader loader, Api& api) {
  loader.load(api.error_string, "ncclGetErrorString", "2.14");
  loader.load(api.last_error, "ncclGetLastError", "2.14");
  loader.load(api.all_reduce, "ncclAllReduce", "2.14");
  loader.load(api.all_gather, "ncclAllGather", "2.14");
  loader.load(api.send, "ncclSend", "2.14");
  loader.load(api.receive, "ncclRecv", "2.14");
  loader.load(api.group_start, "ncclGroupStart", "2.14");
  loader.load(api.group_end, "ncclGroupEnd", "2.14");
}

std::unique_ptr<const Api> load() {
  void* const library = find_library();
  decltype(&::ncclGetVersion) get_version = nullptr;
  SymbolLoader(library, 0).load(get_version, "ncclGetVersion", "2.14");
  auto api = std::make_unique<Api>();
  if (get_version(&api->version) != ncclSuccess)
    throw TransportError("ncclGetVersion failed: install a working NCCL (libnccl2)");
  api->path = file_of(reinterpret_cast<void*>(get_version));
  load_communicators(SymbolLoader(library, api->version), *api);
  load_operations(SymbolLoader(library, api->version), *api);
  return api;
}

const Api& loaded() {
  static std::mutex mutex;
  static std::unique_ptr<const Api> table;
  const std::lock_guard lock(mutex);
  if (table == nullptr) table = load();
  return *table;
}

}  // namespace

const Api& api() {
  const Api* table = replacement.load(std::memory_order_acquire);
  return table == nullptr ? loaded() : *table;
}

void use_api(const Api* table) { replacement.store(table, std::memory_order_release); }

// Up to 2.8, version numbers had a single digit for the minor version.
std::string version_name(int version) {
  const int unit = version < 10'000 ? 1'000 : 10'000;
  return std::to_string(version / unit) + "." + std::to_string(version % unit / 100) + "." +
         std::to_string(version % 100);
}

std::string describe(ncclResult_t result, ncclComm_t communicator) {
  std::string text = api().error_string(result);
  const char* more = api().last_error(communicator);
  if (more != nullptr && *more != '\0') text += std::string(" (") + more + ")";
  return text;
}

void check(ncclResult_t result, std::string_view call, ncclComm_t communicator) {
  if (result != ncclSuccess && result != ncclInProgress)
    throw TransportError(std::string(call) + " failed: " + describe(result, communicator));
}

}  // namespace tersor::nccl
