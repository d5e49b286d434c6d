// The rules of non-maximum suppression's arguments, for host and device.
#pragma once

#include <optional>

#include <torch/csrc/stable/ops.h>

#include "dtypes.h"

namespace detlite {

// Candidates as the kernels take them: boxes [N, 4] and scores [N] of one floating type (float
// unless either was double), idxs [N] int64 where groups are kept apart, all contiguous.
struct Candidates {
  Tensor boxes, scores;
  std::optional<Tensor> idxs;

  int64_t count() const { return boxes.size(0); }
};

inline Candidates check_candidates(const char* op, const Tensor& boxes, const Tensor& scores,
                                   const std::optional<Tensor>& idxs, double iou_threshold) {
  check(boxes.dim() == 2 && boxes.size(1) == 4, op, ": boxes must have shape [N, 4], got ",
        Shape{boxes});
  check(scores.dim() == 1 && scores.size(0) == boxes.size(0), op, ": scores must have shape [",
        boxes.size(0), "], one for each box, got ", Shape{scores});
  check(is_floating(boxes.scalar_type()), op, ": boxes must be floating point, got ",
        dtype_name(boxes.scalar_type()));
  check(is_floating(scores.scalar_type()), op, ": scores must be floating point, got ",
        dtype_name(scores.scalar_type()));
  check_same_device(op, boxes, "boxes", scores, "scores");
  check(iou_threshold >= 0, op, ": iou_threshold must be zero or more, got ", iou_threshold);
  check_count(op, "the number of boxes", boxes.size(0), 0);
  if (idxs) {
    check(idxs->dim() == 1 && idxs->size(0) == boxes.size(0), op, ": idxs must have shape [",
          boxes.size(0), "], one for each box, got ", Shape{*idxs});
    check(is_integral(idxs->scalar_type()), op, ": idxs must be integers, got ",
          dtype_name(idxs->scalar_type()));
    check_same_device(op, boxes, "boxes", *idxs, "idxs");
  }

  const bool wide =
      boxes.scalar_type() == ScalarType::Double || scores.scalar_type() == ScalarType::Double;
  const auto as = [](const Tensor& tensor, ScalarType type) {
    return torch::stable::contiguous(torch::stable::to(tensor, type));
  };
  const ScalarType type = wide ? ScalarType::Double : ScalarType::Float;
  return {as(boxes, type), as(scores, type),
          idxs ? std::optional<Tensor>(as(*idxs, ScalarType::Long)) : std::nullopt};
}

inline Tensor empty_indices(const Tensor& like, int64_t count) {
  return torch::stable::empty({&count, 1}, ScalarType::Long, std::nullopt, like.device());
}

}  // namespace detlite
