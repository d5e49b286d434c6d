// Stable radix sort of numbers, several times faster than a comparison sort.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace detlite {

template <typename Key>
struct Keyed {
  Key key;
  int32_t item;
};

// Sorts by increasing key; equal keys keep their order.
template <typename Key>
void radix_sort(std::vector<Keyed<Key>>& items) {
  constexpr int digit_bits = 11, digits = 1 << digit_bits;
  Key differing = 0;
  for (const auto& item : items) differing |= item.key ^ items[0].key;
  std::vector<Keyed<Key>> sorted(items.size());
  std::vector<uint32_t> places(digits);
  for (int shift = 0; shift < int{sizeof(Key)} * 8; shift += digit_bits) {
    const auto digit = [shift](Key key) { return (key >> shift) & (digits - 1); };
    // Skip digits that all keys share, such as the upper digits of small integers.
    if (digit(differing) == 0) continue;
    places.assign(digits, 0);
    for (const auto& item : items) ++places[digit(item.key)];
    uint32_t place = 0;
    for (uint32_t& count : places) {
      const uint32_t next = place + count;
      count = place;
      place = next;
    }
    for (const auto& item : items) sorted[places[digit(item.key)]++] = item;
    items.swap(sorted);
  }
}

// Returns a key that sorts numbers in descending order. The number must not be NaN.
template <typename T>
auto descending_key(T value) {
  using Key = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  constexpr Key sign = Key{1} << (sizeof(Key) * 8 - 1);
  value += T(0);  // -0 becomes 0
  Key bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits & sign ? bits : static_cast<Key>(~(bits | sign));
}

}  // namespace detlite
