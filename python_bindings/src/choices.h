// Choices of the library as Python programs write them: texts for enumerators, bools for those of
// two, seconds for durations. Bound as properties of the structs that hold them.
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
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tersor::python {

namespace nb = nanobind;

/// What a choice is called in messages, and its texts in the order of the enumerators.
template <typename Enum>
struct Choice;

template <>
struct Choice<Reduction> {
  static constexpr std::string_view kWhat = "reduction";
  static constexpr std::string_view kTexts[] = {"sum", "mean"};
};

template <>
struct Choice<MissingGradient> {
  static constexpr std::string_view kWhat = "missing";
  static constexpr std::string_view kTexts[] = {"error", "inactive"};
};

template <>
struct Choice<ProgressBy> {
  static constexpr std::string_view kWhat = "progress";
  static constexpr std::string_view kTexts[] = {"thread", "caller"};
};

template <>
struct Choice<Contribution> {
  static constexpr std::string_view kWhat = "contribution";
  static constexpr std::string_view kTexts[] = {"gradient", "none", "gradient-unless-zero",
                                                "nowhere"};
};

template <>
struct Choice<Algorithm> {
  static constexpr std::string_view kWhat = "algorithm";
  static constexpr std::string_view kTexts[] = {"auto", "native", "two-shot", "one-shot",
                                                "hierarchical"};
};

template <>
struct Choice<Dtype> {  // those of gradients
  static constexpr std::string_view kWhat = "dtype";
  static constexpr std::string_view kTexts[] = {"f32", "bf16", "f16"};
};

template <>
struct Choice<Memory> {
  static constexpr std::string_view kWhat = "memory";
  static constexpr std::string_view kTexts[] = {"host", "device"};
};

template <>
struct Choice<SendingOrder> {
  static constexpr std::string_view kWhat = "order";
  static constexpr std::string_view kTexts[] = {"learned", "of-ready"};
};

template <typename Enum>
std::string_view text_of(Enum value) {
  return Choice<Enum>::kTexts[static_cast<std::size_t>(value)];
}

/// Throws InvalidArgument that lists the texts.
template <typename Enum>
Enum parse_choice(std::string_view text) {
  std::string known;
  for (std::size_t i = 0; i < std::size(Choice<Enum>::kTexts); ++i) {
    if (Choice<Enum>::kTexts[i] == text) return static_cast<Enum>(i);
    known += (i == 0 ? "\"" : ", \"") + std::string(Choice<Enum>::kTexts[i]) + "\"";
  }
  throw InvalidArgument(std::string(Choice<Enum>::kWhat) + " is one of " + known + ", not \"" +
                        std::string(text) + "\"");
}

/// Throws InvalidArgument where the seconds are not above 0.
inline std::chrono::milliseconds to_timeout(double seconds) {
  constexpr double kLongest = 1e9;  // 31 years: no overflow where a deadline is counted from it
  if (!(seconds > 0))
    throw InvalidArgument("a timeout is a number of seconds above 0, not " +
                          std::to_string(seconds));
  return std::chrono::ceil<std::chrono::milliseconds>(
      std::chrono::duration<double>(seconds < kLongest ? seconds : kLongest));
}

/// Properties of `binding` for a member of its class: a text of a choice, …
template <auto kMember, typename Binding>
void def_choice(Binding& binding, const char* name) {
  using Owner = typename Binding::Type;
  using Field = std::remove_cvref_t<decltype(std::declval<Owner&>().*kMember)>;
  binding.def_prop_rw(
      name, [](const Owner& owner) { return text_of(owner.*kMember); },
      [](Owner& owner, std::string_view text) { owner.*kMember = parse_choice<Field>(text); });
}

/// … a bool, …
template <auto kMember, auto kFalse, auto kTrue, typename Binding>
void def_flag(Binding& binding, const char* name) {
  using Owner = typename Binding::Type;
  binding.def_prop_rw(
      name, [](const Owner& owner) { return owner.*kMember == kTrue; },
      [](Owner& owner, bool flag) { owner.*kMember = flag ? kTrue : kFalse; });
}

/// … or seconds.
template <auto kMember, typename Binding>
void def_timeout(Binding& binding, const char* name) {
  using Owner = typename Binding::Type;
  binding.def_prop_rw(
      name,
      [](const Owner& owner) { return std::chrono::duration<double>(owner.*kMember).count(); },
      [](Owner& owner, double seconds) { owner.*kMember = to_timeout(seconds); });
}

}  // namespace tersor::python
