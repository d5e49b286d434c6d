// Matching of candidate boxes to ground truth: arguments and results.
#pragma once

#include "common/tensors.h"
#include "common/iou.h"

namespace detlite {

// A negative side counts as zero. A NaN side makes every IoU of the box NaN.
C10_HOST_DEVICE inline float area_of_extent(const Box<float>& box) {
  const float width = box.x2 - box.x1, height = box.y2 - box.y1;
  return rounded_product(width < 0 ? 0.0f : width, height < 0 ? 0.0f : height);
}

// The checked arguments of a call and its uninitialized results.
struct MatchCall {
  Tensor truth, valid, candidates;  // contiguous float32 and bool
  Tensor index, iou, best;          // [images, count]
  int64_t images, truth_count, count;
  int64_t candidate_step;  // from the candidates of an image to the next; 0 if they are shared

  const Box<float>* truth_of(int64_t image) const {
    return data<Box<float>>(truth) + image * truth_count;
  }
  const bool* valid_of(int64_t image) const { return data<bool>(valid) + image * truth_count; }
  const Box<float>* candidates_of(int64_t image) const {
    return data<Box<float>>(candidates) + image * candidate_step;
  }
};

inline MatchCall check_match_boxes(const Tensor& truth, const Tensor& valid,
                                   const Tensor& candidates) {
  constexpr const char* op = "match_boxes";
  check(truth.dim() == 3 && truth.size(2) == 4, op, ": truth must have shape [B, G, 4], got ",
        Shape{truth});
  const int64_t images = truth.size(0), truth_count = truth.size(1);
  check_shape(op, "valid", valid, {images, truth_count}, ", one for each box of truth");
  const int64_t dims = candidates.dim();
  const bool shared = dims == 2;
  check((shared || (dims == 3 && candidates.size(0) == images)) && candidates.size(dims - 1) == 4,
        op, ": candidates must have shape [N, 4] or [", images, ", N, 4], got ", Shape{candidates});
  const int64_t count = candidates.size(dims - 2);
  check_floating(op, "truth", truth);
  check_dtype(op, "valid", valid, ScalarType::Bool);
  check_floating(op, "candidates", candidates);
  check_same_device(op, {"truth", truth}, {{"valid", valid}, {"candidates", candidates}});
  check_count(op, "the number of ground-truth boxes", truth_count, 0);
  check_count(op, "the number of candidates", count, 0);
  return {contiguous_as(truth, ScalarType::Float),
          torch::stable::contiguous(valid),
          contiguous_as(candidates, ScalarType::Float),
          empty(truth, ScalarType::Long, {images, count}),
          empty(truth, ScalarType::Float, {images, count}),
          empty(truth, ScalarType::Bool, {images, count}),
          images,
          truth_count,
          count,
          shared ? 0 : count};
}

}  // namespace detlite
