// Inner loops over boxes: overlaps for non-maximum suppression and for matching.
#pragma once

#include "inner_loops.h"
#include "vectors.h"

namespace detlite::DETLITE_ISA {

// ---- Non-maximum suppression

template <typename V>
inline V larger_of(V a, V b) {
  return a > b ? a : b;
}
template <typename V>
inline V smaller_of(V a, V b) {
  return a < b ? a : b;
}

bool overlaps_any(const BoxArrays& boxes, int64_t count, const float* box, float threshold) {
  using V = Vec<float>;
  const V x1 = broadcast(box[0]), y1 = broadcast(box[1]);
  const V x2 = broadcast(box[2]), y2 = broadcast(box[3]);
  const V area = broadcast((box[2] - box[0]) * (box[3] - box[1]));
  const V limit = broadcast(threshold), zero{};
  // A product is cheaper than the exact quotient. With a slightly lower threshold it never rejects
  // a box that the quotient would accept.
  const V lower_limit = broadcast(threshold * (1 - 1e-6f));
  for (int64_t i = 0; i < count; i += kLanes<float>) {
    const V width = smaller_of(load(boxes.x2 + i), x2) - larger_of(load(boxes.x1 + i), x1);
    const V height = smaller_of(load(boxes.y2 + i), y2) - larger_of(load(boxes.y1 + i), y1);
    const V intersection = larger_of(width, zero) * larger_of(height, zero);
    const V area_of_union = load(boxes.area + i) + area - intersection;
    if (lane_bits(intersection >= area_of_union * lower_limit) &&
        lane_bits(intersection / area_of_union > limit)) {
      return true;
    }
  }
  return false;
}

// ---- Matching

// A box, repeated in all lanes.
struct BroadcastBox {
  Vec<float> x1, y1, x2, y2, area;

  BroadcastBox(const BoxArrays& boxes, int64_t at)
      : x1(broadcast(boxes.x1[at])),
        y1(broadcast(boxes.y1[at])),
        x2(broadcast(boxes.x2[at])),
        y2(broadcast(boxes.y2[at])),
        area(broadcast(boxes.area[at])) {}

  // Calls function(iou) with a vector of IoUs with the boxes from `first` on, unless all are zero.
  template <typename Function>
  void overlaps(const BoxArrays& boxes, int64_t first, Function&& function) const {
    const Vec<float> zero{};
    const Vec<float> width =
        smaller_of(load(boxes.x2 + first), x2) - larger_of(load(boxes.x1 + first), x1);
    const Vec<float> height =
        smaller_of(load(boxes.y2 + first), y2) - larger_of(load(boxes.y1 + first), y1);
    if (!lane_bits((width > zero) & (height > zero))) return;
    const Vec<float> intersection = larger_of(width, zero) * larger_of(height, zero);
    function(intersection / (area + load(boxes.area + first) - intersection));
  }
};

// The minimum and maximum of kMatchBlock numbers, ignoring NaN.
inline float min_of_block(const float* values) {
  float result = std::numeric_limits<float>::infinity();
  for (int i = 0; i < kMatchBlock; ++i) result = values[i] < result ? values[i] : result;
  return result;
}
inline float max_of_block(const float* values) {
  float result = -std::numeric_limits<float>::infinity();
  for (int i = 0; i < kMatchBlock; ++i) result = values[i] > result ? values[i] : result;
  return result;
}

void match_block(const BoxArrays& candidates, const BoxArrays& truth, int64_t count, float* iou,
                 int32_t* index, float* highest) {
  using V = Vec<float>;
  constexpr int lanes = kLanes<float>;
  // A ground-truth box can overlap a candidate only if it overlaps their bounding box.
  const V x1 = broadcast(min_of_block(candidates.x1)), y1 = broadcast(min_of_block(candidates.y1));
  const V x2 = broadcast(max_of_block(candidates.x2));
  const V y2 = broadcast(max_of_block(candidates.y2));
  for (int64_t first = 0; first < count; first += lanes) {
    const auto overlapping = (load(truth.x1 + first) < x2) & (load(truth.x2 + first) > x1) &
                             (load(truth.y1 + first) < y2) & (load(truth.y2 + first) > y1);
    for (uint32_t left = lane_bits(overlapping); left; left &= left - 1) {
      const int64_t g = first + __builtin_ctz(left);
      const BroadcastBox box(truth, g);
      const Vec<int32_t> number = broadcast(static_cast<int32_t>(g));
      for (int c = 0; c < kMatchBlock; c += lanes) {
        box.overlaps(candidates, c, [&](V overlap) {
          const V before = load(iou + c);
          const auto better = overlap > before;
          store(better ? overlap : before, iou + c);
          store(better ? number : load(index + c), index + c);
          if (!lane_bits(overlap > broadcast(highest[g]))) return;
          for (int i = 0; i < lanes; ++i) {
            if (overlap[i] > highest[g]) highest[g] = overlap[i];
          }
        });
      }
    }
  }
}

void mark_equal(const BoxArrays& candidates, int64_t count, const BoxArrays& box, float iou,
                bool* marks) {
  const BroadcastBox reference(box, 0);
  for (int64_t c = 0; c < count; c += kLanes<float>) {
    reference.overlaps(candidates, c, [&](Vec<float> overlap) {
      for (uint32_t left = lane_bits(overlap == broadcast(iou)); left; left &= left - 1) {
        marks[c + __builtin_ctz(left)] = true;
      }
    });
  }
}

}  // namespace detlite::DETLITE_ISA
