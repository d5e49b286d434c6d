// RoIAlign's plan of one RoI in a block's shared memory: for each bin along one axis the cells that it
// averages, each once, and their weights. Threads then only load, multiply and add; and samples that
// share a cell, as most do where bins are sampled densely, cost one load together.
#pragma once

#include "launch.h"
#include "roi_align_geometry.h"
#include "roi_device.h"

namespace detlite {

template <typename T>
struct PlannedCell {
  int offset;  // the cell times its stride in memory
  T weight;
};
struct PlannedBin {
  int first, count;  // of the axis's cells
};

// How much memory the plan of one axis takes.
//
// A fixed number of samples gives each bin as many places. An adaptive one leaves no cell out, so
// that bins follow one another along the map: the cells of two neighbours overlap by two, or three
// where positions are rounded, and a bin's cells begin at the place of its first one plus
// kBinOverlap for each bin before.
constexpr int kBinOverlap = 4;

struct AxisPlanShape {
  int bins, places;  // `places` of a bin, 0 where they follow one another
  int64_t cells;

  __host__ AxisPlanShape(int bins, int sampling_ratio, int64_t longest)
      : bins(bins),
        places(static_cast<int>(std::min(2 * int64_t{sampling_ratio}, longest))),
        cells(places ? int64_t{bins} * places : longest + int64_t{bins} * kBinOverlap) {}
};

struct AlignPlanShape {
  AxisPlanShape rows, columns;

  template <typename T>
  int64_t bytes() const {
    return (int64_t{rows.bins} + columns.bins) * sizeof(PlannedBin) +
           (rows.cells + columns.cells) * sizeof(PlannedCell<T>);
  }
};

// For any of the levels: the host does not know which a RoI takes.
inline AlignPlanShape align_plan_shape(const PyramidShape& pyramid, const AlignArguments& align) {
  int64_t height = 0, width = 0;
  for (const LevelShape& level : pyramid.levels) {
    height = std::max<int64_t>(height, level.height);
    width = std::max<int64_t>(width, level.width);
  }
  return {AxisPlanShape(align.pool.height, align.sampling_ratio, height),
          AxisPlanShape(align.pool.width, align.sampling_ratio, width)};
}

// The rows or the columns of a RoI.
template <typename T, typename F>
__device__ AlignAxis<T> axis_of(const T* roi, const AlignArguments& align,
                                const DeviceLevel<F>& level, bool rows) {
  return align_axis(roi[rows ? 2 : 1], roi[rows ? 4 : 3], static_cast<T>(level.spatial_scale),
                    rows ? align.pool.height : align.pool.width, align.sampling_ratio,
                    align.aligned);
}

// Calls body(cell, weight) for each cell that a bin averages along one axis, once each, rising.
template <typename T, typename Body>
__device__ void for_each_cell(const AlignAxis<T>& axis, int bin, int size, const Body& body) {
  const bool rising = axis.bin_size >= 0;
  const SampleRange range = samples_near_map(axis, bin, size);
  // What samples have added up so far to one cell, and to the next where that is on the map.
  int cell = -1;
  T weight = 0, next_weight = 0;
  bool has_next = false;
  for (int i = range.begin; i <= range.end; ++i) {
    const int number = rising ? i : range.begin + range.end - 1 - i;
    LinearSample<T> sample{kMostInt, kMostInt, 0, 0};  // after the last one: beyond all cells
    if (i < range.end && !linear_sample(axis.position(bin, number), size, sample)) continue;
    while (cell >= 0 && cell < sample.low) {
      body(cell, weight);
      cell = has_next ? cell + 1 : -1;
      weight = next_weight;
      has_next = false;
    }
    weight = (cell == sample.low ? weight : T(0)) + sample.low_weight / axis.samples;
    next_weight = (has_next ? next_weight : T(0)) + sample.high_weight / axis.samples;
    cell = sample.low;
    has_next = sample.high != sample.low;
  }
}

// Fills the cells of one bin of `bins`; `cells` are those of the whole axis.
template <typename T>
__device__ PlannedBin plan_bin(const AlignAxis<T>& axis, int places, int bins, int bin, int size,
                               int stride, PlannedCell<T>* cells) {
  PlannedBin planned{bin * places, 0};
  for_each_cell(axis, bin, size, [&](int cell, T weight) {
    if (planned.count == 0 && places == 0) {
      planned.first = cell + kBinOverlap * (axis.bin_size >= 0 ? bin : bins - 1 - bin);
    }
    cells[planned.first + planned.count++] = {cell * stride, weight};
  });
  return planned;
}

// The plan of both axes of one RoI.
template <typename T>
struct AlignPlan {
  PlannedBin* bins;  // of the rows, then of the columns
  PlannedCell<T>* rows;
  PlannedCell<T>* columns;

  __device__ AlignPlan(unsigned char* memory, const AlignPlanShape& shape)
      : bins(reinterpret_cast<PlannedBin*>(memory)),
        rows(reinterpret_cast<PlannedCell<T>*>(bins + shape.rows.bins + shape.columns.bins)),
        columns(rows + shape.rows.cells) {}

  // A thread plans a bin; all of the block must come here.
  template <typename F>
  __device__ void fill(const T* roi, const AlignArguments& align, const DeviceLevel<F>& level,
                       const AlignPlanShape& shape) {
    const int count = align.pool.height + align.pool.width;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      const bool row = i < align.pool.height;
      bins[i] = plan_bin(axis_of(roi, align, level, row),
                         row ? shape.rows.places : shape.columns.places,
                         row ? align.pool.height : align.pool.width,
                         row ? i : i - align.pool.height, row ? level.height : level.width,
                         row ? 1 : static_cast<int>(level.map.stride_w), row ? rows : columns);
    }
    __syncthreads();
  }
};

}  // namespace detlite
