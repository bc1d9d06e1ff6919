#include "comm/collectives/fields.h"

#include "codecs/examples.h"
#include "comm/transport/host/signatures.h"

#include <tersor/codec.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

namespace tersor {
namespace {

constexpr std::uint64_t kPrime = 0x100000001b3u;
constexpr std::size_t kMostNumbers = 32;  // that are looked for among all of 32 bits
constexpr std::size_t kMostSwapped = 64;  // things of which any two may have changed places

/// The number by which a product with the prime is undone.
constexpr std::uint64_t inverse_of(std::uint64_t odd) {
  std::uint64_t inverse = odd;
  for (int i = 0; i < 5; ++i) inverse *= 2 - odd * inverse;
  return inverse;
}
constexpr std::uint64_t kBack = inverse_of(kPrime);
static_assert(kBack * kPrime == 1);

std::uint64_t forward(std::uint64_t hash, std::string_view bytes) {
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * kPrime;
  return hash;
}

/// The hash before these bytes, by that behind them.
std::uint64_t backward(std::uint64_t hash, std::string_view bytes) {
  for (auto byte = bytes.rbegin(); byte != bytes.rend(); ++byte)
    hash = hash * kBack ^ static_cast<unsigned char>(*byte);
  return hash;
}

std::uint64_t number_of(std::string_view bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    number = number << 8 | static_cast<unsigned char>(bytes[i]);
  return number;
}

std::string bytes_of(std::uint64_t number, std::size_t count) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i, number >>= 8)
    bytes.push_back(static_cast<char>(number & 0xff));
  return bytes;
}

/// Which number of two bytes leads to a hash: an open table.
class Halves {
 public:
  void add(std::uint64_t hash, std::uint32_t half) {
    std::size_t at = place(hash);
    while (slots_[at].second != 0) at = (at + 1) % kSlots;
    slots_[at] = {hash, half + 1};
  }
  std::optional<std::uint64_t> find(std::uint64_t hash) const {
    for (std::size_t at = place(hash); slots_[at].second != 0; at = (at + 1) % kSlots)
      if (slots_[at].first == hash) return slots_[at].second - 1;
    return {};
  }

 private:
  static constexpr std::size_t kSlots = std::size_t{1} << 18;
  /// FNV's own upper bits hardly differ after two bytes.
  static std::size_t place(std::uint64_t hash) { return hash * 0x9e3779b97f4a7c15u >> 46; }
  std::vector<std::pair<std::uint64_t, std::uint32_t>> slots_{kSlots};
};

/// The number of so many bytes, below 2^32, that leads from one hash to another: those of its lower
/// half are met by those of its upper half.
std::optional<std::uint64_t> number_between(std::uint64_t from, std::uint64_t to,
                                            std::size_t bytes) {
  const std::size_t low = std::min<std::size_t>(bytes, 2),
                    high = std::min<std::size_t>(bytes, 4) - low;
  Halves halves;
  for (std::uint32_t half = 0; half < 1u << 8 * low; ++half) {
    const std::uint64_t hash = (from ^ (half & 0xff)) * kPrime;
    halves.add(low == 1 ? hash : (hash ^ half >> 8) * kPrime, half);
  }
  const std::uint64_t end = backward(to, std::string(bytes - low - high, '\0'));
  for (std::uint32_t half = 0; half < 1u << 8 * high; ++half) {
    std::uint64_t hash = high < 2 ? end : (end * kBack) ^ half >> 8;
    if (high > 0) hash = (hash * kBack) ^ (half & 0xff);
    if (const auto found = halves.find(hash)) return *found | std::uint64_t{half} << 8 * low;
  }
  return {};
}

/// All specs that differ in words, and in usual numbers.
std::vector<std::string> usual_specs() {
  constexpr double kShares[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05,
                                0.08,  0.1,   0.2,   0.25, 0.4,  0.5,  1};
  std::vector<std::string> specs;
  for (const CodecInfo& codec : codecs()) {
    std::vector<std::string> texts = {std::string(codec.name)};
    for (const encoding::OptionValues& option : encoding::option_values(codec, kShares)) {
      const std::vector<std::string> before = texts;
      for (const std::string& text : before)
        for (const std::string& value : option.values)
          texts.push_back(text + (text.find(':') == std::string::npos ? ":" : ",") + option.key +
                          "=" + value);
    }
    for (const std::string& text : texts)
      for (const char* feedback : {"", "+ef"}) specs.push_back(text + feedback);
  }
  for (std::string& spec : specs) spec = make_codec(spec)->spec().text();
  std::ranges::sort(specs);
  specs.erase(std::unique(specs.begin(), specs.end()), specs.end());
  return specs;
}

std::string terminated(std::string_view text) { return std::string(text) + '\0'; }

}  // namespace

Fields& Fields::append(Field field) {
  field.thing = thing_;
  fields_.push_back(std::move(field));
  return *this;
}

Fields& Fields::add(std::string_view name, std::string_view text) {
  return append({std::string(name), terminated(text), Kind::kText});
}

Fields& Fields::add_codec(std::string_view spec) {
  return append({"codec", terminated(spec), Kind::kCodec});
}

Fields& Fields::add_unless_zero(std::string_view name, std::uint32_t number, std::string mark) {
  const std::string bytes = number == 0 ? "" : mark + bytes_of(number, sizeof number);
  return append({std::string(name), bytes, Kind::kUnlessZero, {}, std::move(mark)});
}

Fields& Fields::begin(std::string_view thing) {
  thing_ = things_.size();
  things_.emplace_back(thing);
  return *this;
}

std::uint64_t Fields::after(std::size_t fields) const {
  std::uint64_t hash = Signature().value();
  for (const Field& field : std::span(fields_).first(fields)) hash = forward(hash, field.bytes);
  return hash;
}

/// Looks for one field, with all others as they are given.
class Fields::Search {
 public:
  Search(const Fields& own, std::vector<Field> fields, std::uint64_t other)
      : own_(own),
        fields_(std::move(fields)),
        before_(fields_.size() + 1, Signature().value()),
        wanted_(fields_.size() + 1, other) {
    for (std::size_t i = 0; i < fields_.size(); ++i)
      before_[i + 1] = forward(before_[i], fields_[i].bytes);
    for (std::size_t i = fields_.size(); i-- > 0;)
      wanted_[i] = backward(wanted_[i + 1], fields_[i].bytes);
  }

  std::string run(std::span<const std::string> specs) const {
    for (std::size_t i = 0; i < fields_.size(); ++i)
      for (const std::string& spec : specs)
        if (fields_[i].kind == Kind::kCodec && leads(i, terminated(spec)))
          return told(i, terminated(spec));
    if (std::string text = another_codec_of_all(specs); !text.empty()) return text;
    if (std::string text = another_order(); !text.empty()) return text;
    return another_number();
  }

 private:
  /// Whether these bytes in a field's place make the other's signature.
  bool leads(std::size_t field, std::string_view bytes) const {
    return forward(before_[field], bytes) == wanted_[field + 1];
  }

  std::string text_of(const Field& field, const std::string& bytes) const {
    if (field.kind == Kind::kText || field.kind == Kind::kCodec)
      return bytes.substr(0, bytes.size() - 1);
    const std::uint64_t number = number_of(bytes.substr(bytes.empty() ? 0 : field.mark.size()));
    return number < field.words.size() ? field.words[number] : std::to_string(number);
  }

  std::string told(std::size_t index, const std::string& bytes) const {
    const Field& field = fields_[index];
    const std::string of = field.thing == 0 ? "" : " of " + own_.things_[field.thing];
    return field.name + of + " is " + text_of(field, bytes) + " there, " +
           text_of(field, field.bytes) + " on this rank";
  }

  /// Whoever passes another codec passes it for all that have this one.
  std::string another_codec_of_all(std::span<const std::string> specs) const {
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      if (fields_[i].kind != Kind::kCodec || is_repeated(i)) continue;
      for (const std::string& spec : specs)
        if (with_codec(fields_[i].bytes, terminated(spec)) == wanted_.back())
          return told(i, terminated(spec));
    }
    return {};
  }

  bool is_repeated(std::size_t field) const {
    return std::any_of(fields_.begin(), fields_.begin() + static_cast<std::ptrdiff_t>(field),
                       [&](const Field& one) {
                         return one.kind == Kind::kCodec && one.bytes == fields_[field].bytes;
                       });
  }

  std::uint64_t with_codec(const std::string& old, const std::string& spec) const {
    std::uint64_t hash = before_.front();
    for (const Field& field : fields_)
      hash = forward(hash, field.kind == Kind::kCodec && field.bytes == old ? spec : field.bytes);
    return hash;
  }

  std::string another_number() const {
    std::size_t numbers = 0;
    for (std::size_t i = 0; i < fields_.size() && numbers < kMostNumbers; ++i) {
      const Field& field = fields_[i];
      if (field.kind != Kind::kNumber && field.kind != Kind::kUnlessZero) continue;
      ++numbers;
      if (field.kind == Kind::kUnlessZero && leads(i, "")) return told(i, "");
      const std::size_t bytes =
          field.kind == Kind::kNumber ? field.bytes.size() : sizeof(std::uint32_t);
      if (const auto found = number_between(forward(before_[i], field.mark), wanted_[i + 1], bytes))
        return told(i, field.mark + bytes_of(*found, bytes));
    }
    return {};
  }

  /// The fields [first, end) of each thing.
  std::vector<std::pair<std::size_t, std::size_t>> ranges() const {
    std::vector<std::pair<std::size_t, std::size_t>> ranges;
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      if (fields_[i].thing == 0) continue;
      if (i == 0 || fields_[i - 1].thing != fields_[i].thing) ranges.emplace_back(i, i);
      ranges.back().second = i + 1;
    }
    return ranges;
  }

  std::string bytes_between(std::size_t first, std::size_t end) const {
    std::string bytes;
    for (std::size_t i = first; i < end; ++i) bytes += fields_[i].bytes;
    return bytes;
  }

  /// Two things that changed places, or one that is missing.
  std::string another_order() const {
    const auto things = ranges();
    for (std::size_t a = 0; a < things.size(); ++a) {
      const auto [first, end] = things[a];
      if (before_[first] == wanted_[end]) return name(first) + " is missing there";
      for (std::size_t b = a + 1; b < things.size() && (b == a + 1 || b < kMostSwapped); ++b) {
        const auto [later, last] = things[b];
        const std::uint64_t swapped =
            forward(before_[first], bytes_between(later, last) + bytes_between(end, later) +
                                        bytes_between(first, end));
        if (swapped == wanted_[last])
          return name(later) + " comes before " + name(first) + " there, behind it on this rank";
      }
    }
    return {};
  }

  const std::string& name(std::size_t field) const { return own_.things_[fields_[field].thing]; }

  const Fields& own_;
  std::vector<Field> fields_;
  std::vector<std::uint64_t> before_;  // the hash before each field, by its own bytes
  std::vector<std::uint64_t> wanted_;  // and such a one that the rest leads to the other's
};

std::string Fields::difference(std::uint64_t other) const {
  const std::vector<std::string> specs = usual_specs();
  std::vector<Field> fields = fields_;
  if (std::string text = Search(*this, fields, other).run(specs); !text.empty()) return text;
  const auto algorithm = std::ranges::find(fields, "algorithm", &Field::name);
  if (algorithm == fields.end()) return {};
  const std::string own = algorithm->bytes;
  for (std::uint64_t number = 0; number < algorithm->words.size(); ++number) {
    algorithm->bytes = bytes_of(number, own.size());
    if (algorithm->bytes == own) continue;
    if (std::string text = Search(*this, fields, other).run(specs); !text.empty()) return text;
  }
  return {};
}

std::string explained(std::string text, const Fields& own) {
  const auto both = host::signatures_in(text);
  if (!both) return text;
  // Equal parameters of a message change both signatures by the same bits.
  const std::string difference = own.difference(both->first ^ both->second ^ own.signature());
  return difference.empty() ? text : std::move(text) + ": " + difference;
}

}  // namespace tersor
