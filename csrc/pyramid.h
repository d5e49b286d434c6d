// Feature pyramids: several maps of one batch, and which of them a RoI is pooled from.
#pragma once

#include <vector>

#include "rois.h"

namespace detlite {

constexpr int kMostLevels = 8;

// FPN (Lin et al., 2017, equation 1): a RoI of `canonical_size` pixels belongs to the level numbered
// `canonical_level`, where level n has stride 2^n; one of twice the side to the next.
struct LevelRule {
  double canonical_size;
  int canonical_index;  // counted from the finest level present
  int levels;
};

// The index of the RoI's level; the finest where its area is NaN or negative.
template <typename T>
C10_HOST_DEVICE int level_of(const T* roi, const LevelRule& rule) {
  if (rule.levels == 1) return 0;
  const T side = std::sqrt((roi[3] - roi[1]) * (roi[4] - roi[2]));
  // The small addend is part of the published rule's usual implementation: a RoI of exactly a
  // level's size belongs to it in spite of rounding.
  const T size = side / static_cast<T>(rule.canonical_size) + static_cast<T>(1e-6);
  if (!(size > 0)) return 0;
  const int exponent = std::ilogb(size);
  if (exponent <= -rule.canonical_index) return 0;
  if (exponent >= rule.levels - rule.canonical_index) return rule.levels - 1;
  return exponent + rule.canonical_index;
}

struct LevelShape {
  int height, width;
  double spatial_scale;
};

// All levels of a call. The plain operators are pyramids of one level.
struct PyramidShape {
  std::vector<LevelShape> levels;
  LevelRule rule;
  int64_t batch_size, channels;

  int64_t cells(int level) const {
    return int64_t{levels[level].height} * levels[level].width;
  }
};

inline LevelRule check_level_rule(const char* op, const std::vector<double>& spatial_scales,
                                  double canonical_size, int64_t canonical_level) {
  const int64_t levels = static_cast<int64_t>(spatial_scales.size());
  check(levels >= 1 && levels <= kMostLevels, op, ": spatial_scales must have from 1 to ",
        kMostLevels, " levels, got ", levels);
  for (const double scale : spatial_scales) check_spatial_scale(op, scale);
  check(std::isfinite(canonical_size) && canonical_size > 0, op,
        ": canonical_size must be a positive number, got ", canonical_size);
  check(canonical_level >= -64 && canonical_level <= 64, op,
        ": canonical_level must be from -64 to 64, got ", canonical_level);
  const int finest = static_cast<int>(std::lround(-std::log2(spatial_scales[0])));
  return {canonical_size, static_cast<int>(canonical_level) - finest, static_cast<int>(levels)};
}

inline PyramidShape check_pyramid(const char* op, const std::vector<Tensor>& inputs,
                                  const std::vector<double>& spatial_scales, double canonical_size,
                                  int64_t canonical_level) {
  PyramidShape shape{{}, check_level_rule(op, spatial_scales, canonical_size, canonical_level), 0,
                     0};
  check(inputs.size() == spatial_scales.size(), op, ": inputs must have one map for each of ",
        spatial_scales.size(), " spatial_scales, got ", inputs.size());
  for (size_t level = 0; level < inputs.size(); ++level) {
    const Tensor& input = inputs[level];
    const Tensor& first = inputs[0];
    check_features(op, "input", input);
    check_map_size(op, input.size(2), input.size(3));
    check(input.scalar_type() == first.scalar_type() && input.size(0) == first.size(0) &&
              input.size(1) == first.size(1),
          op, ": inputs[", level, "] must have the type, batch size and channels of inputs[0]");
    check_same_device(op, first, "inputs[0]", input, "every other of inputs");
    shape.levels.push_back({static_cast<int>(input.size(2)), static_cast<int>(input.size(3)),
                            spatial_scales[level]});
  }
  shape.batch_size = inputs[0].size(0);
  shape.channels = inputs[0].size(1);
  return shape;
}

// The same from the sizes that a backward operator is given.
inline PyramidShape check_pyramid_sizes(const char* op, const std::vector<double>& spatial_scales,
                                        double canonical_size, int64_t canonical_level,
                                        int64_t batch_size, int64_t channels,
                                        const std::vector<int64_t>& heights,
                                        const std::vector<int64_t>& widths) {
  PyramidShape shape{{}, check_level_rule(op, spatial_scales, canonical_size, canonical_level),
                     batch_size, channels};
  check(heights.size() == spatial_scales.size() && widths.size() == spatial_scales.size(), op,
        ": heights and widths must have one number for each of ", spatial_scales.size(),
        " spatial_scales, got ", heights.size(), " and ", widths.size());
  for (size_t level = 0; level < heights.size(); ++level) {
    check_map_size(op, heights[level], widths[level]);
    shape.levels.push_back({static_cast<int>(heights[level]), static_cast<int>(widths[level]),
                            spatial_scales[level]});
  }
  return shape;
}

// The pyramid of one level that a plain operator works on.
inline PyramidShape check_single_map(const char* op, const Tensor& input, double spatial_scale) {
  return check_pyramid(op, {input}, {spatial_scale}, 1, 0);
}
inline PyramidShape check_single_size(const char* op, double spatial_scale, int64_t batch_size,
                                      int64_t channels, int64_t height, int64_t width) {
  return check_pyramid_sizes(op, {spatial_scale}, 1, 0, batch_size, channels, {height}, {width});
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
