
#include "bench/common/arguments.h"

#include <fmt/format.h>
#include <tersor/auto.h>
#include <tersor/codec.h>
#include <tersor/inprocess.h>

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

#include "codecs/examples.h"

namespace tersor::bench {

std::vector<std::string> all_specs() {
  constexpr std::array kShares = {0.1, 0.01, 0.001};  // shares of the maximum of a number
  std::vector<std::string> specs;
  for (const CodecInfo& codec : codecs()) {
    specs.push_back(make_codec(codec.name)->spec().text());
    for (const auto& option : encoding::option_values(codec, kShares))
      for (const std::string& value : option.values)
        specs.push_back(
            make_codec(fmt::format("{}:{}={}", codec.name, option.key, value))->spec().text());
  }
  return deduplicated(specs);
}

std::string link_text(const std::string& text) { return parse_link(text).text(); }

std::string seconds_text(const std::string& time) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1}, {"s", 1}, {"ms", 1e3}, {"us", 1e6}, {"ns", 1e9}};
  double number = 0;
  const char* end = time.data() + time.size();
  const auto [unit, error] = std::from_chars(time.data(), end, number);
  if (error == std::errc() && std::isfinite(number) && number >= 0)
    for (const auto& [name, in_a_second] : kUnits)
      if (std::string_view(unit, end) == name) return fmt::format("{}", number / in_a_second);
  throw InvalidArgumentError(fmt::format(
      "\"{}\" is no time: write seconds, e.g. 0.5, or a number with ns, us, ms or s, e.g. 5us",
      time));
}

Dtype parse_gradient_dtype(const std::string& name) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16})
    if (dtype_name(dtype) == name) return dtype;
  throw InvalidArgumentError(
      fmt::format("no dtype \"{}\"; the dtypes are f32, bf16 and f16", name));
}

void add_allowed(CLI::App& command, std::vector<std::string>& specs) {
  const auto canonical = [](const std::string& spec) { return make_codec(spec)->spec().text(); };
  add(command, "--allow", specs, "Codecs that auto may choose beside none and bf16", "SPEC",
      checked(canonical));
}

void add_codecs(CLI::App& command, std::vector<std::string>& specs, Automatic automatic) {
  std::string help = "Codecs, each NAME[:key=value[,key=value]...][+ef]. Names and keys:";
  for (const CodecInfo& codec : codecs()) {
    help += fmt::format("\n  {:<6}", codec.name);
    for (const CodecOption& option : codec.options)
      help += (&option == codec.options.data() ? " " : ", ") + option.help();
  }
  if (automatic == Automatic::kAccepted)
    help += "\n  auto   whichever of none, bf16 and --allow is quickest";
  const auto canonical = [automatic](const std::string& spec) {
    const bool accepted = automatic == Automatic::kAccepted && spec == kAutoCodec;
    return accepted ? spec : make_codec(spec)->spec().text();
  };
  add(command, "--codec", specs, help, "SPEC", checked(canonical));
}

void add_dtype(CLI::App& command, std::string& dtype) {
  const auto check = [](const std::string& name) {
    return std::string(dtype_name(parse_gradient_dtype(name)));
  };
  add(command, "--dtype", dtype, "Type of the gradient: f32, bf16 or f16", "DTYPE", checked(check));
}

void add_codec_threads(CLI::App& command, unsigned& threads) {
  add(command, "--threads", threads, "Threads of a codec; 0: one a core", "N", within(0, 1024));
}

void add_data(CLI::App& command, std::string& source) {
  add(command, "--data", source,
      "normal, laplace, student (3 degrees of freedom), narrow, or tensors in FILE.npy or "
      "FILE.safetensors",
      "DATA");
}

void add_json(CLI::App& command, std::filesystem::path& file) {
  command.add_option("--json", file, "Write the records here, as a JSON array")->type_name("FILE");
}

}  // namespace tersor::bench
