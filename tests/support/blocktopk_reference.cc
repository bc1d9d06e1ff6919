// See blocktopk_reference.h.

#include "tests/support/blocktopk_reference.h"

#include "tests/support/reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>

namespace tersor::test {
namespace {

using Bits = std::vector<bool>;
using Indices = std::vector<std::size_t>;

void put(Bits& bits, std::size_t first, std::uint32_t number, unsigned count) {
  for (unsigned i = 0; i < count; ++i) bits[first + i] = (number >> i & 1) != 0;
}

Bits empty_words(std::size_t bits) { return Bits((bits + 31) / 32 * 32); }

void append(std::vector<std::byte>& bytes, const Bits& bits) {
  for (std::size_t i = 0; i < bits.size(); i += 8) {
    unsigned byte = 0;
    for (unsigned bit = 0; bit < 8; ++bit) byte |= bits[i + bit] ? 1u << bit : 0;
    bytes.push_back(static_cast<std::byte>(byte));
  }
}

/// Indices of the k largest magnitudes in ascending order. Ties go to the lowest index; zeros are
/// never selected.
Indices indices_of_largest(const std::vector<float>& p, std::size_t selected) {
  Indices indices(p.size());
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  std::ranges::stable_sort(
      indices, [&](std::size_t a, std::size_t b) { return std::fabs(p[a]) > std::fabs(p[b]); });
  indices.resize(std::min(selected, indices.size()));
  std::erase_if(indices, [&](std::size_t index) { return p[index] == 0; });
  std::ranges::sort(indices);
  return indices;
}

float mean_magnitude(std::vector<float> values) {
  const auto count = static_cast<float>(values.size());
  std::size_t whole = 1;
  while (whole < values.size()) whole *= 2;
  for (float& value : values) value = std::fabs(value);
  values.resize(whole);
  for (std::size_t half = whole / 2; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) values[i] = values[i] + values[i + half];
  return values[0] * (1.0f / count);
}

/// The selected values of one block.
struct Sent {
  Indices indices;
  std::vector<std::uint32_t> codes;
  std::vector<float> values;
  float scale = 0;
};

void send_signs(Sent& sent, const std::vector<float>& selected) {
  const float mean = mean_magnitude(selected);
  sent.scale = mean < 0x1p-100f ? 0.0f : mean;
  for (const float p : selected) {
    sent.codes.push_back(std::signbit(p) ? 1 : 0);
    sent.values.push_back(std::copysign(sent.scale, p));
  }
}

void send_int4(Sent& sent, const std::vector<float>& selected) {
  const Quantized quantized = quantize({.levels = 7, .block = kSelectedValues}, selected, {});
  sent.scale = quantized.scales.front();
  for (const int code : quantized.codes) {
    sent.codes.push_back(static_cast<std::uint32_t>(code) & 15u);
    sent.values.push_back(static_cast<float>(code) * sent.scale);
  }
}

void send_bf16(Sent& sent, const std::vector<float>& selected) {
  for (const float p : selected) {
    sent.codes.push_back(narrow(p, Dtype::kBf16));
    sent.values.push_back(rounded(p, Dtype::kBf16));
  }
}

Sent send(const BlocktopkTask& task, const std::vector<float>& p) {
  Sent sent{.indices = indices_of_largest(p, task.selected()), .codes = {}, .values = {}};
  std::vector<float> selected;
  for (const std::size_t index : sent.indices) selected.push_back(p[index]);
  if (selected.empty()) return sent;
  if (task.value_bits == 1) send_signs(sent, selected);
  if (task.value_bits == 4) send_int4(sent, selected);
  if (task.value_bits == 16) send_bf16(sent, selected);
  return sent;
}

Sent send_poison(const BlocktopkTask& task, std::size_t count) {
  const std::size_t selected = std::min(task.selected(), count);
  Sent sent{.indices = Indices(selected),
            .codes = std::vector<std::uint32_t>(selected, task.value_bits == 16 ? 0x7fff : 0),
            .values = std::vector<float>(selected, std::nanf("")),
            .scale = from_bits(0x7fc00000)};
  std::iota(sent.indices.begin(), sent.indices.end(), std::size_t{0});
  return sent;
}

struct SectionBytes {
  std::vector<std::byte> scales, high, low, values;
};

void write(const BlocktopkTask& task, const Sent& sent, SectionBytes& sections) {
  const std::size_t k = task.selected();
  const unsigned l = task.low_bits();
  Bits scale(task.value_bits == 16 ? 0 : 32), high = empty_words(k + (kSelectedValues >> l));
  Bits low = empty_words(k * l), values = empty_words(k * task.value_bits);
  if (!scale.empty()) put(scale, 0, bits(sent.scale), 32);
  for (std::size_t j = 0; j < sent.indices.size(); ++j) {
    high[(sent.indices[j] >> l) + j] = true;
    put(low, j * l, static_cast<std::uint32_t>(sent.indices[j]), l);
    put(values, j * task.value_bits, sent.codes[j], task.value_bits);
  }
  append(sections.scales, scale);
  append(sections.high, high);
  append(sections.low, low);
  append(sections.values, values);
}

std::size_t padded(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

std::size_t BlocktopkTask::selected() const {
  return static_cast<std::size_t>(std::max(1.0, std::ceil(density * 4096)));
}

unsigned BlocktopkTask::low_bits() const {
  unsigned bits = 0;
  while (selected() << (bits + 1) <= kSelectedValues) ++bits;
  return bits;
}

std::vector<std::size_t> blocktopk_sections(const BlocktopkTask& task, std::size_t count) {
  const std::size_t blocks = (count + kSelectedValues - 1) / kSelectedValues;
  const std::size_t k = task.selected();
  const auto words = [](std::size_t bits) { return (bits + 31) / 32 * 4; };
  std::vector<std::size_t> starts = {0};
  for (const std::size_t bytes :
       {task.value_bits == 16 ? 0 : std::size_t{4}, words(k + (kSelectedValues >> task.low_bits())),
        words(k * task.low_bits()), words(k * task.value_bits)})
    starts.push_back(starts.back() + padded(blocks * bytes));
  return starts;
}

BlocktopkCoded blocktopk_coded(const BlocktopkTask& task, const std::vector<float>& p,
                               const std::vector<float>& old_residual) {
  BlocktopkCoded coded{.payload = {}, .decoded = std::vector<float>(p.size()), .residual = p};
  SectionBytes sections;
  for (std::size_t first = 0; first < p.size(); first += kSelectedValues) {
    const std::size_t end = std::min(first + kSelectedValues, p.size());
    const std::vector<float> block(p.begin() + first, p.begin() + end);
    const bool poisoned =
        std::ranges::any_of(block, [](float v) { return !(std::fabs(v) < 0x1p118f); });
    const Sent sent = poisoned ? send_poison(task, block.size()) : send(task, block);
    for (std::size_t j = 0; j < sent.indices.size(); ++j) {
      const std::size_t index = first + sent.indices[j];
      coded.decoded[index] = 0.0f + sent.values[j];
      if (!poisoned) coded.residual[index] = p[index] - sent.values[j];
    }
    if (poisoned) {
      coded.overflows += static_cast<std::size_t>(
          std::ranges::count_if(block, [](float v) { return std::isfinite(v); }));
      if (!old_residual.empty())
        std::copy(old_residual.begin() + first, old_residual.begin() + end,
                  coded.residual.begin() + first);
    }
    write(task, sent, sections);
  }
  for (std::vector<std::byte>* section :
       {&sections.scales, &sections.high, &sections.low, &sections.values}) {
    coded.payload.insert(coded.payload.end(), section->begin(), section->end());
    coded.payload.resize(padded(coded.payload.size()));
  }
  return coded;
}

}  // namespace tersor::test
