// Intersection over union (IoU) of boxes (x1, y1, x2, y2) in continuous coordinates.
#pragma once

#include <cmath>

#include "common/tensors.h"

namespace detlite {

template <typename T>
struct Box {
  T x1, y1, x2, y2;

  C10_HOST_DEVICE T area() const { return rounded_product(x2 - x1, y2 - y1); }
  C10_HOST_DEVICE bool has_nan() const {
    return std::isnan(x1) || std::isnan(y1) || std::isnan(x2) || std::isnan(y2);
  }
};

// The ternaries compile to single min and max instructions; std::fmax does not.
template <typename T>
C10_HOST_DEVICE T iou(const Box<T>& a, T area_a, const Box<T>& b, T area_b) {
  const T x1 = a.x1 > b.x1 ? a.x1 : b.x1, y1 = a.y1 > b.y1 ? a.y1 : b.y1;
  const T x2 = a.x2 < b.x2 ? a.x2 : b.x2, y2 = a.y2 < b.y2 ? a.y2 : b.y2;
  const T width = x2 - x1 > 0 ? x2 - x1 : T(0), height = y2 - y1 > 0 ? y2 - y1 : T(0);
  const T intersection = rounded_product(width, height);
  return intersection / (area_a + area_b - intersection);
}

// The largest T that is not above the threshold, so that `iou > threshold` means the same in T as
// in double.
template <typename T>
T round_down(double threshold) {
  const T rounded = static_cast<T>(threshold);
  return rounded > threshold ? std::nextafter(rounded, T(0)) : rounded;
}

}  // namespace detlite
