#include <tersor/agreement.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <span>
#include <tuple>

namespace tersor {
namespace {

constexpr std::string_view kPresent = "present", kAbsent = "absent";

/// Item, name, and how often the item had an option of this name before.
using OptionKey = std::tuple<std::string, std::string, std::size_t>;
using OptionValues = std::map<OptionKey, std::string>;

OptionValues values_of(const std::vector<Agreement::Option>& options) {
  OptionValues values;
  for (const auto& [item, name, value] : options) {
    OptionKey key{item, name, 0};
    while (values.contains(key)) ++std::get<2>(key);
    values[key] = value;
  }
  return values;
}

std::string full_name(const Difference& of) {
  if (of.item.empty() || of.name.empty()) return of.item + of.name;
  return of.name + " of " + of.item;
}

}  // namespace

Agreement& Agreement::append(std::string_view name, std::string value) {
  options_.push_back({item_, std::string(name), std::move(value)});
  return *this;
}

Agreement& Agreement::add(std::string_view name, std::string_view text) {
  hash_.add(text);
  return append(name, std::string(text));
}

Agreement& Agreement::add_unless_zero(std::string_view name, std::uint32_t number,
                                      std::string_view mark) {
  if (number != 0) {
    for (const char character : mark) hash_.add(character);
    hash_.add(number);
  }
  return append(name, std::to_string(number));
}

Agreement& Agreement::begin(std::string_view item) {
  item_ = item;
  return *this;
}

std::vector<Difference> Agreement::differences(const Agreement& other, int rank,
                                               int other_rank) const {
  if (other_rank < rank) return other.differences(*this, other_rank, rank);
  std::vector<Difference> found;
  const auto add = [&](const std::string& item, const std::string& name, std::string_view value,
                       std::string_view other_value) {
    found.push_back({item, name, rank, std::string(value), other_rank, std::string(other_value)});
  };
  const OptionValues own = values_of(options_), theirs = values_of(other.options_);
  const auto lacks = [](const OptionValues& values, const std::string& item) {
    const auto first = values.lower_bound({item, "", 0});
    return first == values.end() || std::get<0>(first->first) != item;
  };
  OptionValues all = own;
  all.insert(theirs.begin(), theirs.end());
  for (const auto& [key, unused] : all) {
    const auto& [item, name, number] = key;
    if (!item.empty() && (lacks(own, item) || lacks(theirs, item))) {
      if (!found.empty() && found.back().item == item) continue;
      lacks(own, item) ? add(item, "", kAbsent, kPresent) : add(item, "", kPresent, kAbsent);
      continue;
    }
    const auto one = own.find(key), two = theirs.find(key);
    const std::string_view value = one == own.end() ? kAbsent : std::string_view(one->second);
    const std::string_view other_value =
        two == theirs.end() ? kAbsent : std::string_view(two->second);
    if (value != other_value) add(item, name, value, other_value);
  }
  const auto [one, two] = std::ranges::mismatch(options_, other.options_);
  if (found.empty() && one != options_.end() && two != other.options_.end())
    add("", "first item in another order", one->item, two->item);
  return found;
}

std::vector<std::string> Agreement::strings() const {
  std::vector<std::string> all;
  for (const auto& [item, name, value] : options_) all.insert(all.end(), {item, name, value});
  return all;
}

Agreement Agreement::parse(std::span<const std::string> strings) {
  if (strings.size() % 3 != 0) throw WireError("options: a name without a value");
  Agreement agreement;
  for (; !strings.empty(); strings = strings.subspan(3))
    agreement.options_.push_back({strings[0], strings[1], strings[2]});
  return agreement;
}

std::string text_of(const std::vector<Difference>& differences,
                    const std::function<std::string(int)>& name) {
  const auto clause = [&](const Difference& one) {
    return " is " + one.value + " on " + name(one.rank) + ", " + one.other_value + " on " +
           name(one.other_rank);
  };
  std::map<std::pair<std::string, std::string>, std::size_t> counts;
  for (const Difference& one : differences) ++counts[{one.name, clause(one)}];
  std::string text;
  for (const Difference& one : differences) {
    const auto same = counts.extract({one.name, clause(one)});
    if (!same) continue;
    text += (text.empty() ? "" : "; ") + full_name(one);
    if (same.mapped() > 1) text += " and of " + std::to_string(same.mapped() - 1) + " more";
    text += clause(one);
  }
  return text;
}

std::vector<std::byte> pack(std::span<const std::string> strings) {
  std::vector<std::byte> bytes;
  const auto put = [&](std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  };
  const auto put_number = [&](std::size_t size) {
    const auto number = static_cast<std::uint32_t>(size);
    put(std::as_bytes(std::span(&number, 1)));
  };
  put_number(strings.size());
  for (const std::string& one : strings) {
    put_number(one.size());
    put(std::as_bytes(std::span(one)));
  }
  return bytes;
}

std::vector<std::string> unpack(ConstByteSpan bytes) {
  const auto take = [&](std::size_t count) {
    if (bytes.size() < count) throw WireError("options: the message is truncated");
    const ConstByteSpan taken = bytes.first(count);
    bytes = bytes.subspan(count);
    return taken;
  };
  const auto take_number = [&] {
    std::uint32_t number = 0;
    std::memcpy(&number, take(sizeof number).data(), sizeof number);
    return number;
  };
  std::vector<std::string> strings;
  for (std::uint32_t remaining = take_number(); remaining > 0; --remaining) {
    const ConstByteSpan one = take(take_number());
    strings.emplace_back(reinterpret_cast<const char*>(one.data()), one.size());
  }
  if (!bytes.empty()) throw WireError("options: bytes after the last string");
  return strings;
}

}  // namespace tersor
