// How RoIAlign and RoIPool on the CPU walk over maps of either layout.
//
// The inner loops want channels innermost. A channels-last map is read, and its gradient written,
// where it lies; of a contiguous one, the cells around some neighbouring RoIs are copied for a few
// channels at a time into a block that stays in the cache.
#pragma once

#include <vector>

#include "loops.h"
#include "roi_plan.h"

namespace detlite {

// Channels of a block, and its size: half of a usual second-level cache.
constexpr int64_t kBlockChannels = 32;
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

// RoIs [first, last) of the plan, all on one map, and the smallest rectangle of its cells that
// holds what they read.
struct RoiGroup {
  size_t first, last;
  CellRange rows, columns;

  int64_t cells() const {
    return int64_t{rows.end - rows.begin} * (columns.end - columns.begin);
  }
};

inline CellRange hull(CellRange a, CellRange b) {
  if (a.begin >= a.end) return b;
  if (b.begin >= b.end) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

// Puts neighbours together for as long as the rectangle fits a block.
template <typename Axis>
std::vector<RoiGroup> group_rois(const std::vector<PlannedRoi<Axis>>& rois, int64_t most_cells) {
  std::vector<RoiGroup> groups;
  for (size_t i = 0; i < rois.size(); ++i) {
    const PlannedRoi<Axis>& roi = rois[i];
    if (i > 0 && roi.level == rois[i - 1].level && roi.image == rois[i - 1].image) {
      RoiGroup& open = groups.back();
      const RoiGroup wider{open.first, i + 1, hull(open.rows, roi.rows.touched),
                           hull(open.columns, roi.columns.touched)};
      if (wider.cells() <= most_cells) {
        open = wider;
        continue;
      }
    }
    groups.push_back({i, i + 1, roi.rows.touched, roi.columns.touched});
  }
  return groups;
}

// Calls kernel(roi, source, values, places, channels) for every RoI, with windows of F where the
// map is channels-last and of the accumulating type where it is packed, and leaves the results in
// `values` and, unless null, `places`.
template <typename F, typename Axis, typename Kernel>
void pool_rois(const std::vector<View4d<const F>>& maps, const std::vector<PlannedRoi<Axis>>& rois,
               const PooledShape& shape, F* values, int32_t* places, const Kernel& kernel) {
  using T = accumulate_t<F>;
  const int64_t channels = shape.channels, bins = shape.pool.bins();
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
  const std::vector<RoiGroup> groups =
      group_rois(rois, kBlockBytes / (kBlockChannels * static_cast<int64_t>(sizeof(T))));
  const int64_t blocks = (channels + kBlockChannels - 1) / kBlockChannels;
  const int64_t group_count = static_cast<int64_t>(groups.size());
  torch::stable::parallel_for(0, blocks * group_count, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> packed, pooled(bins * kBlockChannels);
    std::vector<int32_t> pooled_places(places ? bins * kBlockChannels : 0);
    for (int64_t task = begin; task < end; ++task) {
      const RoiGroup& group = groups[task % group_count];
      const int64_t first_channel = task / group_count * kBlockChannels;
      const int64_t count = std::min(kBlockChannels, channels - first_channel);
      const PlannedRoi<Axis>& any = rois[group.first];
      const View4d<const F>& map = maps[any.level];
      const int64_t width = group.columns.end - group.columns.begin;
      if (static_cast<int64_t>(packed.size()) < group.cells() * count) {
        packed.resize(group.cells() * count);
      }
      for (int row = group.rows.begin; row < group.rows.end; ++row) {
        loops_of.gather(map.at(any.image, first_channel, row, group.columns.begin), map.stride_c,
                        count, width, packed.data() + (row - group.rows.begin) * width * count,
                        count);
      }
      const Window<const T> source{packed.data(), width * count, count, group.rows.begin,
                                   group.columns.begin};
      for (size_t i = group.first; i < group.last; ++i) {
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
  for (int level = 0; level < pyramid.rule.levels; ++level) {
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
