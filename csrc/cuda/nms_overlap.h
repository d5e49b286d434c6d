// Comparison of one box with up to 64 others, for nms_kernels.h.
#pragma once

#include <cmath>

#include <cuda_runtime.h>

#include "common/iou.h"

namespace detlite {

// Few pairs have an IoU above the threshold t, and most others can be rejected without a division:
// IoU > t means that the intersection is larger than t / (1 + t) times the sum of both areas. The
// factor is lowered slightly because of rounding.
template <typename T>
T area_fraction(T threshold) {
  constexpr T min_threshold = static_cast<T>(1e-6);  // smaller products are not precise
  return threshold < min_threshold ? 0 : threshold / (1 + threshold) * static_cast<T>(1 - 1e-5);
}
template <typename T>
__device__ T min_intersection(T area, T fraction) {
  constexpr T tiny = static_cast<T>(1e-30), infinity = static_cast<T>(INFINITY);
  if (!(area > 0)) return infinity;  // overlaps nothing
  return area < tiny ? -infinity : area * fraction;
}

// Bit j is set if the IoU of `own` and rows[j] is above the threshold. `needed` has
// min_intersection() of the rows.
template <typename T>
__device__ uint64_t overlaps(const Box<T>& own, T fraction, const Box<T>* rows, const T* needed,
                             int count, T threshold) {
  constexpr int part = 16;
  const T own_area = own.area(), own_needed = min_intersection(own_area, fraction);
  uint64_t word = 0;
  for (int first = 0; first < count; first += part) {
    // Without branches: the sign bit is set if the intersection is too small.
    unsigned rejected = 0;
#pragma unroll
    for (int j = part - 1; j >= 0; --j) {
      const Box<T> row = rows[first + j];
      const T width = std::fmin(own.x2, row.x2) - std::fmax(own.x1, row.x1);
      const T height = std::fmin(own.y2, row.y2) - std::fmax(own.y1, row.y1);
      const T excess = std::fmax(width, T(0)) * height - (own_needed + needed[first + j]);
      rejected = rejected << 1 | static_cast<unsigned>(std::signbit(excess));
    }
    for (unsigned left = ~rejected & ((1u << min(part, count - first)) - 1); left;
         left &= left - 1) {
      const int j = first + __ffs(static_cast<int>(left)) - 1;
      if (iou(rows[j], rows[j].area(), own, own_area) > threshold) word |= uint64_t{1} << j;
    }
  }
  return word;
}

}  // namespace detlite
