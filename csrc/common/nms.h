// Non-maximum suppression: arguments and results.
#pragma once

#include <optional>
#include <tuple>

#include "common/tensors.h"
#include "common/iou.h"

namespace detlite {

// Checked candidates, contiguous: boxes [images, count, 4] and scores [images, count] of one type,
// float64 if either was float64, otherwise float32; groups int64 and valid bool [images, count].
struct Candidates {
  Tensor boxes, scores;
  std::optional<Tensor> groups, valid;
  int64_t images, count;
};

// Pointers to the candidates, starting at one of them.
template <typename T>
struct CandidateView {
  const Box<T>* boxes;
  const T* scores;
  const int64_t* groups;  // null: one group
  const bool* valid;      // null: all are valid

  explicit CandidateView(const Candidates& all)
      : boxes(data<Box<T>>(all.boxes)),
        scores(data<T>(all.scores)),
        groups(all.groups ? data<int64_t>(*all.groups) : nullptr),
        valid(all.valid ? data<bool>(*all.valid) : nullptr) {}

  C10_HOST_DEVICE CandidateView from(int64_t first) const {
    CandidateView rest = *this;
    rest.boxes += first;
    rest.scores += first;
    if (groups) rest.groups += first;
    if (valid) rest.valid += first;
    return rest;
  }

  // True if the candidate can be kept and can suppress others.
  C10_HOST_DEVICE bool takes_part(int64_t i) const {
    return (!valid || valid[i]) && !std::isnan(scores[i]) && !boxes[i].has_nan();
  }
};

// With `valid`, tensors have a leading dimension of images.
inline Candidates check_candidates(const char* op, const Tensor& boxes, const Tensor& scores,
                                   double iou_threshold,
                                   const std::optional<Tensor>& groups = std::nullopt,
                                   const std::optional<Tensor>& valid = std::nullopt) {
  const int64_t dims = valid ? 2 : 1;  // of scores, groups and valid
  check(boxes.dim() == dims + 1 && boxes.size(dims) == 4, op, ": boxes must have shape ",
        valid ? "[B, N, 4]" : "[N, 4]", ", got ", Shape{boxes});
  const auto check_one_per_box = [&](const char* name, const Tensor& tensor) {
    bool same = tensor.dim() == dims;
    for (int64_t d = 0; same && d < dims; ++d) same = tensor.size(d) == boxes.size(d);
    check(same, op, ": ", name, " must have shape ", Shape{boxes, dims}, ", one for each box, got ",
          Shape{tensor});
    check_same_device(op, {"boxes", boxes}, {{name, tensor}});
  };
  check_floating(op, "boxes", boxes);
  check_one_per_box("scores", scores);
  check_floating(op, "scores", scores);
  check(iou_threshold >= 0, op, ": iou_threshold must be zero or more, got ", iou_threshold);
  const int64_t images = valid ? boxes.size(0) : 1, count = boxes.size(dims - 1);
  check_count(op, "the number of boxes", count, 0);
  if (groups) {
    const char* name = valid ? "groups" : "idxs";
    check_one_per_box(name, *groups);
    check(is_integral(groups->scalar_type()), op, ": ", name, " must be integers, got ",
          dtype_name(groups->scalar_type()));
  }
  if (valid) {
    check_one_per_box("valid", *valid);
    check_dtype(op, "valid", *valid, ScalarType::Bool);
  }
  const bool is_double =
      boxes.scalar_type() == ScalarType::Double || scores.scalar_type() == ScalarType::Double;
  const ScalarType type = is_double ? ScalarType::Double : ScalarType::Float;
  const auto optional_as = [](const std::optional<Tensor>& tensor, ScalarType to) {
    return tensor ? std::optional<Tensor>(contiguous_as(*tensor, to)) : std::nullopt;
  };
  return {contiguous_as(boxes, type),
          contiguous_as(scores, type),
          optional_as(groups, ScalarType::Long),
          optional_as(valid, ScalarType::Bool),
          images,
          count};
}

// ---- The operators, on top of two functions of each device: suppress_one_image(op, candidates,
// iou_threshold) returns the indices of the kept candidates; suppress_padded(candidates,
// iou_threshold, index, kept) writes results of shape [images, limit].

template <auto suppress_one_image>
Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
  constexpr const char* op = "nms";
  return suppress_one_image(op, check_candidates(op, boxes, scores, iou_threshold), iou_threshold);
}

template <auto suppress_one_image>
Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                   double iou_threshold) {
  constexpr const char* op = "batched_nms";
  return suppress_one_image(op, check_candidates(op, boxes, scores, iou_threshold, idxs),
                            iou_threshold);
}

template <auto suppress_padded>
std::tuple<Tensor, Tensor> padded_nms(const Tensor& boxes, const Tensor& scores,
                                      const Tensor& groups, const Tensor& valid,
                                      double iou_threshold, int64_t limit) {
  constexpr const char* op = "padded_nms";
  const Candidates candidates = check_candidates(op, boxes, scores, iou_threshold, groups, valid);
  check_count(op, "limit", limit, 0);
  Tensor index = empty(boxes, ScalarType::Long, {candidates.images, limit});
  Tensor kept = empty(boxes, ScalarType::Bool, {candidates.images, limit});
  suppress_padded(candidates, iou_threshold, index, kept);
  return {index, kept};
}

}  // namespace detlite
