// The rules of non-maximum suppression's arguments, for host and device.
#pragma once

#include <initializer_list>
#include <optional>

#include <torch/csrc/stable/ops.h>

#include "dtypes.h"
#include "iou.h"

namespace detlite {

// Candidates as the kernels take them: boxes [images, count, 4] and scores [images, count] of one
// floating type (float unless either was double), groups int64 and valid bool [images, count] where
// they are given, all contiguous.
struct Candidates {
  Tensor boxes, scores;
  std::optional<Tensor> groups, valid;
  int64_t images, count;
};

// The memory of candidates, from one of them on.
template <typename T>
struct CandidateView {
  const Box<T>* boxes;
  const T* scores;
  const int64_t* groups;  // null: all are one group
  const bool* valid;      // null: all are valid

  explicit CandidateView(const Candidates& all)
      : boxes(static_cast<const Box<T>*>(all.boxes.const_data_ptr())),
        scores(static_cast<const T*>(all.scores.const_data_ptr())),
        groups(all.groups ? static_cast<const int64_t*>(all.groups->const_data_ptr()) : nullptr),
        valid(all.valid ? static_cast<const bool*>(all.valid->const_data_ptr()) : nullptr) {}

  C10_HOST_DEVICE CandidateView from(int64_t first) const {
    CandidateView rest = *this;
    rest.boxes += first;
    rest.scores += first;
    if (groups) rest.groups += first;
    if (valid) rest.valid += first;
    return rest;
  }

  // Whether the candidate may be kept, and may suppress others.
  C10_HOST_DEVICE bool takes_part(int64_t i) const {
    return (!valid || valid[i]) && !std::isnan(scores[i]) && !boxes[i].has_nan();
  }
};

// With `valid` there is a leading dimension of images, and the groups are named so.
inline Candidates check_candidates(const char* op, const Tensor& boxes, const Tensor& scores,
                                   double iou_threshold,
                                   const std::optional<Tensor>& groups = std::nullopt,
                                   const std::optional<Tensor>& valid = std::nullopt) {
  const int64_t dims = valid ? 2 : 1;  // of what each box has one of
  check(boxes.dim() == dims + 1 && boxes.size(dims) == 4, op, ": boxes must have shape ",
        valid ? "[B, N, 4]" : "[N, 4]", ", got ", Shape{boxes});
  const auto check_one_each = [&](const Tensor& tensor, const char* name) {
    bool same = tensor.dim() == dims;
    for (int64_t d = 0; same && d < dims; ++d) same = tensor.size(d) == boxes.size(d);
    check(same, op, ": ", name, " must have shape ", Shape{boxes, dims}, ", one for each box, got ",
          Shape{tensor});
    check_same_device(op, boxes, "boxes", tensor, name);
  };
  check(is_floating(boxes.scalar_type()), op, ": boxes must be floating point, got ",
        dtype_name(boxes.scalar_type()));
  check_one_each(scores, "scores");
  check(is_floating(scores.scalar_type()), op, ": scores must be floating point, got ",
        dtype_name(scores.scalar_type()));
  check(iou_threshold >= 0, op, ": iou_threshold must be zero or more, got ", iou_threshold);
  const int64_t images = valid ? boxes.size(0) : 1, count = boxes.size(dims - 1);
  check_count(op, "the number of boxes", count, 0);
  if (groups) {
    const char* name = valid ? "groups" : "idxs";
    check_one_each(*groups, name);
    check(is_integral(groups->scalar_type()), op, ": ", name, " must be integers, got ",
          dtype_name(groups->scalar_type()));
  }
  if (valid) {
    check_one_each(*valid, "valid");
    check(valid->scalar_type() == ScalarType::Bool, op, ": valid must be bool, got ",
          dtype_name(valid->scalar_type()));
  }

  const bool wide =
      boxes.scalar_type() == ScalarType::Double || scores.scalar_type() == ScalarType::Double;
  const auto as = [](const Tensor& tensor, ScalarType type) {
    return torch::stable::contiguous(torch::stable::to(tensor, type));
  };
  const auto as_optional = [&](const std::optional<Tensor>& tensor, ScalarType type) {
    return tensor ? std::optional<Tensor>(as(*tensor, type)) : std::nullopt;
  };
  const ScalarType type = wide ? ScalarType::Double : ScalarType::Float;
  return {as(boxes, type),
          as(scores, type),
          as_optional(groups, ScalarType::Long),
          as_optional(valid, ScalarType::Bool),
          images,
          count};
}

inline Tensor empty_of(ScalarType type, const Candidates& candidates,
                       std::initializer_list<int64_t> shape) {
  return torch::stable::empty({shape.begin(), shape.size()}, type, std::nullopt,
                              candidates.boxes.device());
}

}  // namespace detlite
