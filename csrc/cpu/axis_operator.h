// RoIAlign along one axis as a sparse matrix from cells to bins, and its transpose.
#pragma once

#include <algorithm>
#include <vector>

#include "loops.h"
#include "roi_align_geometry.h"

namespace detlite {

template <typename T>
struct AxisOperator {
  std::vector<Tap<T>> taps;
  std::vector<Line> lines;  // ordered by `to`
  CellRange touched{0, 0};  // the cells that any tap names lie in here

  AxisView<T> view() const { return {lines.data(), static_cast<int>(lines.size()), taps.data()}; }

  // Only the lines with `to` in the range.
  AxisView<T> view(CellRange to) const {
    const auto before = [](const Line& line, int place) { return line.to < place; };
    const auto begin = std::lower_bound(lines.begin(), lines.end(), to.begin, before);
    const auto end = std::lower_bound(begin, lines.end(), to.end, before);
    return {lines.data() + (begin - lines.begin()), static_cast<int>(end - begin), taps.data()};
  }
};

// Sums over the cells of each bin.
template <typename T>
AxisOperator<T> bins_from_cells(const AlignAxis<T>& axis, int bins, int size) {
  AxisOperator<T> result;
  auto& taps = result.taps;
  result.lines.reserve(bins);
  taps.reserve(4 * static_cast<size_t>(bins));
  int lowest = size, highest = -1;
  for (int bin = 0; bin < bins; ++bin) {
    const size_t begin = taps.size();
    // Samples lie in order along the axis, so a cell seen before is one of the last two.
    const auto add = [&](int cell, T weight) {
      for (size_t i = taps.size(); i > begin && i + 2 > taps.size(); --i) {
        if (taps[i - 1].from == cell) {
          taps[i - 1].weight += weight;
          return;
        }
      }
      taps.push_back({cell, weight});
      lowest = std::min(lowest, cell);
      highest = std::max(highest, cell);
    };
    const SampleRange range = samples_near_map(axis, bin, size);
    for (int s = range.begin; s < range.end; ++s) {
      LinearSample<T> sample;
      if (!linear_sample(axis.position(bin, s), size, sample)) continue;
      add(sample.low, sample.low_weight / axis.samples);
      if (sample.high_weight != 0) add(sample.high, sample.high_weight / axis.samples);
    }
    result.lines.push_back({bin, static_cast<int>(begin), static_cast<int>(taps.size())});
  }
  if (highest >= 0) result.touched = {lowest, highest + 1};
  return result;
}

// Sums over the bins that a cell contributed to: the gradient's way.
template <typename T>
AxisOperator<T> cells_from_bins(const AxisOperator<T>& forward) {
  AxisOperator<T> result;
  result.touched = forward.touched;
  const int first = forward.touched.begin, cells = forward.touched.end - first;
  std::vector<int> place(static_cast<size_t>(cells) + 1, 0);
  for (const Tap<T>& tap : forward.taps) ++place[tap.from - first + 1];
  for (int cell = 0; cell < cells; ++cell) {
    if (place[cell + 1] > 0) {
      result.lines.push_back({first + cell, place[cell], place[cell] + place[cell + 1]});
    }
    place[cell + 1] += place[cell];
  }
  result.taps.resize(forward.taps.size());
  for (const Line& line : forward.lines) {
    for (int i = line.begin; i < line.end; ++i) {
      const Tap<T>& tap = forward.taps[i];
      result.taps[place[tap.from - first]++] = {line.to, tap.weight};
    }
  }
  return result;
}

}  // namespace detlite
