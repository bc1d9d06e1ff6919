
#include "bench/processes/rank_identity.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace tersor::bench {
namespace {

std::string_view value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

int number_of(const char* variable) {
  const std::string_view text = value_of(variable);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    throw InvalidArgumentError(fmt::format("{}=\"{}\" is no number", variable, text));
  return number;
}

}  // namespace

Variables RankIdentity::variables(const char* file_variable) const {
  return {{kRankVariable, std::to_string(rank)},
          {kRanksVariable, std::to_string(ranks)},
          {file_variable, file.string()}};
}

RankIdentity identity_by(const char* rank_variable, const char* ranks_variable,
                         std::filesystem::path file) {
  RankIdentity identity{number_of(rank_variable), number_of(ranks_variable), std::move(file)};
  if (identity.rank < 0 || identity.rank >= identity.ranks)
    throw InvalidArgumentError(fmt::format("{}={} is no rank of {}={}", rank_variable,
                                           identity.rank, ranks_variable, identity.ranks));
  return identity;
}

std::optional<RankIdentity> identity_of_process() {
  const bool none = value_of(kRankVariable).empty() && value_of(kRanksVariable).empty() &&
                    value_of(kIdFileVariable).empty();
  if (none) return std::nullopt;
  const RankIdentity identity =
      identity_by(kRankVariable, kRanksVariable, value_of(kIdFileVariable));
  if (identity.file.empty())
    throw InvalidArgumentError(
        fmt::format("{} is not set: name a file that all ranks reach, and that "
                    "is not there yet",
                    kIdFileVariable));
  return identity;
}

Variables shared_device_variables(int rank, int ranks, int devices) {
  if (devices >= ranks) return {};
  return {{"NCCL_HOSTID", fmt::format("tersor-rank-{}", rank)},
          {"NCCL_NET", "Socket"},
          {"NCCL_SOCKET_IFNAME", "lo"},
          {"NCCL_MNNVL_ENABLE", "0"},
          {"NCCL_NVLS_ENABLE", "0"},
          {"NCCL_MAX_CTAS", "2"}};
}

}  // namespace tersor::bench
