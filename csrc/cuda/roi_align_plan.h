// The plan of a RoI for RoIAlign in the shared memory of a block: the cells and weights of each bin
// along each axis. Threads then only load, multiply and add. Samples that share a cell, as most do
// with dense sampling, cost one load together.
#pragma once

#include "launch.h"
#include "common/roi_geometry.h"
#include "roi_common.h"

namespace detlite {

template <typename T>
struct PlannedCell {
  int offset;  // the cell times its stride
  T weight;
};
struct PlannedBin {
  int first, count;  // in the cells of the axis
};

// The memory layout of the plan of one axis.
//
// With a fixed number of samples, each bin has the same number of places. Adaptive sampling uses
// every cell, so bins are consecutive along the map: neighbouring bins share two cells, or three
// because of rounding. The cells of a bin then begin at its first cell plus kBinOverlap times the
// number of bins before it.
constexpr int kBinOverlap = 4;

struct AxisPlanShape {
  int bins, places;  // places per bin, or 0 for consecutive bins
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

// Large enough for every level, because the host does not know the level of a RoI.
inline AlignPlanShape align_plan_shape(const PyramidShape& pyramid, const AlignArguments& align) {
  int64_t height = 0, width = 0;
  for (const LevelShape& level : pyramid.levels) {
    height = std::max<int64_t>(height, level.height);
    width = std::max<int64_t>(width, level.width);
  }
  return {AxisPlanShape(align.pool.height, align.sampling_ratio, height),
          AxisPlanShape(align.pool.width, align.sampling_ratio, width)};
}

// The geometry of the rows or the columns of a RoI.
template <typename T, typename F>
__device__ AlignAxis<T> axis_of(const T* roi, const AlignArguments& align,
                                const DeviceLevel<F>& level, bool rows) {
  return align_axis(roi[rows ? 2 : 1], roi[rows ? 4 : 3], static_cast<T>(level.spatial_scale),
                    rows ? align.pool.height : align.pool.width, align.sampling_ratio,
                    align.aligned);
}

// Calls function(cell, weight) once for each cell of a bin along one axis, in increasing order.
template <typename T, typename Function>
__device__ void for_each_cell(const AlignAxis<T>& axis, int bin, int size,
                              const Function& function) {
  const bool increasing = axis.bin_size >= 0;
  const SampleRange range = samples_near_map(axis, bin, size);
  // The weights accumulated so far for the current cell and the next one, if that is on the map.
  int cell = -1;
  T weight = 0, next_weight = 0;
  bool has_next = false;
  for (int i = range.begin; i <= range.end; ++i) {
    const int number = increasing ? i : range.begin + range.end - 1 - i;
    LinearSample<T> sample{kMaxInt, kMaxInt, 0, 0};  // after the last one: flush all cells
    if (i < range.end && !linear_sample(axis.position(bin, number), size, sample)) continue;
    while (cell >= 0 && cell < sample.low) {
      function(cell, weight);
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

// Writes the cells of one bin into the cells of the axis.
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
  PlannedBin* bins;  // rows, then columns
  PlannedCell<T>* rows;
  PlannedCell<T>* columns;

  __device__ AlignPlan(unsigned char* memory, const AlignPlanShape& shape)
      : bins(reinterpret_cast<PlannedBin*>(memory)),
        rows(reinterpret_cast<PlannedCell<T>*>(bins + shape.rows.bins + shape.columns.bins)),
        columns(rows + shape.rows.cells) {}

  // Each thread plans one bin. All threads of the block must call this.
  template <typename F>
  __device__ void fill(const T* roi, const AlignArguments& align, const DeviceLevel<F>& level,
                       const AlignPlanShape& shape) {
    const int count = align.pool.height + align.pool.width;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      const bool row = i < align.pool.height;
      bins[i] =
          plan_bin(axis_of(roi, align, level, row), row ? shape.rows.places : shape.columns.places,
                   row ? align.pool.height : align.pool.width, row ? i : i - align.pool.height,
                   row ? level.height : level.width, row ? 1 : static_cast<int>(level.map.stride_w),
                   row ? rows : columns);
    }
    __syncthreads();
  }
};

}  // namespace detlite
