// The peak of each keypoint heatmap after bicubic resizing to its box: arguments and interpolation.
// The interpolation is that of torch.nn.functional.interpolate, one axis at a time.
#pragma once

#include "common/tensors.h"
#include "common/iou.h"

namespace detlite {

// One side of a box, divided into pixels of equal size, at most one unit long. At most 4096 pixels
// limit the work for large boxes. A NaN or infinite side has one pixel, whose centre is not finite.
struct PeakAxis {
  float low, pixel;
  int pixels;

  C10_HOST_DEVICE PeakAxis(float begin, float end) : low(begin), pixels(1) {
    constexpr float max_pixels = 4096;
    const float side = end - begin < 1 ? 1 : end - begin;
    const float rounded_up = std::ceil(side);
    if (rounded_up <= max_pixels) pixels = static_cast<int>(rounded_up);
    else if (std::isfinite(side)) pixels = static_cast<int>(max_pixels);
    pixel = side / static_cast<float>(pixels);
  }
  C10_HOST_DEVICE float centre(int i) const {
    return low + rounded_product(static_cast<float>(i) + 0.5f, pixel);
  }
};

constexpr int kCubicCells = 4;

// Keys' cubic convolution kernel with a = -0.75, for distances in [0, 1] and [1, 2].
C10_HOST_DEVICE inline float cubic_near(float x) {
  return rounded_product(rounded_product(rounded_product(1.25f, x) - 2.25f, x), x) + 1;
}
C10_HOST_DEVICE inline float cubic_far(float x) {
  return rounded_product(rounded_product(rounded_product(-0.75f, x) + 3.75f, x) - 6, x) + 3;
}

// The four heatmap cells that a pixel is interpolated from, and their weights.
struct CubicSample {
  int cell;  // the second of the four
  float weights[kCubicCells];

  C10_HOST_DEVICE CubicSample(int pixel, int pixels, int cells) {
    const float scale = static_cast<float>(cells) / static_cast<float>(pixels);
    const float position = rounded_product(scale, static_cast<float>(pixel) + 0.5f) - 0.5f;
    const float below = std::floor(position), t = position - below;
    cell = static_cast<int>(below);
    weights[0] = cubic_far(t + 1);
    weights[1] = cubic_near(t);
    weights[2] = cubic_near(1 - t);
    weights[3] = cubic_far(2 - t);
  }
  // Cells outside the map repeat the cell at the edge.
  C10_HOST_DEVICE int cell_at(int i, int cells) const {
    const int at = cell + i - 1;
    return at < 0 ? 0 : at < cells ? at : cells - 1;
  }
};

// The checked arguments of a call and its uninitialized results.
struct PeakCall {
  Tensor maps, boxes;        // contiguous float32 [R, N, H, W] and [R, 4]
  Tensor keypoints, scores;  // [R, N, 3] and [R, N]

  int64_t points() const { return maps.size(1); }
  int height() const { return static_cast<int>(maps.size(2)); }
  int width() const { return static_cast<int>(maps.size(3)); }
};

inline PeakCall check_heatmap_peaks(const Tensor& maps, const Tensor& boxes) {
  constexpr const char* op = "heatmap_peaks";
  constexpr int64_t max_side = 1024;
  check(maps.dim() == 4, op, ": maps must have shape [R, N, M, M], got ", Shape{maps});
  for (int side = 2; side < 4; ++side) {
    check(maps.size(side) >= 1 && maps.size(side) <= max_side, op,
          ": maps must have sides from 1 to ", max_side, ", got ", Shape{maps});
  }
  const int64_t count = maps.size(0), points = maps.size(1);
  check_shape(op, "boxes", boxes, {count, 4}, ", one for each of maps");
  check_floating(op, "maps", maps);
  check_floating(op, "boxes", boxes);
  check_same_device(op, {"maps", maps}, {{"boxes", boxes}});
  check_count(op, "the number of maps", count * points, 0);
  return {contiguous_as(maps, ScalarType::Float), contiguous_as(boxes, ScalarType::Float),
          empty(maps, ScalarType::Float, {count, points, 3}),
          empty(maps, ScalarType::Float, {count, points})};
}

// Writes pixel `index`, which is row * columns.pixels + column, as a keypoint.
C10_HOST_DEVICE inline void write_keypoint(const PeakAxis& rows, const PeakAxis& columns, int index,
                                           float* keypoint) {
  keypoint[0] = columns.centre(index % columns.pixels);
  keypoint[1] = rows.centre(index / columns.pixels);
  keypoint[2] = 1;
}

}  // namespace detlite
