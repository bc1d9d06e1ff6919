// The library's choices as Python values: strings for enumerators, bools for two-valued
// enumerations, seconds for durations. All are bound as properties of their structs.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <tersor/collectives.h>
#include <tersor/error.h>
#include <tersor/reducer.h>

#include <chrono>
#include <cstddef>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tersor::python {

namespace nb = nanobind;

/// The name of a choice in messages, and its strings in the order of the enumerators.
template <std::size_t kCount>
struct Texts {
  std::string_view what;
  std::string_view texts[kCount];
};

template <typename Enum>
inline constexpr std::nullptr_t kChoice = nullptr;  // defined only for the types below

template <>
inline constexpr Texts<2> kChoice<Reduction> = {"reduction", {"sum", "mean"}};
template <>
inline constexpr Texts<2> kChoice<ProgressBy> = {"progress", {"thread", "caller"}};
template <>
inline constexpr Texts<4> kChoice<Contribution> = {
    "contribution", {"gradient", "none", "gradient-unless-zero", "globally-unused"}};
template <>
inline constexpr Texts<5> kChoice<Algorithm> = {
    "algorithm", {"auto", "native", "two-shot", "one-shot", "hierarchical"}};
template <>  // the dtypes of gradients
inline constexpr Texts<3> kChoice<Dtype> = {"dtype", {"f32", "bf16", "f16"}};
template <>
inline constexpr Texts<2> kChoice<Memory> = {"memory", {"host", "device"}};
template <>
inline constexpr Texts<2> kChoice<SendingOrder> = {"order", {"learned", "ready_order"}};

/// Former strings, which work for one release.
struct Renamed {
  std::string_view what, before, now;
};
inline constexpr Renamed kRenamed[] = {{"order", "of-ready", "ready_order"},
                                       {"contribution", "nowhere", "globally-unused"}};

/// Warns of a former spelling, once per process.
inline void deprecated(const std::string& former, const std::string& remedy) {
  nb::module_::import_("tersor._renamed").attr("deprecated")(former, remedy);
}

/// Replaces a former string, with a DeprecationWarning.
inline std::string_view current_text(std::string_view what, std::string_view text) {
  for (const Renamed& one : kRenamed) {
    if (one.what != what || one.before != text) continue;
    deprecated(std::string(what) + "=\"" + std::string(text) + "\"",
               "use \"" + std::string(one.now) + "\"");
    return one.now;
  }
  return text;
}

/// Warns about the former name of a method, once per name. The caller holds the GIL.
inline void warn_renamed(const std::string& before, const std::string& now) {
  static std::set<std::string> warned;
  if (!warned.insert(before).second) return;
  if (PyErr_WarnFormat(PyExc_DeprecationWarning, 1,
                       "%s is deprecated and ends with the next release: use %s", before.c_str(),
                       now.c_str()) != 0)
    throw nb::python_error();
}

template <typename Enum>
std::string_view text_of(Enum value) {
  return kChoice<Enum>.texts[static_cast<std::size_t>(value)];
}

/// Throws InvalidArgumentError for an unknown string; the message lists the strings.
template <typename Enum>
Enum parse_choice(std::string_view text) {
  const auto& [what, texts] = kChoice<Enum>;
  text = current_text(what, text);
  std::string known;
  for (std::size_t i = 0; i < std::size(texts); ++i) {
    if (texts[i] == text) return static_cast<Enum>(i);
    known += (i == 0 ? "\"" : ", \"") + std::string(texts[i]) + "\"";
  }
  throw InvalidArgumentError(std::string(what) + " is \"" + std::string(text) + "\"; pass one of " +
                             known);
}

/// Converts seconds. Throws InvalidArgumentError if the number is not above 0.
inline std::chrono::milliseconds to_timeout(double seconds) {
  constexpr double kLongest = 1e9;  // 31 years: deadlines counted from now do not overflow
  if (!(seconds > 0))
    throw InvalidArgumentError("timeout is " + std::to_string(seconds) +
                               " s; pass a number above 0");
  return std::chrono::ceil<std::chrono::milliseconds>(
      std::chrono::duration<double>(seconds < kLongest ? seconds : kLongest));
}

/// Adds a property for a member of the bound class, as a string of a choice, with a docstring.
template <auto kMember, typename Binding>
void def_choice(Binding& binding, const char* name, const char* doc = "") {
  using Owner = typename Binding::Type;
  using Field = std::remove_cvref_t<decltype(std::declval<Owner&>().*kMember)>;
  binding.def_prop_rw(
      name, [](const Owner& owner) { return text_of(owner.*kMember); },
      [](Owner& owner, std::string_view text) { owner.*kMember = parse_choice<Field>(text); }, doc);
}

/// Adds a property for a two-valued member, as a bool.
template <auto kMember, auto kFalse, auto kTrue, typename Binding>
void def_flag(Binding& binding, const char* name, const char* doc = "") {
  using Owner = typename Binding::Type;
  binding.def_prop_rw(
      name, [](const Owner& owner) { return owner.*kMember == kTrue; },
      [](Owner& owner, bool flag) { owner.*kMember = flag ? kTrue : kFalse; }, doc);
}

/// Adds a property for a duration, in seconds.
template <auto kMember, typename Binding>
void def_timeout(Binding& binding, const char* name, const char* doc = "") {
  using Owner = typename Binding::Type;
  binding.def_prop_rw(
      name,
      [](const Owner& owner) { return std::chrono::duration<double>(owner.*kMember).count(); },
      [](Owner& owner, double seconds) { owner.*kMember = to_timeout(seconds); }, doc);
}

}  // namespace tersor::python
