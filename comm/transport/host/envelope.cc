// Describes the differences between two envelopes.
#include "comm/transport/host/envelope.h"

namespace tersor::host {
namespace {

std::string_view call_name(Calling call) {
  constexpr std::string_view kNames[] = {
      "something unknown", "all_to_all", "all_gather",           "send",    "sum",
      "maximum",           "barrier",    "all_gather in rounds", "exchange"};
  const auto index = static_cast<std::size_t>(call);
  return kNames[index < std::size(kNames) ? index : 0];
}

std::string values_text(const Envelope& envelope) {
  return std::to_string(envelope.count) + " values of " + std::string(dtype_name(envelope.dtype));
}

bool adds_values(Calling call) { return call == Calling::kSum || call == Calling::kMaximum; }

bool same_values(const Envelope& one, const Envelope& other) {
  return !adds_values(one.call) || (one.count == other.count && one.dtype == other.dtype);
}

std::string bytes_text(const Expectation& expected) {
  if (expected.min_bytes == expected.capacity) return std::to_string(expected.capacity);
  return "at most " + std::to_string(expected.capacity);
}

bool same_protocol(const Envelope& one, const Envelope& other) {
  return one.magic == other.magic && one.version == other.version;
}

bool same_call(const Envelope& one, const Envelope& other) {
  return same_protocol(one, other) && one.call == other.call && one.signature == other.signature &&
         same_values(one, other);
}

}  // namespace

bool matches(const Expectation& expected, const Envelope& received) {
  return same_call(expected.envelope, received) && received.bytes >= expected.min_bytes &&
         received.bytes <= expected.capacity;
}

std::string difference(const Envelope& own, const Envelope& received, std::string_view sender,
                       std::string_view name) {
  const std::string peer(sender), calls = peer + " calls " + std::string(name);
  if (!same_protocol(own, received)) return peer + " uses another version of the transport";
  if (received.call != own.call)
    return peer + " calls " + std::string(call_name(received.call)) + " where this rank calls " +
           std::string(call_name(own.call));
  if (!same_values(own, received))
    return calls + " with " + values_text(received) + ", this rank with " + values_text(own);
  if (received.signature != own.signature)
    return calls + " with other arguments (codec, count, dtype, root or options)";
  return peer + " sends " + std::to_string(received.bytes) + " bytes, but this rank expects none";
}

std::string mismatch_text(const Expectation& expected, const Envelope& received,
                          std::string_view sender, std::string_view name) {
  if (!same_call(expected.envelope, received))
    return difference(expected.envelope, received, sender, name);
  return std::string(sender) + " sends " + std::to_string(received.bytes) +
         " bytes, but this rank expects " + bytes_text(expected);
}

}  // namespace tersor::host
