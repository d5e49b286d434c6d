// The traversal of feature maps by RoIAlign and RoIPool on the CPU, for both memory layouts.
//
// The inner loops need channels innermost. A channels-last map is read, and its gradient written,
// in place. For a contiguous map, the rows around some neighbouring RoIs are packed with channels
// innermost, a few channels at a time. Each row is packed once, shortly before the RoIs that end on
// it read it.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "common/roi_geometry.h"
#include "common/roi_pooling.h"
#include "simd/inner_loops.h"

namespace detlite {

// ---- The plan of a call: the geometry of each RoI, computed before any feature is read, and the
// order in which RoIs are processed.

// Axis is the geometry along one axis. Its member `touched` is the range of cells that the RoI
// reads.
template <typename Axis>
struct PlannedRoi {
  int64_t number, image;
  int level;
  Axis rows, columns;

  bool touches_nothing() const { return rows.touched.is_empty() || columns.touched.is_empty(); }
};

template <typename Axis>
struct RoiPlan {
  std::vector<PlannedRoi<Axis>> rois;
  std::vector<int64_t> padding;  // the numbers of the padding RoIs
};

// Sorts RoIs by level, image, band of rows and column, so that consecutive RoIs read nearby cells
// while these are still cached.
template <typename Axis>
uint64_t position_key(const PlannedRoi<Axis>& roi) {
  constexpr int band = 32;
  const auto bits = [](int64_t value, int count) {
    return static_cast<uint64_t>(std::clamp<int64_t>(value, 0, (int64_t{1} << count) - 1));
  };
  return bits(roi.level, 3) << 61 | bits(roi.image, 29) << 32 |
         bits(roi.rows.touched.begin / band, 16) << 16 | bits(roi.columns.touched.begin, 16);
}

// build(const T* roi, const LevelShape&, PlannedRoi<Axis>&) fills the axes. Throws for an image or
// a level that does not exist. The level of a padding RoI is ignored.
template <typename Axis, typename T, typename Build>
RoiPlan<Axis> plan_rois(const char* op, const PoolingCall& call, const Build& build) {
  const PyramidShape& pyramid = call.pyramid;
  const T* rois = data<T>(call.rois);
  const int64_t* levels = data<int64_t>(call.levels);
  RoiPlan<Axis> plan;
  std::vector<PlannedRoi<Axis>> planned;
  planned.reserve(call.roi_count());
  for (int64_t k = 0; k < call.roi_count(); ++k) {
    const int64_t image = image_of(rois + k * kRoiSize, pyramid.batch_size);
    if (image == kPadding) {
      plan.padding.push_back(k);
      continue;
    }
    check(image >= 0, op, ": rois[", k, ", 0] is batch index ", rois[k * kRoiSize],
          ", but the batch has ", pyramid.batch_size, " images");
    check(levels[k] >= 0 && levels[k] < pyramid.level_count(), op, ": levels[", k, "] is ",
          levels[k], ", but there are ", pyramid.level_count(), " maps");
    planned.push_back({k, image, static_cast<int>(levels[k]), {}, {}});
  }

  constexpr int64_t grain = 64;
  std::vector<std::pair<uint64_t, size_t>> order(planned.size());
  torch::stable::parallel_for(0, planned.size(), grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      PlannedRoi<Axis>& roi = planned[i];
      build(rois + roi.number * kRoiSize, pyramid.levels[roi.level], roi);
      order[i] = {position_key(roi), i};
    }
  });
  std::sort(order.begin(), order.end());
  plan.rois.reserve(planned.size());
  for (const auto& entry : order) plan.rois.push_back(std::move(planned[entry.second]));
  return plan;
}

// Requests huge pages for a result that has not been written yet. Writing it then causes one page
// fault per 2 MiB instead of 512, which would take longer than the arithmetic.
inline void prefer_huge_pages(const Tensor& tensor) {
#if defined(__linux__)
  constexpr uintptr_t page = uintptr_t{2} << 20;
  const auto bytes = static_cast<uintptr_t>(tensor.numel()) * tensor.element_size();
  if (bytes < 4 * page) return;
  const auto begin = reinterpret_cast<uintptr_t>(tensor.mutable_data_ptr());
  const uintptr_t first = (begin + page - 1) / page * page;
  const uintptr_t last = (begin + bytes) / page * page;
  madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // may fail harmlessly
#else
  (void)tensor;
#endif
}

// ---- Forward

// The number of channels that are packed, or whose gradient is summed, together.
constexpr int64_t kBlockChannels = 32;
// The limit on what a thread packs for a group of RoIs. Only its latest rows need to be cached.
constexpr int64_t kMaxPackedBytes = int64_t{16} << 20;
// The part of a gradient that a task sums: half of a typical L2 cache.
constexpr int64_t kBlockBytes = int64_t{1} << 20;

// Consecutive bins of `channels` channels each.
template <typename T>
Window<T> bins_window(T* data, const PoolShape& pool, int64_t channels) {
  return {data, pool.width * channels, channels};
}

inline CellRange hull(CellRange a, CellRange b) {
  if (a.is_empty()) return b;
  if (b.is_empty()) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

inline int64_t cells_in(CellRange rows, CellRange columns) {
  return int64_t{rows.end - rows.begin} * (columns.end - columns.begin);
}

// RoIs [first, last) of the plan, all on one map, and the bounding rectangle of the cells they
// read.
struct RoiGroup {
  size_t first, last;
  CellRange rows, columns;
};

// Splits the RoIs [first, last) of one map in halves until packing their common rectangle costs at
// most what packing each RoI separately would, and is small enough for one task.
template <typename Axis>
void split_rois(const std::vector<PlannedRoi<Axis>>& rois, size_t first, size_t last,
                int64_t max_cells, size_t max_rois, std::vector<RoiGroup>& groups) {
  RoiGroup group{first, last, {0, 0}, {0, 0}};
  int64_t cells_read = 0;
  for (size_t i = first; i < last; ++i) {
    if (rois[i].touches_nothing()) continue;
    group.rows = hull(group.rows, rois[i].rows.touched);
    group.columns = hull(group.columns, rois[i].columns.touched);
    cells_read += cells_in(rois[i].rows.touched, rois[i].columns.touched);
  }
  const int64_t cells = cells_in(group.rows, group.columns);
  if (last - first == 1 ||
      (cells <= cells_read && cells <= max_cells && last - first <= max_rois)) {
    groups.push_back(group);
    return;
  }
  const size_t middle = first + (last - first) / 2;
  split_rois(rois, first, middle, max_cells, max_rois, groups);
  split_rois(rois, middle, last, max_cells, max_rois, groups);
}

template <typename Axis>
std::vector<RoiGroup> group_rois(const std::vector<PlannedRoi<Axis>>& rois, int64_t max_cells,
                                 size_t max_rois) {
  std::vector<RoiGroup> groups;
  for (size_t first = 0, i = 1; i <= rois.size(); ++i) {
    if (i < rois.size() && rois[i].level == rois[first].level &&
        rois[i].image == rois[first].image) {
      continue;
    }
    split_rois(rois, first, i, max_cells, max_rois, groups);
    first = i;
  }
  return groups;
}

// Returns a map whose rows (or channels, if channels-last) are dense. Most strided inputs already
// are.
inline Tensor dense_rows(const Tensor& map, bool channels_last) {
  return map.stride(channels_last ? 1 : 3) == 1 ? map : dense_4d(map, channels_last);
}

// Calls kernel(roi, source, values, argmax, channels) for every RoI and writes the results to
// `values` and, unless null, `argmax`. Windows have type F on a channels-last map and the
// accumulation type on a packed one. Padding RoIs get zeros and an argmax of -1.
template <typename F, typename Axis, typename Kernel>
void pool_rois(const std::vector<Tensor>& inputs, const PoolingCall& call,
               const RoiPlan<Axis>& plan, F* values, int32_t* argmax, const Kernel& kernel) {
  using T = accumulate_t<F>;
  const PoolShape& pool = call.pool;
  const int64_t channels = call.pyramid.channels, bins = pool.bins(), size = call.pooled_size();
  std::vector<Tensor> readable;
  for (const Tensor& input : inputs) readable.push_back(dense_rows(input, call.channels_last));
  const std::vector<View4d<const F>> maps = views<const F>(readable);
  const std::vector<PlannedRoi<Axis>>& rois = plan.rois;
  torch::stable::parallel_for(0, plan.padding.size(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = plan.padding[i] * size;
      std::fill_n(values + at, size, static_cast<F>(0));
      if (argmax) std::fill_n(argmax + at, size, -1);
    }
  });
  if (call.channels_last) {
    torch::stable::parallel_for(0, rois.size(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const PlannedRoi<Axis>& roi = rois[i];
        const View4d<const F>& map = maps[roi.level];
        const int64_t at = roi.number * size;
        kernel(roi, Window<const F>{map.at(roi.image, 0, 0, 0), map.stride_h, map.stride_w},
               bins_window(values + at, pool, channels),
               bins_window(argmax ? argmax + at : nullptr, pool, channels), channels);
      }
    });
    return;
  }

  const InnerLoops& all_loops = inner_loops();
  const FeatureLoops<F>& feature_loops = all_loops.for_type<F>();
  const int64_t blocks = (channels + kBlockChannels - 1) / kBlockChannels;
  // Groups are small enough for all threads to have work.
  const size_t min_tasks = 4 * torch::stable::get_num_threads();
  const std::vector<RoiGroup> groups =
      group_rois(rois, kMaxPackedBytes / (kBlockChannels * static_cast<int64_t>(sizeof(T))),
                 rois.size() * blocks / min_tasks + 1);
  const int64_t group_count = static_cast<int64_t>(groups.size());
  torch::stable::parallel_for(0, blocks * group_count, 1, [&](int64_t begin, int64_t end) {
    std::unique_ptr<T[]> packed;
    size_t packed_size = 0;
    std::vector<T> pooled(bins * kBlockChannels);
    std::vector<int32_t> pooled_argmax(argmax ? bins * kBlockChannels : 0);
    for (int64_t task = begin; task < end; ++task) {
      const RoiGroup& group = groups[task % group_count];
      const int64_t first_channel = task / group_count * kBlockChannels;
      const int64_t count = std::min(kBlockChannels, channels - first_channel);
      const int64_t image = rois[group.first].image;
      const View4d<const F>& map = maps[rois[group.first].level];
      const int64_t width = group.columns.end - group.columns.begin;
      const auto needed = static_cast<size_t>(cells_in(group.rows, group.columns) * count);
      if (packed_size < needed) {
        packed.reset(new T[needed]);  // uninitialized, unlike a vector
        packed_size = needed;
      }
      const Window<const T> source{packed.get(), width * count, count, group.rows.begin,
                                   group.columns.begin};
      int row = group.rows.begin;
      for (size_t i = group.first; i < group.last; ++i) {
        for (; row < std::min(rois[i].rows.touched.end, group.rows.end); ++row) {
          feature_loops.gather(map.at(image, first_channel, row, group.columns.begin), map.stride_c,
                               count, width, &packed[(row - group.rows.begin) * width * count],
                               count);
        }
        kernel(rois[i], source, bins_window(pooled.data(), pool, count),
               bins_window(pooled_argmax.data(), pool, count), count);
        const int64_t at = rois[i].number * size + first_channel * bins;
        feature_loops.scatter(pooled.data(), count, bins, count, values + at, bins);
        if (argmax) {
          all_loops.transpose_int32(pooled_argmax.data(), count, bins, count, argmax + at, bins);
        }
      }
    }
  });
}

// ---- Backward

// Some rows of the gradient of a map, and the RoIs [first, last) of the plan on that map.
struct GradientBand {
  int level;
  int64_t image;
  CellRange rows;
  size_t first, last;
};

template <typename Axis>
std::vector<GradientBand> gradient_bands(const PyramidShape& pyramid,
                                         const std::vector<PlannedRoi<Axis>>& rois,
                                         int64_t bytes_per_cell) {
  std::vector<GradientBand> bands;
  size_t first = 0;
  for (int level = 0; level < pyramid.level_count(); ++level) {
    const LevelShape& shape = pyramid.levels[level];
    const int64_t row_bytes = std::max<int64_t>(1, shape.width * bytes_per_cell);
    const int height = static_cast<int>(std::max<int64_t>(1, kBlockBytes / row_bytes));
    for (int64_t image = 0; image < pyramid.batch_size; ++image) {
      size_t last = first;
      while (last < rois.size() && rois[last].level == level && rois[last].image == image) ++last;
      for (int row = 0, end = 0; row < shape.height; row = end) {
        end = row + std::min(height, shape.height - row);
        bands.push_back({level, image, {row, end}, first, last});
      }
      first = last;
    }
  }
  return bands;
}

// Writes the gradients of the maps. Each task owns some rows of some channels. It calls add(roi,
// tile, rows, first_channel, count) for every RoI that touches them, in the order of the plan, and
// writes the sums once. Results therefore do not depend on the number of threads.
template <typename F, typename Axis, typename Add>
void sum_gradients(const PoolingCall& call, const std::vector<PlannedRoi<Axis>>& rois,
                   const std::vector<View4d<F>>& maps, const Add& add) {
  using T = accumulate_t<F>;
  // More channels than for packing: a channels-last map is written in runs of this length.
  constexpr int64_t max_channels = 2 * kBlockChannels;
  const PyramidShape& pyramid = call.pyramid;
  const int64_t channels = pyramid.channels;
  const FeatureLoops<F>& feature_loops = inner_loops().for_type<F>();
  const std::vector<GradientBand> bands = gradient_bands(
      pyramid, rois, std::min(max_channels, channels) * static_cast<int64_t>(sizeof(T)));
  const int64_t blocks = (channels + max_channels - 1) / max_channels;
  const int64_t tasks = static_cast<int64_t>(bands.size()) * blocks;
  torch::stable::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> sums;
    for (int64_t task = begin; task < end; ++task) {
      const GradientBand& band = bands[task / blocks];
      const int64_t first_channel = task % blocks * max_channels;
      const int64_t count = std::min(max_channels, channels - first_channel);
      const int width = pyramid.levels[band.level].width;
      sums.assign((band.rows.end - band.rows.begin) * width * count, T(0));
      const Window<T> tile{sums.data(), width * count, count, band.rows.begin, 0};
      for (size_t i = band.first; i < band.last; ++i) {
        const CellRange touched = rois[i].rows.touched;
        if (touched.begin < band.rows.end && touched.end > band.rows.begin) {
          add(rois[i], tile, band.rows, first_channel, count);
        }
      }
      const View4d<F>& map = maps[band.level];
      for (int row = band.rows.begin; row < band.rows.end; ++row) {
        if (call.channels_last) {
          for (int column = 0; column < width; ++column) {
            feature_loops.downcast(tile.at(row, column), count,
                                   map.at(band.image, first_channel, row, column));
          }
        } else {
          feature_loops.scatter(tile.at(row, 0), count, width, count,
                                map.at(band.image, first_channel, row, 0), map.stride_c);
        }
      }
    }
  });
}

}  // namespace detlite
