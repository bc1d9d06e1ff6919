// See specs.h.

#include "tests/support/specs.h"

#include "codecs/examples.h"

#include <tersor/error.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <iterator>

namespace tersor::test {
namespace {

using encoding::OptionValues;

constexpr std::array kShares = {1.0, 0.3, 0.1, 0.003, 0.0001};  // fractions of a number's maximum

std::size_t combinations_of(const std::vector<OptionValues>& options) {
  std::size_t words = 1, numbers = 1;
  for (const OptionValues& option : options)
    option.is_number ? numbers = option.values.size() : words *= option.values.size();
  return std::max(words, numbers);
}

std::string combination(const CodecInfo& codec, const std::vector<OptionValues>& options,
                        std::size_t number) {
  std::string spec(codec.name);
  std::size_t words = number;
  for (const OptionValues& option : options) {
    const std::size_t size = option.values.size();
    spec += (&option == options.data() ? ":" : ",") + option.key + "=";
    spec += option.values[(option.is_number ? number : words) % size];
    if (!option.is_number) words /= size;
  }
  return make_codec(spec)->spec().text();
}

bool has_frames(const CodecInfo& codec) {
  const std::string name(codec.name);
  return offers(name, Exchange::kTwoShot) || offers(name, Exchange::kGather);
}

std::vector<std::string> names_where(bool framed) {
  std::vector<std::string> names;
  for (const CodecInfo& info : flat_codecs())
    if (has_frames(info) == framed) names.emplace_back(info.name);
  return names;
}

std::vector<std::string> specs_where(bool framed) {
  std::vector<std::string> specs;
  for (const CodecInfo& info : flat_codecs())
    if (has_frames(info) == framed)
      for (const std::string& spec : example_specs(info))
        specs.insert(specs.end(), {spec, spec + "+ef"});
  return specs;
}

}  // namespace

std::vector<std::string> example_specs(const CodecInfo& codec) {
  const auto options = encoding::option_values(codec, kShares);
  std::vector<std::string> specs = {make_codec(codec.name)->spec().text()};
  for (std::size_t number = 0; number < combinations_of(options); ++number) {
    std::string spec = combination(codec, options, number);
    if (std::ranges::find(specs, spec) == specs.end()) specs.push_back(std::move(spec));
  }
  return specs;
}

bool offers(const std::string& spec, Exchange exchange) {
  const Segment segment{.count = 1};
  const Plan plan = make_codec(spec)->plan({.segments = {&segment, 1}});
  return std::ranges::any_of(plan.rounds, [exchange](const Round& round) {
    return std::ranges::count(round.exchanges, exchange) != 0;
  });
}

std::vector<CodecInfo> flat_codecs() {
  std::vector<CodecInfo> flat;
  std::ranges::copy_if(codecs(), std::back_inserter(flat), [](const CodecInfo& info) {
    return !make_codec(info.name)->traits().needs_shape;
  });
  return flat;
}

bool runs_on_devices(const std::string& spec) {
  const Segment segment{.count = 1};
  try {
    make_codec(spec)->plan({.segments = {&segment, 1}, .memory = Memory::kDevice});
  } catch (const InvalidArgumentError&) {
    return false;
  } catch (const CudaError&) {  // without a device
  }
  return true;
}

std::vector<std::string> framed_codecs() { return names_where(true); }
std::vector<std::string> native_codecs() { return names_where(false); }
std::vector<std::string> framed_specs() { return specs_where(true); }
std::vector<std::string> native_specs() { return specs_where(false); }

std::vector<std::string> framed_device_specs() {
  std::vector<std::string> specs = framed_specs();
  std::erase_if(specs, [](const std::string& spec) { return !runs_on_devices(spec); });
  return specs;
}

std::string test_name(std::string spec) {
  for (char& c : spec)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return spec;
}

}  // namespace tersor::test
