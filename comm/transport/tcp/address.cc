#include "comm/transport/tcp/address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <tersor/error.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/ip/host_name.hpp>

#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>

namespace tersor::tcp {
namespace {

constexpr unsigned kMaxPort = 65'535;

bool is_port(std::string_view text) {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= 1 &&
         number <= kMaxPort;
}

std::optional<asio::ip::address> address_of(const sockaddr* found) {
  if (found == nullptr) return std::nullopt;
  Endpoint endpoint;
  if (found->sa_family == AF_INET)
    std::memcpy(endpoint.data(), found, sizeof(sockaddr_in));
  else if (found->sa_family == AF_INET6)
    endpoint = Endpoint(asio::ip::address_v6(), 0),
    std::memcpy(endpoint.data(), found, sizeof(sockaddr_in6));
  else
    return std::nullopt;
  return endpoint.address();
}

/// The first address of an active interface, preferably IPv4: of the named interface, by default of
/// any interface except loopback.
std::optional<asio::ip::address> address_of_interface(const std::string& name) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> guard(all, freeifaddrs);
  std::optional<asio::ip::address> best;
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    const bool matches =
        name.empty() ? (entry->ifa_flags & IFF_LOOPBACK) == 0 : name == entry->ifa_name;
    const auto found = address_of(entry->ifa_addr);
    if (!matches || !found || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (found->is_v4()) return found;
    if (!best && !found->to_v6().is_link_local()) best = found;
  }
  return best;
}

/// True if this host can listen at the address. A host's name may resolve to another host or a
/// router.
bool can_listen_at(const asio::ip::address& address) try {
  const Listener listener({address, 0});
  return true;
} catch (const TransportError&) {
  return false;
}

/// The address of this host's name, if usable for listening and not loopback.
std::optional<asio::ip::address> address_of_own_name() {
  asio::io_context context;
  asio::error_code error;
  asio::ip::tcp::resolver resolver(context);
  for (const auto& found : resolver.resolve(asio::ip::host_name(error), "", error))
    if (const auto address = found.endpoint().address();
        !address.is_loopback() && can_listen_at(address))
      return address;
  return std::nullopt;
}

}  // namespace

HostAndPort parse_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  const auto reject = [text] {
    throw InvalidArgumentError(
        "\"" + std::string(text) +
        "\" is not an address: write 10.0.0.3:4711, node3:4711 or [fd00::3]:4711");
  };
  if (colon == std::string_view::npos || colon == 0) reject();
  std::string_view host = text.substr(0, colon), port = text.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (!is_port(port) || (!bracketed && host.find(':') != std::string_view::npos)) reject();
  return {std::string(host), std::string(port)};
}

Endpoint resolve(const HostAndPort& address, std::string_view owner) {
  asio::io_context context;
  asio::error_code error;
  asio::ip::tcp::resolver resolver(context);
  const auto found = resolver.resolve(address.host, address.port, error);
  if (error || found.empty())
    throw TransportError(std::string(owner) + ", \"" + address.host +
                         "\", does not resolve: " + error.message());
  for (const auto& entry : found)
    if (entry.endpoint().address().is_v4()) return entry.endpoint();
  return found.begin()->endpoint();
}

Endpoint own_endpoint(const std::string& requested) {
  if (!requested.empty()) {
    if (const auto address = address_of_interface(requested)) return {*address, 0};
    try {
      return resolve({requested, "0"}, "this rank's address");
    } catch (const TransportError& error) {
      throw AddressError(error.what());
    }
  }
  if (const auto address = address_of_own_name()) return {*address, 0};
  return {address_of_interface("").value_or(asio::ip::address_v4::loopback()), 0};
}

std::string host_identity() {
  asio::error_code ignored;
  std::string boot_id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot_id);
  return asio::ip::host_name(ignored) + " " + boot_id;
}

}  // namespace tersor::tcp
