// The table of inner loops for one instruction set, and the loops over masks and heatmaps.
//
// Included by default.cpp, avx2.cpp and avx512.cpp, which define the instruction set (see
// vectors.h).
#pragma once

#include "box_loops.h"
#include "focal_loops.h"
#include "roi_loops.h"

namespace detlite::DETLITE_ISA {

uint64_t threshold_row(const float* upper, float upper_weight, const float* lower,
                       float lower_weight, float threshold) {
  const Vec<float> weights[2] = {broadcast(upper_weight), broadcast(lower_weight)};
  const Vec<float> limit = broadcast(threshold);
  uint64_t bits = 0;
  for (int x = 0; x < 64; x += kLanes<float>) {
    const Vec<float> value = load(upper + x) * weights[0] + load(lower + x) * weights[1];
    bits |= static_cast<uint64_t>(lane_bits(value >= limit)) << x;
  }
  return bits;
}

float blend_rows(const float* const* rows, const float* weights, int64_t count, float* result) {
  using V = Vec<float>;
  constexpr int lanes = kLanes<float>;
  const auto blend = [&](auto at) {
    return ((weights[0] * at(rows[0]) + weights[1] * at(rows[1])) + weights[2] * at(rows[2])) +
           weights[3] * at(rows[3]);
  };
  float highest = -std::numeric_limits<float>::infinity();
  V highest_lanes = broadcast(highest);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const V value = blend([i](const float* row) { return load(row + i); });
    store(value, result + i);
    highest_lanes = larger_of(value, highest_lanes);
  }
  for (int lane = 0; lane < lanes; ++lane) highest = larger_of(highest, highest_lanes[lane]);
  for (; i < count; ++i) {
    result[i] = blend([i](const float* row) { return row[i]; });
    highest = larger_of(highest, result[i]);
  }
  return highest;
}

template <typename F>
constexpr FeatureLoops<F> feature_loops() {
  using T = accumulate_t<F>;
  return {resample<false, F, F, T>, resample<true, F, T, T>, max_pool<F>,   transpose<F, T>,
          transpose<T, F>,          convert<T, F>,           focal_loss<F>, focal_gradient<F>};
}

extern const InnerLoops table;
const InnerLoops table = {
    feature_loops<double>(),
    feature_loops<float>(),
    feature_loops<c10::Half>(),
    feature_loops<c10::BFloat16>(),
    transpose<int32_t, int32_t>,
    overlaps_any,
    match_block,
    mark_equal,
    threshold_row,
    blend_rows,
};

}  // namespace detlite::DETLITE_ISA
