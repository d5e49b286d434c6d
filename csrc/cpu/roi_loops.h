// How RoIAlign and RoIPool on the CPU walk over maps of either layout.
//
// The inner loops want channels innermost. A channels-last map is read, and its gradient written,
// where it lies; of a contiguous one, the rows around some neighbouring RoIs are packed for a few
// channels at a time, each row once and shortly before the RoIs that end on it read it.
#pragma once

#include <memory>
#include <vector>

#include "loops.h"
#include "roi_plan.h"

namespace detlite {

// Channels that are packed, or whose gradient is summed, together.
constexpr int64_t kBlockChannels = 32;
// What a thread packs for several RoIs at most. Of that it is the last rows that must be near.
constexpr int64_t kMostPackedBytes = int64_t{16} << 20;
// A part of a gradient that stays near: half of a usual second-level cache.
constexpr int64_t kBlockBytes = int64_t{1} << 20;

// The pooled features of a call: [K, C, height, width].
struct PooledShape {
  PoolShape pool;
  int64_t channels;
  bool channels_last;

  int64_t size() const { return channels * pool.bins(); }
};

// Bins with `channels` channels to each, one after another.
template <typename T>
Window<T> bins_window(T* data, const PoolShape& pool, int64_t channels) {
  return {data, pool.width * channels, channels};
}

inline CellRange hull(CellRange a, CellRange b) {
  if (a.begin >= a.end) return b;
  if (b.begin >= b.end) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

inline int64_t cells_in(CellRange rows, CellRange columns) {
  return int64_t{rows.end - rows.begin} * (columns.end - columns.begin);
}

// RoIs [first, last) of the plan, all on one map, and the smallest rectangle of its cells that
// holds what they read.
struct RoiGroup {
  size_t first, last;
  CellRange rows, columns;
};

// Halves the RoIs [first, last) of one map until packing their rectangle is no more work than
// packing each by itself, and not too much for one task.
template <typename Axis>
void split_rois(const std::vector<PlannedRoi<Axis>>& rois, size_t first, size_t last,
                int64_t most_cells, size_t most_rois, std::vector<RoiGroup>& groups) {
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
      (cells <= cells_read && cells <= most_cells && last - first <= most_rois)) {
    groups.push_back(group);
    return;
  }
  const size_t middle = first + (last - first) / 2;
  split_rois(rois, first, middle, most_cells, most_rois, groups);
  split_rois(rois, middle, last, most_cells, most_rois, groups);
}

template <typename Axis>
std::vector<RoiGroup> group_rois(const std::vector<PlannedRoi<Axis>>& rois, int64_t most_cells,
                                 size_t most_rois) {
  std::vector<RoiGroup> groups;
  for (size_t first = 0, i = 1; i <= rois.size(); ++i) {
    if (i < rois.size() && rois[i].level == rois[first].level && rois[i].image == rois[first].image) {
      continue;
    }
    split_rois(rois, first, i, most_cells, most_rois, groups);
    first = i;
  }
  return groups;
}

// Calls kernel(roi, source, values, places, channels) for every RoI, with windows of F where the
// map is channels-last and of the accumulating type where it is packed, and leaves the results in
// `values` and, unless null, `places`. Padding gets zeros, and places of -1.
template <typename F, typename Axis, typename Kernel>
void pool_rois(const std::vector<View4d<const F>>& maps, const RoiPlan<Axis>& plan,
               const PooledShape& shape, F* values, int32_t* places, const Kernel& kernel) {
  using T = accumulate_t<F>;
  const int64_t channels = shape.channels, bins = shape.pool.bins();
  const std::vector<PlannedRoi<Axis>>& rois = plan.rois;
  torch::stable::parallel_for(0, plan.padding.size(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = plan.padding[i] * shape.size();
      std::fill_n(values + at, shape.size(), static_cast<F>(0));
      if (places) std::fill_n(places + at, shape.size(), -1);
    }
  });
  if (shape.channels_last) {
    torch::stable::parallel_for(0, rois.size(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const PlannedRoi<Axis>& roi = rois[i];
        const View4d<const F>& map = maps[roi.level];
        const int64_t at = roi.number * shape.size();
        kernel(roi, Window<const F>{map.at(roi.image, 0, 0, 0), map.stride_h, map.stride_w},
               bins_window(values + at, shape.pool, channels),
               bins_window(places ? places + at : nullptr, shape.pool, channels), channels);
      }
    });
    return;
  }

  const Loops& all_loops = loops();
  const FeatureLoops<F>& loops_of = all_loops.of<F>();
  const int64_t blocks = (channels + kBlockChannels - 1) / kBlockChannels;
  // Few enough RoIs to a group that all threads have work.
  const size_t tasks_wanted = 4 * torch::stable::get_num_threads();
  const std::vector<RoiGroup> groups =
      group_rois(rois, kMostPackedBytes / (kBlockChannels * static_cast<int64_t>(sizeof(T))),
                 rois.size() * blocks / tasks_wanted + 1);
  const int64_t group_count = static_cast<int64_t>(groups.size());
  torch::stable::parallel_for(0, blocks * group_count, 1, [&](int64_t begin, int64_t end) {
    std::unique_ptr<T[]> packed;
    size_t packed_size = 0;
    std::vector<T> pooled(bins * kBlockChannels);
    std::vector<int32_t> pooled_places(places ? bins * kBlockChannels : 0);
    for (int64_t task = begin; task < end; ++task) {
      const RoiGroup& group = groups[task % group_count];
      const int64_t first_channel = task / group_count * kBlockChannels;
      const int64_t count = std::min(kBlockChannels, channels - first_channel);
      const PlannedRoi<Axis>& any = rois[group.first];
      const View4d<const F>& map = maps[any.level];
      const int64_t width = group.columns.end - group.columns.begin;
      const auto needed = static_cast<size_t>(cells_in(group.rows, group.columns) * count);
      if (packed_size < needed) {
        packed.reset(new T[needed]);  // without zeros, which a vector would write
        packed_size = needed;
      }
      const Window<const T> source{packed.get(), width * count, count, group.rows.begin,
                                   group.columns.begin};
      int row = group.rows.begin;
      for (size_t i = group.first; i < group.last; ++i) {
        for (; row < std::min(rois[i].rows.touched.end, group.rows.end); ++row) {
          loops_of.gather(map.at(any.image, first_channel, row, group.columns.begin), map.stride_c,
                          count, width, &packed[(row - group.rows.begin) * width * count], count);
        }
        kernel(rois[i], source, bins_window(pooled.data(), shape.pool, count),
               bins_window(pooled_places.data(), shape.pool, count), count);
        const int64_t at = rois[i].number * shape.size() + first_channel * bins;
        loops_of.scatter(pooled.data(), count, bins, count, values + at, bins);
        if (places) {
          all_loops.transpose_int32(pooled_places.data(), count, bins, count, places + at, bins);
        }
      }
    }
  });
}

// Some rows of a map's gradient, and the RoIs [first, last) of the plan that lie on that map.
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
      for (int row = 0; row < shape.height; row += std::min(height, shape.height - row)) {
        bands.push_back({level, image, {row, row + std::min(height, shape.height - row)}, first,
                         last});
      }
      first = last;
    }
  }
  return bands;
}

// Writes the gradient of every map. Each task owns some rows of some channels, sums there what
// add(roi, tile, rows, first_channel, count) brings for every RoI that touches them, in the plan's
// order, and writes them out once, so that results do not depend on the number of threads.
template <typename F, typename Axis, typename Add>
void sum_gradients(const PyramidShape& pyramid, const std::vector<PlannedRoi<Axis>>& rois,
                   bool channels_last, const std::vector<View4d<F>>& maps, const Add& add) {
  using T = accumulate_t<F>;
  // Longer runs than when packing: a channels-last map is written in pieces of this many channels.
  constexpr int64_t most_channels = 2 * kBlockChannels;
  const int64_t channels = pyramid.channels;
  const FeatureLoops<F>& loops_of = loops().of<F>();
  const std::vector<GradientBand> bands = gradient_bands(
      pyramid, rois, std::min(most_channels, channels) * static_cast<int64_t>(sizeof(T)));
  const int64_t blocks = (channels + most_channels - 1) / most_channels;
  const int64_t tasks = static_cast<int64_t>(bands.size()) * blocks;
  torch::stable::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> sums;
    for (int64_t task = begin; task < end; ++task) {
      const GradientBand& band = bands[task / blocks];
      const int64_t first_channel = task % blocks * most_channels;
      const int64_t count = std::min(most_channels, channels - first_channel);
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
        if (channels_last) {
          for (int column = 0; column < width; ++column) {
            loops_of.narrow(tile.at(row, column), count,
                            map.at(band.image, first_channel, row, column));
          }
        } else {
          loops_of.scatter(tile.at(row, 0), count, width, count,
                           map.at(band.image, first_channel, row, 0), map.stride_c);
        }
      }
    }
  });
}

}  // namespace detlite
