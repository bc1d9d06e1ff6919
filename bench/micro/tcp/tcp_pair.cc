// Two ranks over TCP on the loopback. A thread makes rank 1, because each rank waits for the other.

#include <stdlib.h>
#include <tersor/error.h>
#include <tersor/tcp.h>

#include <filesystem>
#include <future>
#include <string>

#include "bench/micro/transport_benchmarks.h"

namespace tersor::bench {

std::vector<std::unique_ptr<Transport>> make_tcp_pair() {
  std::string folder = (std::filesystem::temp_directory_path() / "tersor-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) throw Error("cannot make a folder " + folder);
  const auto make = [file = std::filesystem::path(folder) / "rendezvous"](int rank) {
    return make_tcp_transport(file, rank, 2, {.address = "127.0.0.1"});
  };
  auto second = std::async(std::launch::async, make, 1);
  std::vector<std::unique_ptr<Transport>> ranks;
  ranks.push_back(make(0));
  ranks.push_back(second.get());
  std::filesystem::remove_all(folder);
  return ranks;
}

}  // namespace tersor::bench
