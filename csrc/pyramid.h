// Feature pyramids: several maps of one batch. A single map is a pyramid of one level.
#pragma once

#include <vector>

#include "rois.h"

namespace detlite {

constexpr int64_t kMostLevels = 8;

struct LevelShape {
  int height, width;
  double spatial_scale;
};

// All levels of a call.
struct PyramidShape {
  std::vector<LevelShape> levels;
  int64_t batch_size, channels;

  int level_count() const { return static_cast<int>(levels.size()); }
  int64_t cells(int level) const {
    return int64_t{levels[level].height} * levels[level].width;
  }
};

inline void check_scales(const char* op, const std::vector<double>& spatial_scales) {
  const int64_t levels = static_cast<int64_t>(spatial_scales.size());
  check(levels >= 1 && levels <= kMostLevels, op, ": spatial_scales must have from 1 to ",
        kMostLevels, " levels, got ", levels);
  for (const double scale : spatial_scales) {
    check(std::isfinite(scale) && scale > 0, op,
          ": spatial_scale must be a positive number, got ", scale);
  }
}

// From the sizes that a backward operator is given.
inline PyramidShape check_pyramid_sizes(const char* op, const std::vector<double>& spatial_scales,
                                        int64_t batch_size, int64_t channels,
                                        const std::vector<int64_t>& heights,
                                        const std::vector<int64_t>& widths) {
  check_count(op, "batch_size", batch_size, 0);
  check_count(op, "channels", channels, 0);
  check_scales(op, spatial_scales);
  check(heights.size() == spatial_scales.size() && widths.size() == spatial_scales.size(), op,
        ": heights and widths must have one number for each of ", spatial_scales.size(),
        " spatial_scales, got ", heights.size(), " and ", widths.size());
  PyramidShape shape{{}, batch_size, channels};
  for (size_t level = 0; level < heights.size(); ++level) {
    check_map_size(op, heights[level], widths[level]);
    shape.levels.push_back({static_cast<int>(heights[level]), static_cast<int>(widths[level]),
                            spatial_scales[level]});
  }
  return shape;
}

// From the maps that a forward operator is given.
inline PyramidShape check_pyramid(const char* op, const std::vector<Tensor>& inputs,
                                  const std::vector<double>& spatial_scales) {
  check_scales(op, spatial_scales);
  check(inputs.size() == spatial_scales.size(), op, ": inputs must have one map for each of ",
        spatial_scales.size(), " spatial_scales, got ", inputs.size());
  const Tensor& first = inputs[0];
  std::vector<int64_t> heights, widths;
  for (size_t level = 0; level < inputs.size(); ++level) {
    const Tensor& input = inputs[level];
    check_features(op, "input", input);
    check(input.scalar_type() == first.scalar_type() && input.size(0) == first.size(0) &&
              input.size(1) == first.size(1),
          op, ": inputs[", level, "] must have the type, batch size and channels of inputs[0]");
    check_same_device(op, first, "inputs[0]", input, "every other of inputs");
    heights.push_back(input.size(2));
    widths.push_back(input.size(3));
  }
  return check_pyramid_sizes(op, spatial_scales, first.size(0), first.size(1), heights, widths);
}

// One layout for all levels: that of any map in which it shows.
inline bool is_channels_last(const std::vector<Tensor>& inputs) {
  for (const Tensor& input : inputs) {
    if (is_channels_last(input)) return true;
  }
  return false;
}

template <typename F>
std::vector<View4d<const F>> const_views(const std::vector<Tensor>& maps) {
  std::vector<View4d<const F>> views;
  for (const Tensor& map : maps) views.push_back(const_view<F>(map));
  return views;
}

template <typename F>
std::vector<View4d<F>> mutable_views(const std::vector<Tensor>& maps) {
  std::vector<View4d<F>> views;
  for (const Tensor& map : maps) views.push_back(mutable_view<F>(map));
  return views;
}

inline std::vector<Tensor> empty_levels(const Tensor& like, ScalarType type,
                                        const PyramidShape& shape, bool channels_last) {
  std::vector<Tensor> maps;
  for (const LevelShape& level : shape.levels) {
    maps.push_back(empty_4d(like, type, shape.batch_size, shape.channels, level.height,
                            level.width, channels_last));
  }
  return maps;
}

}  // namespace detlite
