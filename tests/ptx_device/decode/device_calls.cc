// Functions implemented by the driver: vprintf, called by printf(), and __assertfail, called by a
// failed assert(). Parameters are in local memory, texts are anywhere.
#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/machine/access.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

namespace ptx {
namespace {

constexpr std::size_t kMostText = 4096;

/// The arguments of a thread's call.
class Caller {
 public:
  Caller(Warp& warp, const Instruction& ins, unsigned lane) : warp_(warp), ins_(ins), lane_(lane) {}

  template <class T>
  T param(unsigned i) const {
    return read<T>(kLocalWindow + ins_.v[i]);
  }
  template <class T>
  T read(std::uint64_t address) const {
    unsigned char bytes[sizeof(T)];
    for (unsigned i = 0; i < sizeof(T); ++i) bytes[i] = *byte(address + i, Use::kRead);
    T value;
    std::memcpy(&value, bytes, sizeof(T));
    return value;
  }
  std::string text(std::uint64_t address) const {
    std::string result;
    while (result.size() < kMostText) {
      const char c = read<char>(address + result.size());
      if (c == '\0') break;
      result += c;
    }
    return result;
  }
  void give_back(std::uint32_t value) const {
    for (unsigned i = 0; i < sizeof(value); ++i)
      *byte(kLocalWindow + ins_.v[0] + i, Use::kWrite) =
          static_cast<unsigned char>(value >> (8 * i));
  }

 private:
  unsigned char* byte(std::uint64_t address, Use use) const {
    Access access(warp_, ins_, 1u << lane_, 1, use);
    access.addresses[lane_] = address;
    resolve_generic(access);
    if (use == Use::kWrite && settings().check_reads) set_written(access);
    return reinterpret_cast<unsigned char*>(access.addresses[lane_]);
  }

  Warp& warp_;
  const Instruction& ins_;
  const unsigned lane_;
};

/// printf's output from a format and consecutive values in memory.
class Printed {
 public:
  Printed(const Caller& caller, std::uint64_t values) : caller_(caller), values_(values) {}

  std::string print(const std::string& format) {
    std::string result;
    for (std::size_t i = 0; i < format.size(); ++i) {
      if (format[i] != '%') {
        result += format[i];
        continue;
      }
      const std::size_t end =
          std::min(format.find_first_of("diouxXcspeEfFgGaA%", i + 1), format.size() - 1);
      result += value(format.substr(i, end + 1 - i));
      i = end;
    }
    return result;
  }

 private:
  template <class T>
  T next() {
    values_ = (values_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    const T value = caller_.read<T>(values_);
    values_ += sizeof(T);
    return value;
  }
  template <class T>
  static std::string as(const std::string& format, T value) {
    char text[kMostText];
    std::snprintf(text, sizeof(text), format.c_str(), value);
    return text;
  }
  /// Formats a conversion: %-5.2f
  std::string value(std::string format) {
    const char kind = format.back();
    if (kind == '%') return "%";
    for (std::size_t star = format.find('*'); star != std::string::npos; star = format.find('*'))
      format.replace(star, 1, std::to_string(next<int>()));
    if (kind == 's') return as(format, caller_.text(next<std::uint64_t>()).c_str());
    if (kind == 'p') return as(format, reinterpret_cast<void*>(next<std::uint64_t>()));
    if (std::strchr("eEfFgGaA", kind) != nullptr) return as(format, next<double>());
    const bool is_long = format.find_first_of("ljzt") != std::string::npos;
    return is_long ? as(format, next<long long>()) : as(format, next<int>());
  }

  const Caller& caller_;
  std::uint64_t values_;
};

void print(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  for (; lanes != 0; lanes &= lanes - 1) {
    const Caller caller(warp, ins, first_lane(lanes));
    const std::string format = caller.text(caller.param<std::uint64_t>(1));
    const std::string text = Printed(caller, caller.param<std::uint64_t>(2)).print(format);
    std::fwrite(text.data(), 1, text.size(), stdout);
    caller.give_back(static_cast<std::uint32_t>(text.size()));
  }
}

void fail_assertion(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const Caller caller(warp, ins, first_lane(lanes));
  const auto text = [&](unsigned i) { return caller.text(caller.param<std::uint64_t>(i)); };
  fault(warp, FaultKind::kAssert, first_lane(lanes),
        text(1) + ":" + std::to_string(caller.param<std::uint32_t>(2)) + ": " + text(3) +
            ": assertion `" + text(0) + "` failed");
}

void decode_call(Decoder& decoder, Instruction& ins) {
  ins.run = decoder.op()[1] == "vprintf" ? print : fail_assertion;
  ins.count = static_cast<std::uint8_t>(decoder.operands());
  if (decoder.operands() > ins.v.size()) decoder.refuse("too many parameters");
  for (std::size_t i = 0; i < decoder.operands(); ++i)
    ins.v[i] = static_cast<std::uint32_t>(decoder.symbol(decoder.operand(i)).value);
}

}  // namespace

void add_device_calls(Handlers& handlers) { handlers["call"] = decode_call; }

}  // namespace ptx
