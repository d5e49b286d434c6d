// Which of some boxes one box overlaps by more than a threshold, for nms_kernels.h.
#pragma once

#include <cmath>

#include <cuda_runtime.h>

#include "iou.h"

namespace detlite {

// Few pairs overlap by more than the threshold t, and fewer instructions rule out most of the rest:
// iou > t says that the intersection is more than t / (1 + t) of the sum of both areas. Each box
// brings its part of that sum, a little less than it is, since all are rounded.
template <typename T>
T needed_share(T threshold) {
  constexpr T least = static_cast<T>(1e-6);  // lest products are too small to be precise
  return threshold < least ? 0 : threshold / (1 + threshold) * static_cast<T>(1 - 1e-5);
}
template <typename T>
__device__ T needed_intersection(T area, T share) {
  constexpr T coarse = static_cast<T>(1e-30), infinity = static_cast<T>(INFINITY);
  if (!(area > 0)) return infinity;  // overlaps nothing
  return area < coarse ? -infinity : area * share;
}

// Bit j: own and rows[j] overlap by more than the threshold. `needed` is that of the rows.
template <typename T>
__device__ uint64_t overlaps(const Box<T>& own, T share, const Box<T>* rows, const T* needed,
                             int count, T threshold) {
  constexpr int part = 16;
  const T own_area = own.area(), own_needed = needed_intersection(own_area, share);
  uint64_t word = 0;
  for (int first = 0; first < count; first += part) {
    // No branches here. A sign says that the intersection is too small.
    unsigned ruled_out = 0;
#pragma unroll
    for (int j = part - 1; j >= 0; --j) {
      const Box<T> row = rows[first + j];
      const T width = std::fmin(own.x2, row.x2) - std::fmax(own.x1, row.x1);
      const T height = std::fmin(own.y2, row.y2) - std::fmax(own.y1, row.y1);
      const T spare = std::fmax(width, T(0)) * height - (own_needed + needed[first + j]);
      ruled_out = ruled_out << 1 | static_cast<unsigned>(std::signbit(spare));
    }
    for (unsigned left = ~ruled_out & ((1u << min(part, count - first)) - 1); left;
         left &= left - 1) {
      const int j = first + __ffs(static_cast<int>(left)) - 1;
      if (iou(rows[j], rows[j].area(), own, own_area) > threshold) word |= uint64_t{1} << j;
    }
  }
  return word;
}

}  // namespace detlite
