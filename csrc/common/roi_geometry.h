// RoIAlign and RoIPool along one axis.
#pragma once

#include <cmath>

#include "common/tensors.h"

namespace detlite {

// ---- RoIAlign (He et al., Mask R-CNN, 2017, section 3)
//
// The average of bilinear samples over a bin is separable: a weighted sum over rows of a weighted
// sum over columns. Kernels therefore need only one axis at a time.

// The bins of a RoI along one axis of the feature map, in units of cells.
template <typename T>
struct AlignAxis {
  T start;
  T bin_size;
  int samples;  // per bin

  C10_HOST_DEVICE T position(int bin, int sample) const {
    // The same bits on every device: a sample exactly at the edge of the map counts, one beyond it
    // does not.
    return start + rounded_product(T(bin), bin_size) + (sample + T(0.5)) * bin_size / samples;
  }
};

// With `aligned`, cell centres are at half-integers. Without it, they are at integers and a RoI is
// at least one cell long. A sampling ratio of zero or less is adaptive: ceil(bin size) samples per
// bin. A NaN or infinite length leads to such positions, which linear_sample() rejects.
template <typename T>
C10_HOST_DEVICE AlignAxis<T> align_axis(T low, T high, T spatial_scale, int bins,
                                        int sampling_ratio, bool aligned) {
  constexpr int max_samples = 1 << 30;
  const T offset = aligned ? T(0.5) : T(0);
  const T start = rounded_product(low, spatial_scale) - offset;
  T length = rounded_product(high, spatial_scale) - offset - start;
  if (!aligned && length < 1) length = 1;
  const T bin_size = length / bins;
  int samples = sampling_ratio;
  if (sampling_ratio <= 0) {
    const T adaptive = std::ceil(bin_size);
    // Both comparisons are false for NaN, which is never cast to int.
    samples = 0;
    if (adaptive >= T(max_samples)) samples = max_samples;
    else if (adaptive > 0) samples = static_cast<int>(adaptive);
  }
  return {start, bin_size, samples};
}

struct SampleRange {
  int begin, end;
};

// Returns the samples of a bin that can be on the map. For ordinary boxes, these are all samples;
// for a box much larger than the map, visiting all samples would take too long.
template <typename T>
C10_HOST_DEVICE SampleRange samples_near_map(const AlignAxis<T>& axis, int bin, int size) {
  constexpr int always_visited = 64;
  if (axis.samples <= always_visited || axis.bin_size == 0) return {0, axis.samples};
  const double first = double(axis.start) + bin * double(axis.bin_size);
  const double spacing = double(axis.bin_size) / axis.samples;
  // Positions are computed in T and may be off by a few rounding errors of the largest term.
  const double rounding = sizeof(T) == sizeof(double) ? 2.3e-16 : 1.2e-7;
  const double reach = std::abs(double(axis.start)) + (bin + 1) * std::abs(double(axis.bin_size));
  const double slack = 2 + 4 * rounding * reach / std::abs(spacing);
  const double a = (-1 - first) / spacing, b = (size - first) / spacing;
  const double begin = (a < b ? a : b) - slack, end = (a < b ? b : a) + slack;
  if (!(begin < axis.samples && end > 0)) return {0, 0};  // also for NaN
  return {begin > 0 ? static_cast<int>(begin) : 0,
          end < axis.samples ? static_cast<int>(end) + 1 : axis.samples};
}

// The two neighbouring cells of a sample and their weights.
template <typename T>
struct LinearSample {
  int low, high;
  T low_weight, high_weight;
};

// Linear interpolation along one axis. Returns false for a position more than one cell outside the
// map or NaN: such a sample contributes nothing. Positions up to one cell outside have the value at
// the edge.
template <typename T>
C10_HOST_DEVICE bool linear_sample(T position, int size, LinearSample<T>& sample) {
  if (size == 0 || !(position >= T(-1) && position <= T(size))) return false;
  if (position < 0) position = 0;
  const int low = static_cast<int>(position);
  if (low >= size - 1) {
    sample = {size - 1, size - 1, T(1), T(0)};
  } else {
    const T fraction = position - low;
    sample = {low, low + 1, 1 - fraction, fraction};
  }
  return true;
}

// ---- RoIPool (Girshick, Fast R-CNN, 2015, section 2.1)

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
