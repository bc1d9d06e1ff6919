// The ranks that a measurement runs on: threads of this process, or processes.
// The measurements above see no difference.
#pragma once

#include <tersor/inprocess.h>
#include <tersor/transport.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace tersor::bench {

/// What the library below a transport does by itself.
struct Library {
  std::string name;  ///< of its sum
  /// The sum over ranks, in place; of device memory queued on the stream. Throws InvalidArgument
  /// where it does not add such values.
  std::function<void(ValueSpan values, StreamView stream)> sum;
  /// A collective by its name ("MPI_Bcast"), of f32, with rank 0 for a root; the output of a
  /// broadcast holds rank 0's values before. Empty where these are not measured.
  std::function<void(std::string_view name, ConstValueSpan input, ValueSpan output)> call = {};
};

/// One rank of a running measurement, and where it meets the others, whose messages stay apart from
/// those that are measured.
class Rank {
 public:
  virtual ~Rank() = default;

  virtual Transport& transport() = 0;
  int index() { return transport().rank(); }
  /// Rank 0, which checks and reports.
  bool first() { return index() == 0; }
  /// The one rank of each process that stores the results there.
  virtual bool stores() = 0;

  /// Returns once all ranks are here.
  virtual void meet() = 0;
  /// Everybody's bytes, as many from each, in the order of ranks.
  virtual std::vector<std::vector<std::byte>> gather_bytes(ConstByteSpan own) = 0;
  /// Null where there is none.
  virtual const Library* library() const { return nullptr; }

  /// Everybody's values, as many from each, in the order of ranks.
  template <typename T>
  std::vector<std::vector<T>> gather(std::span<const T> own) {
    std::vector<std::vector<T>> all;
    for (const auto& bytes : gather_bytes(std::as_bytes(own))) {
      all.emplace_back(own.size());
      const std::size_t fits = std::min(bytes.size(), own.size_bytes());  // a rank that failed
      if (fits != 0) std::memcpy(all.back().data(), bytes.data(), fits);
    }
    return all;
  }
  /// Rank 0's value, on all ranks.
  template <typename T>
  T from_first(T own) {
    return gather(std::span<const T>(&own, 1)).front().front();
  }
};

/// Of a ring of ranks.
constexpr int next_rank(int rank, int ranks) { return (rank + 1) % ranks; }
constexpr int rank_before(int rank, int ranks) { return (rank + ranks - 1) % ranks; }

class Fleet {
 public:
  virtual ~Fleet() = default;

  virtual int ranks() const = 0;
  /// "4 ranks in this process, link 1Gbit,50us"
  virtual std::string text() const = 0;
  /// Whether rank 0 is in this process: the others print nothing and write no files.
  virtual bool leads() const = 0;
  /// The only rank in this process; nullopt where all are.
  virtual std::optional<int> only_rank() const = 0;
  /// That of its ranks.
  virtual const Library* library() const { return nullptr; }
  /// Runs `body` once for each rank in this process. Throws what a rank threw.
  virtual void run(const std::function<void(Rank&)>& body) = 0;
};

/// What `measure` returns on the rank that stores results.
template <typename Measure>
auto measure_on(Fleet& fleet, const Measure& measure) {
  std::invoke_result_t<Measure, Rank&> result{};
  fleet.run([&](Rank& rank) {
    auto own = measure(rank);
    if (rank.stores()) result = std::move(own);
  });
  return result;
}

/// Ranks as threads over an emulated link.
std::unique_ptr<Fleet> make_thread_fleet(int ranks, const Link& link);

/// What the command line asks for.
struct FleetOptions {
  std::string transport = "inproc";  ///< or "mpi" or "tcp", where this build has it
  std::optional<int> ranks = {};     ///< to start, 4 unless given; mpirun knows its own
  std::string link = "none";
  std::string address = {};  ///< as TcpOptions
  int connections = 1;       ///< as TcpOptions
};

/// Throws InvalidArgument for a transport that this build lacks, and for ranks that mpirun did not
/// start.
std::unique_ptr<Fleet> make_fleet(const FleetOptions& options);

/// Transports that `make_fleet` knows.
std::vector<std::string> transport_names();

}  // namespace tersor::bench
