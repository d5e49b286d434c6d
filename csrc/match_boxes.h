// The rules of matching's arguments, for host and device.
#pragma once

#include <array>

#include <torch/csrc/stable/ops.h>

#include "dtypes.h"
#include "iou.h"

namespace detlite {

// A reversed side counts as zero; NaN stays, and makes every overlap of the box NaN.
C10_HOST_DEVICE inline float area_between(const Box<float>& box) {
  const float width = box.x2 - box.x1, height = box.y2 - box.y1;
  return rounded_product(width < 0 ? 0.0f : width, height < 0 ? 0.0f : height);
}

// What the kernels read: truth and valid [images, truth_count], candidates [count], or
// [images, count], where those of image b begin at b * candidate_step.
struct Matching {
  Tensor truth, valid, candidates;
  int64_t images, truth_count, count, candidate_step;

  const Box<float>* truth_of(int64_t image) const {
    return static_cast<const Box<float>*>(truth.const_data_ptr()) + image * truth_count;
  }
  const bool* valid_of(int64_t image) const {
    return static_cast<const bool*>(valid.const_data_ptr()) + image * truth_count;
  }
  const Box<float>* candidates_of(int64_t image) const {
    return static_cast<const Box<float>*>(candidates.const_data_ptr()) + image * candidate_step;
  }
};

inline Matching check_matching(const Tensor& truth, const Tensor& valid, const Tensor& candidates) {
  constexpr const char* op = "match_boxes";
  check(truth.dim() == 3 && truth.size(2) == 4, op, ": truth must have shape [B, G, 4], got ",
        Shape{truth});
  const int64_t images = truth.size(0), truth_count = truth.size(1);
  check(valid.dim() == 2 && valid.size(0) == images && valid.size(1) == truth_count, op,
        ": valid must have shape ", Shape{truth, 2}, ", one for each box of truth, got ",
        Shape{valid});
  const int64_t dims = candidates.dim();
  const bool shared = dims == 2;
  check((shared || (dims == 3 && candidates.size(0) == images)) && candidates.size(dims - 1) == 4,
        op, ": candidates must have shape [N, 4] or [", images, ", N, 4], got ", Shape{candidates});
  const int64_t count = candidates.size(dims - 2);
  check(is_floating(truth.scalar_type()), op, ": truth must be floating point, got ",
        dtype_name(truth.scalar_type()));
  check(valid.scalar_type() == ScalarType::Bool, op, ": valid must be bool, got ",
        dtype_name(valid.scalar_type()));
  check(is_floating(candidates.scalar_type()), op, ": candidates must be floating point, got ",
        dtype_name(candidates.scalar_type()));
  check_same_device(op, truth, "truth", valid, "valid");
  check_same_device(op, truth, "truth", candidates, "candidates");
  check_count(op, "the number of ground-truth boxes", truth_count, 0);
  check_count(op, "the number of candidates", count, 0);

  const auto as_float = [](const Tensor& tensor) {
    return torch::stable::contiguous(torch::stable::to(tensor, ScalarType::Float));
  };
  return {as_float(truth), torch::stable::contiguous(valid), as_float(candidates),
          images,          truth_count,                      count,
          shared ? 0 : count};
}

// The results, each [images, count].
struct Matches {
  Tensor index, iou, best;

  explicit Matches(const Matching& matching) {
    const std::array<int64_t, 2> shape{matching.images, matching.count};
    const auto empty = [&](ScalarType type) {
      return torch::stable::empty({shape.data(), shape.size()}, type, std::nullopt,
                                  matching.truth.device());
    };
    index = empty(ScalarType::Long);
    iou = empty(ScalarType::Float);
    best = empty(ScalarType::Bool);
  }
};

}  // namespace detlite
