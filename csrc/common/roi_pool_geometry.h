// RoIPool (Girshick, Fast R-CNN, 2015, section 2.1) along one axis.
#pragma once

#include <cmath>

#include <torch/headeronly/macros/Macros.h>

namespace detlite {

// Cells [begin, end) along one axis, clipped to the map. Empty if begin >= end.
struct CellRange {
  int begin, end;

  C10_HOST_DEVICE bool is_empty() const { return begin >= end; }
};

// The bins of a RoI along one axis. The RoI covers whole cells, from the rounded first to the
// rounded last one inclusive, and at least one.
template <typename T>
struct PoolAxis {
  T start;
  T bin_size;
  int size;  // of the map

  C10_HOST_DEVICE CellRange cells(int bin) const {
    return {clip(std::floor(bin * bin_size) + start),
            clip(std::ceil((bin + 1) * bin_size) + start)};
  }

 private:
  C10_HOST_DEVICE int clip(T cell) const {
    // NaN becomes 0, so a bin without a finite edge is empty.
    return cell > 0 ? (cell < T(size) ? static_cast<int>(cell) : size) : 0;
  }
};

// A NaN or infinite coordinate leads to empty bins.
template <typename T>
C10_HOST_DEVICE PoolAxis<T> pool_axis(T low, T high, T spatial_scale, int bins, int size) {
  const T start = std::round(low * spatial_scale);
  const T last = std::round(high * spatial_scale);
  T length = last - start + 1;
  if (length < 1) length = 1;
  const bool finite = std::isfinite(start) && std::isfinite(last) && std::isfinite(length);
  return {start, length / bins, finite ? size : 0};
}

}  // namespace detlite
