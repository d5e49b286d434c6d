// RoIAlign along one axis as a sparse matrix from cells to bins, and its transpose.
#pragma once

#include <algorithm>
#include <vector>

#include "common/roi_geometry.h"
#include "simd/inner_loops.h"

namespace detlite {

template <typename T>
struct AxisResampler {
  std::vector<WeightedCell<T>> cells;
  std::vector<SparseRow> rows;  // ordered by target
  CellRange touched{0, 0};      // the range of feature-map cells with a weight

  SparseView<T> view() const { return {rows.data(), static_cast<int>(rows.size()), cells.data()}; }

  // Only the rows whose target is in the range.
  SparseView<T> view(CellRange targets) const {
    const auto before = [](const SparseRow& row, int target) { return row.target < target; };
    const auto begin = std::lower_bound(rows.begin(), rows.end(), targets.begin, before);
    const auto end = std::lower_bound(begin, rows.end(), targets.end, before);
    return {rows.data() + (begin - rows.begin()), static_cast<int>(end - begin), cells.data()};
  }
};

// The forward matrix: each bin is a weighted sum of cells.
template <typename T>
AxisResampler<T> bins_from_cells(const AlignAxis<T>& axis, int bins, int size) {
  AxisResampler<T> result;
  auto& cells = result.cells;
  result.rows.reserve(bins);
  cells.reserve(4 * static_cast<size_t>(bins));
  int lowest = size, highest = -1;
  for (int bin = 0; bin < bins; ++bin) {
    const size_t begin = cells.size();
    // Samples are ordered along the axis, so a cell that is already in the row is one of its last
    // two.
    const auto add = [&](int cell, T weight) {
      for (size_t i = cells.size(); i > begin && i + 2 > cells.size(); --i) {
        if (cells[i - 1].source == cell) {
          cells[i - 1].weight += weight;
          return;
        }
      }
      cells.push_back({cell, weight});
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
    result.rows.push_back({bin, static_cast<int>(begin), static_cast<int>(cells.size())});
  }
  if (highest >= 0) result.touched = {lowest, highest + 1};
  return result;
}

// The transpose, for gradients: each cell is a weighted sum of bins.
template <typename T>
AxisResampler<T> cells_from_bins(const AxisResampler<T>& forward) {
  AxisResampler<T> result;
  result.touched = forward.touched;
  const int first = forward.touched.begin, count = forward.touched.end - first;
  std::vector<int> place(static_cast<size_t>(count) + 1, 0);
  for (const WeightedCell<T>& cell : forward.cells) ++place[cell.source - first + 1];
  for (int cell = 0; cell < count; ++cell) {
    if (place[cell + 1] > 0) {
      result.rows.push_back({first + cell, place[cell], place[cell] + place[cell + 1]});
    }
    place[cell + 1] += place[cell];
  }
  result.cells.resize(forward.cells.size());
  for (const SparseRow& row : forward.rows) {
    for (int i = row.begin; i < row.end; ++i) {
      const WeightedCell<T>& cell = forward.cells[i];
      result.cells[place[cell.source - first]++] = {row.target, cell.weight};
    }
  }
  return result;
}

}  // namespace detlite
