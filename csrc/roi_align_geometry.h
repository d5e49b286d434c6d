// RoIAlign (He et al., Mask R-CNN, 2017, section 3) along one axis, for host and device.
//
// The average of bilinear samples over a bin is separable: a sum over rows of a sum over columns.
// So one axis at a time is all that the kernels need.
#pragma once

#include <cmath>

#include "rounding.h"

namespace detlite {

// A RoI's bins along one axis of the feature map, in cells.
template <typename T>
struct AlignAxis {
  T start;
  T bin_size;
  int samples;  // in each bin

  C10_HOST_DEVICE T position(int bin, int sample) const {
    return start + bin * bin_size + (sample + T(0.5)) * bin_size / samples;
  }
};

// Aligned RoIs count cell centres at half-integers; unaligned ones at integers, and are at least
// one cell long. A sampling ratio of zero or less takes one sample for each cell begun. A length
// that is NaN or infinite gives positions that are, which no cell is near.
template <typename T>
C10_HOST_DEVICE AlignAxis<T> align_axis(T low, T high, T spatial_scale, int bins,
                                        int sampling_ratio, bool aligned) {
  constexpr int most_samples = 1 << 30;
  const T offset = aligned ? T(0.5) : T(0);
  const T start = rounded_product(low, spatial_scale) - offset;
  T length = rounded_product(high, spatial_scale) - offset - start;
  if (!aligned && length < 1) length = 1;
  const T bin_size = length / bins;
  int samples = sampling_ratio;
  if (sampling_ratio <= 0) {
    const T adaptive = std::ceil(bin_size);
    // Both comparisons are false for NaN, so that it takes no samples and is never cast.
    samples = 0;
    if (adaptive >= T(most_samples)) samples = most_samples;
    else if (adaptive > 0) samples = static_cast<int>(adaptive);
  }
  return {start, bin_size, samples};
}

// The range of a bin's samples outside which none can fall on the map: all of them for an ordinary
// grid, fewer for a box so much larger than the map that walking its samples would take for ever.
struct SampleRange {
  int begin, end;
};

template <typename T>
C10_HOST_DEVICE SampleRange samples_near_map(const AlignAxis<T>& axis, int bin, int size) {
  constexpr int walkable = 64;
  if (axis.samples <= walkable || axis.bin_size == 0) return {0, axis.samples};
  const double first = double(axis.start) + bin * double(axis.bin_size);
  const double spacing = double(axis.bin_size) / axis.samples;
  // Positions are computed in T and may be off by a few roundings of the largest term.
  const double rounding = sizeof(T) == sizeof(double) ? 2.3e-16 : 1.2e-7;
  const double reach = std::abs(double(axis.start)) + (bin + 1) * std::abs(double(axis.bin_size));
  const double slack = 2 + 4 * rounding * reach / std::abs(spacing);
  const double a = (-1 - first) / spacing, b = (size - first) / spacing;
  const double begin = (a < b ? a : b) - slack, end = (a < b ? b : a) + slack;
  if (!(begin < axis.samples && end > 0)) return {0, 0};  // NaN too
  return {begin > 0 ? static_cast<int>(begin) : 0,
          end < axis.samples ? static_cast<int>(end) + 1 : axis.samples};
}

// The two cells that a sample lies between, and their weights.
template <typename T>
struct LinearSample {
  int low, high;
  T low_weight, high_weight;
};

// Bilinear interpolation along one axis. False, and nothing to add, for a position more than one
// cell outside the map, or NaN; nearer ones take the value of the edge.
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

}  // namespace detlite
