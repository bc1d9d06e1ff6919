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
  if (expected.least_bytes == expected.capacity) return std::to_string(expected.capacity);
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

bool agrees(const Expectation& expected, const Envelope& came) {
  return same_call(expected.envelope, came) && came.bytes >= expected.least_bytes &&
         came.bytes <= expected.capacity;
}

std::string difference(const Envelope& own, const Envelope& came, std::string_view sender,
                       std::string_view name) {
  const std::string who(sender), calls = who + " calls " + std::string(name);
  if (!same_protocol(own, came)) return who + " uses another version of the transport";
  if (came.call != own.call)
    return who + " calls " + std::string(call_name(came.call)) + " where this rank calls " +
           std::string(call_name(own.call));
  if (!same_values(own, came))
    return calls + " with " + values_text(came) + ", this rank with " + values_text(own);
  if (came.signature != own.signature)
    return calls + " with other arguments (codec, count, dtype, root or options)";
  return who + " sends " + std::to_string(came.bytes) + " bytes, but this rank expects none";
}

std::string disagreement(const Expectation& expected, const Envelope& came, std::string_view sender,
                         std::string_view name) {
  if (!same_call(expected.envelope, came)) return difference(expected.envelope, came, sender, name);
  return std::string(sender) + " sends " + std::to_string(came.bytes) +
         " bytes, but this rank expects " + bytes_text(expected);
}

}  // namespace tersor::host
