// A RoI's bilinear weights as sparse sums, built once and used for every channel.
#pragma once

#include <vector>

#include "roi_align_geometry.h"
#include "rois.h"

namespace detlite {

// One axis: each bin a few taps. A tap names its cell by its place in `cells`, the distinct cells
// that the axis touches. The objects are reused from RoI to RoI, so that a thread allocates once.
template <typename T>
struct AxisWeights {
  struct Tap {
    int slot;
    T weight;
  };

  std::vector<Tap> taps;
  std::vector<size_t> bin_ends;
  std::vector<int> cells;

  void build(const AlignAxis<T>& axis, int bins, int size) {
    taps.clear();
    cells.clear();
    bin_ends.assign(1, 0);
    for (int bin = 0; bin < bins; ++bin) {
      const SampleRange range = samples_near_map(axis, bin, size);
      for (int s = range.begin; s < range.end; ++s) {
        LinearSample<T> sample;
        if (!linear_sample(axis.position(bin, s), size, sample)) continue;
        add(sample.low, sample.low_weight / axis.samples);
        if (sample.high_weight != 0) add(sample.high, sample.high_weight / axis.samples);
      }
      bin_ends.push_back(taps.size());
    }
  }

 private:
  // Samples lie in order along the axis, so a cell seen before is one of the last two.
  void add(int cell, T weight) {
    size_t slot = cells.size();
    for (size_t i = cells.size(); i > 0 && i + 2 > cells.size(); --i) {
      if (cells[i - 1] == cell) slot = i - 1;
    }
    if (slot == cells.size()) cells.push_back(cell);
    for (size_t i = taps.size(); i > bin_ends.back() && i + 2 > taps.size(); --i) {
      if (taps[i - 1].slot == static_cast<int>(slot)) {
        taps[i - 1].weight += weight;
        return;
      }
    }
    taps.push_back({static_cast<int>(slot), weight});
  }
};

// Both axes together: each bin a weighted sum over cells of the map.
template <typename T>
struct BinWeights {
  struct Cell {
    int64_t offset;  // of its first channel
    T weight;
  };

  AxisWeights<T> rows, columns;
  std::vector<Cell> cells;
  std::vector<size_t> bin_ends;

  void build_axes(const T* roi, const AlignArguments& align, int height, int width) {
    const PoolShape& pool = align.pool;
    const T scale = static_cast<T>(pool.spatial_scale);
    rows.build(align_axis(roi[2], roi[4], scale, pool.height, align.sampling_ratio, align.aligned),
               pool.height, height);
    columns.build(align_axis(roi[1], roi[3], scale, pool.width, align.sampling_ratio,
                             align.aligned),
                  pool.width, width);
  }

  // Offsets in a map of these strides.
  void locate(int64_t stride_h, int64_t stride_w) {
    build_cells([&](int row, int column) {
      return rows.cells[row] * stride_h + columns.cells[column] * stride_w;
    });
  }

  // Offsets in a packed copy of the touched rows and columns, `channels` to a cell.
  void locate_packed(int64_t channels) {
    const int64_t width = static_cast<int64_t>(columns.cells.size());
    build_cells([&](int row, int column) { return (row * width + column) * channels; });
  }

 private:
  template <typename Offset>
  void build_cells(const Offset& offset) {
    cells.clear();
    bin_ends.assign(1, 0);
    for (size_t ph = 0; ph + 1 < rows.bin_ends.size(); ++ph) {
      for (size_t pw = 0; pw + 1 < columns.bin_ends.size(); ++pw) {
        for (size_t r = rows.bin_ends[ph]; r < rows.bin_ends[ph + 1]; ++r) {
          for (size_t c = columns.bin_ends[pw]; c < columns.bin_ends[pw + 1]; ++c) {
            cells.push_back({offset(rows.taps[r].slot, columns.taps[c].slot),
                             rows.taps[r].weight * columns.taps[c].weight});
          }
        }
        bin_ends.push_back(cells.size());
      }
    }
  }
};

}  // namespace detlite
