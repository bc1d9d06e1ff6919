// Options that several commands have.

#include "bench/arguments.h"

#include <fmt/format.h>
#include <tersor/auto.h>
#include <tersor/codec.h>
#include <tersor/inprocess.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

namespace tersor::bench {
namespace {

/// CLI11's own ranges print the limits of double in 309 digits, and take NaNs.
template <typename Accepts>
CLI::Validator number_that(std::string is, Accepts accepts) {
  const auto check = [is = std::move(is), accepts](const std::string& text) {
    double number = 0;
    const bool read = CLI::detail::lexical_cast(text, number) && std::isfinite(number);
    if (read && accepts(number)) return text;
    throw InvalidArgument(fmt::format("{} is no number {}", text, is));
  };
  return checked(check, "");
}

}  // namespace

CLI::Validator one_of(const std::vector<std::string>& names) {
  const auto check = [names](const std::string& name) {
    if (std::ranges::find(names, name) != names.end()) return name;
    throw InvalidArgument(fmt::format("no \"{}\"; there are: {}", name, fmt::join(names, " | ")));
  };
  return checked(check, "");
}

CLI::Validator quiet(CLI::Validator validator) { return validator.description(""); }

CLI::Validator size_suffix() { return quiet(CLI::AsSizeValue(false)); }

std::string seconds_text(const std::string& time) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1}, {"s", 1}, {"ms", 1e3}, {"us", 1e6}, {"ns", 1e9}};
  double number = 0;
  const char* end = time.data() + time.size();
  const auto [unit, error] = std::from_chars(time.data(), end, number);
  if (error == std::errc() && std::isfinite(number) && number >= 0)
    for (const auto& [name, in_a_second] : kUnits)
      if (std::string_view(unit, end) == name) return fmt::format("{}", number / in_a_second);
  throw InvalidArgument(fmt::format(
      "\"{}\" is no time: write seconds, e.g. 0.5, or a number with ns, us, ms or s, e.g. 5us",
      time));
}

CLI::Validator above_zero() {
  return number_that("above 0", [](double number) { return number > 0; });
}

CLI::Validator from_to(double least, double most) {
  return number_that(fmt::format("from {} to {}", least, most),
                     [=](double number) { return number >= least && number <= most; });
}

Dtype parse_gradient_dtype(const std::string& name) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16})
    if (dtype_name(dtype) == name) return dtype;
  throw InvalidArgument(fmt::format("no dtype \"{}\"; the dtypes are f32, bf16 and f16", name));
}

CLI::Option* add_allowed(CLI::App& command, std::vector<std::string>& specs) {
  const auto canonical = [](const std::string& spec) { return make_codec(spec)->spec().text(); };
  return command.add_option("--allow", specs, "Codecs that auto may choose beside none and bf16")
      ->transform(checked(canonical, ""))
      ->type_name("SPEC")
      ->capture_default_str();
}

CLI::Option* add_codecs(CLI::App& command, std::vector<std::string>& specs, Automatic automatic) {
  std::string help = "Codecs, each NAME[:key=value[,key=value]...][+ef]. Names and keys:";
  for (const CodecInfo& codec : codecs())
    help += fmt::format("\n  {:<6} {}", codec.name, fmt::join(codec.keys, ", "));
  if (automatic == Automatic::kTaken)
    help += "\n  auto   whichever of none, bf16 and --allow is quickest";
  const auto canonical = [automatic](const std::string& spec) {
    const bool takes = automatic == Automatic::kTaken && spec == kAutoCodec;
    return takes ? spec : make_codec(spec)->spec().text();
  };
  return command.add_option("--codec", specs, help)
      ->transform(checked(canonical, ""))
      ->type_name("SPEC")
      ->capture_default_str();
}

CLI::Option* add_link(CLI::App& command, std::string& link) {
  const auto canonical = [](const std::string& text) { return parse_link(text).text(); };
  return command
      .add_option("--link", link,
                  "Link that each host has, emulated between threads: "
                  "RATE[,LATENCY][,overhead=FACTOR][,per_host=RANKS], e.g. 1Gbit,50us, or "
                  "none[,per_host=RANKS]; between processes only a name for the record")
      ->transform(checked(canonical, ""))
      ->type_name("LINK")
      ->capture_default_str();
}

CLI::Option* add_dtype(CLI::App& command, std::string& dtype) {
  const auto check = [](const std::string& name) {
    return std::string(dtype_name(parse_gradient_dtype(name)));
  };
  return command.add_option("--dtype", dtype, "Type of the gradient: f32, bf16 or f16")
      ->transform(checked(check, ""))
      ->type_name("DTYPE")
      ->capture_default_str();
}

void add_fleet(CLI::App& command, FleetOptions& fleet, const std::vector<std::string>& transports) {
  command
      .add_option("--transport", fleet.transport,
                  fmt::format("{}: ranks are threads of this process, started by mpirun, "
                              "processes that talk over TCP, or have a GPU each",
                              fmt::join(transports, " or ")))
      ->transform(one_of(transports))
      ->type_name("NAME")
      ->capture_default_str();
  command
      .add_option("--ranks", fleet.ranks,
                  "Threads, or processes to start, 4 unless given; mpirun has its own -n")
      ->check(from_to(1, 1024))
      ->type_name("N");
#if TERSOR_HAS_TCP
  command.add_option("--connections", fleet.connections, "tcp: connections of each pair of ranks")
      ->check(from_to(1, 16))
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--address", fleet.address,
                  "tcp: where this rank listens: an address, a host's name or an interface")
      ->type_name("ADDRESS");
#endif
  add_link(command, fleet.link);
}

CLI::Option* add_json(CLI::App& command, std::filesystem::path& file) {
  return command.add_option("--json", file, "Write the records here, as a JSON array")
      ->type_name("FILE");
}

}  // namespace tersor::bench
