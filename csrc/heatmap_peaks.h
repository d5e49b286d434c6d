// The highest point of a heat map that is enlarged to its box, for host and device: bicubic
// interpolation as torch.nn.functional.interpolate does it, one axis at a time.
#pragma once

#include <tuple>

#include <torch/csrc/stable/ops.h>

#include "dtypes.h"
#include "iou.h"

namespace detlite {

// One side of a box: whole pixels, each a little shorter than one. What bounds the work for a box of
// any size is their number; a side that is NaN or infinite has one, and no place in it is finite.
struct PeakAxis {
  float low, pixel;
  int pixels;

  C10_HOST_DEVICE PeakAxis(float begin, float end) : low(begin), pixels(1) {
    constexpr float most = 4096;
    const float side = end - begin < 1 ? 1 : end - begin;
    const float whole = std::ceil(side);
    if (whole <= most) pixels = static_cast<int>(whole);
    else if (std::isfinite(side)) pixels = static_cast<int>(most);
    pixel = side / static_cast<float>(pixels);
  }
  C10_HOST_DEVICE float centre(int i) const {
    return low + rounded_product(static_cast<float>(i) + 0.5f, pixel);
  }
};

constexpr int kCubicTaps = 4;

// Keys' cubic convolution with a = -0.75, at a distance of up to one cell, and of one to two.
C10_HOST_DEVICE inline float cubic_near(float x) {
  return rounded_product(rounded_product(rounded_product(1.25f, x) - 2.25f, x), x) + 1;
}
C10_HOST_DEVICE inline float cubic_far(float x) {
  return rounded_product(rounded_product(rounded_product(-0.75f, x) + 3.75f, x) - 6, x) + 3;
}

// The cells that a pixel lies between, and their weights.
struct CubicSample {
  int cell;  // the second of the four
  float weights[kCubicTaps];

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
  // Beyond the edges lies what is at the edge.
  C10_HOST_DEVICE int from(int tap, int cells) const {
    const int at = cell + tap - 1;
    return at < 0 ? 0 : at < cells ? at : cells - 1;
  }
};

struct PeakArguments {
  Tensor maps, boxes;

  int64_t boxes_count() const { return maps.size(0); }
  int64_t points() const { return maps.size(1); }
  int height() const { return static_cast<int>(maps.size(2)); }
  int width() const { return static_cast<int>(maps.size(3)); }
};

inline PeakArguments check_peaks(const char* op, const Tensor& maps, const Tensor& boxes) {
  constexpr int64_t most = 1024;
  check(maps.dim() == 4, op, ": maps must have shape [R, N, M, M], got ", Shape{maps});
  for (int side = 2; side < 4; ++side) {
    check(maps.size(side) >= 1 && maps.size(side) <= most, op,
          ": maps must have sides from 1 to ", most, ", got ", Shape{maps});
  }
  check(boxes.dim() == 2 && boxes.size(0) == maps.size(0) && boxes.size(1) == 4, op,
        ": boxes must have shape [", maps.size(0), ", 4], one for each of maps, got ",
        Shape{boxes});
  check(is_floating(maps.scalar_type()), op, ": maps must be floating point, got ",
        dtype_name(maps.scalar_type()));
  check(is_floating(boxes.scalar_type()), op, ": boxes must be floating point, got ",
        dtype_name(boxes.scalar_type()));
  check_same_device(op, maps, "maps", boxes, "boxes");
  check_count(op, "the number of maps", maps.size(0) * maps.size(1), 0);
  const auto as_float = [](const Tensor& tensor) {
    return torch::stable::contiguous(torch::stable::to(tensor, ScalarType::Float));
  };
  return {as_float(maps), as_float(boxes)};
}

// Keypoints [R, N, 3] and scores [R, N], to be written.
inline std::tuple<Tensor, Tensor> empty_peaks(const PeakArguments& arguments) {
  const int64_t shape[3] = {arguments.boxes_count(), arguments.points(), 3};
  const auto empty = [&](int64_t dims) {
    return torch::stable::empty({shape, static_cast<size_t>(dims)}, ScalarType::Float, std::nullopt,
                                arguments.maps.device());
  };
  return {empty(3), empty(2)};
}

// The pixel number row * columns.pixels + column as a keypoint.
C10_HOST_DEVICE inline void write_keypoint(const PeakAxis& rows, const PeakAxis& columns, int place,
                                           float* keypoint) {
  keypoint[0] = columns.centre(place % columns.pixels);
  keypoint[1] = rows.centre(place / columns.pixels);
  keypoint[2] = 1;
}

}  // namespace detlite
