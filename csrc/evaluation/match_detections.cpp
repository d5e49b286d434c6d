// COCO's matching of detections to ground-truth objects (evaluateImg in cocoeval.py of
// pycocotools), for several IoU thresholds and several sets of ignored objects.
#include <algorithm>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "common/tensors.h"
#include "evaluation/match_outcome.h"

namespace detlite {
namespace {

// The detections of one image and category by decreasing score, and its objects.
struct Group {
  int64_t detections, objects;
  const double* overlaps;  // [detections, objects]
  const bool* crowd;       // [objects]
};

class Matcher {
 public:
  // Returns the highest overlap of the group.
  double start(const Group& group) {
    highest_.assign(group.detections, -1.0);
    const double* overlap = group.overlaps;
    double all = -1;
    for (double& highest : highest_) {
      for (int64_t g = 0; g < group.objects; ++g) highest = std::max(highest, *overlap++);
      all = std::max(all, highest);
    }
    return all;
  }

  // Orders the objects: those that count come before the ignored ones.
  void order(const Group& group, const bool* ignored) {
    order_.clear();
    for (const bool skipped : {false, true}) {
      for (int64_t g = 0; g < group.objects; ++g) {
        if (ignored[g] == skipped) order_.push_back(g);
      }
      if (!skipped) counted_ = order_.size();
    }
  }

  // Sets the outcomes of the detections that match an object.
  void match(const Group& group, double threshold, uint8_t* outcomes) {
    matched_.assign(group.objects, 0);
    for (int64_t d = 0; d < group.detections; ++d) {
      const double* overlaps = group.overlaps + d * group.objects;
      double min_iou = threshold;
      if (highest_[d] < min_iou) continue;
      int64_t best = -1;
      size_t i = 0;
      for (; i < order_.size(); ++i) {
        // An object that counts is preferred to any ignored object.
        if (i == counted_ && best >= 0) break;
        const int64_t g = order_[i];
        if ((matched_[g] && !group.crowd[g]) || overlaps[g] < min_iou) continue;
        min_iou = overlaps[g];
        best = g;
        outcomes[d] = i < counted_ ? kTruePositive : kIgnored;
      }
      if (best >= 0) matched_[best] = 1;
    }
  }

 private:
  std::vector<int64_t> order_;
  size_t counted_ = 0;
  std::vector<uint8_t> matched_;
  std::vector<double> highest_;  // the highest overlap of each detection
};

Tensor match_detections(const Tensor& overlaps, const Tensor& groups, const Tensor& crowd,
                        const Tensor& ignored, const Tensor& uncounted, const Tensor& thresholds) {
  constexpr const char* op = "match_detections";
  const auto check_type = [op](const Tensor& tensor, const char* name, int64_t dims,
                               ScalarType type) {
    check(tensor.dim() == dims && tensor.scalar_type() == type, op, ": ", name, " must be ",
          dtype_name(type), " of ", dims, " dimensions, got ", dtype_name(tensor.scalar_type()),
          " ", Shape{tensor});
  };
  check_type(overlaps, "overlaps", 1, ScalarType::Double);
  check_type(groups, "groups", 2, ScalarType::Long);
  check_type(crowd, "crowd", 1, ScalarType::Bool);
  check_type(ignored, "ignored", 2, ScalarType::Bool);
  check_type(uncounted, "uncounted", 2, ScalarType::Bool);
  check_type(thresholds, "thresholds", 1, ScalarType::Double);
  const int64_t sets = ignored.size(0), objects = crowd.size(0), detections = uncounted.size(1);
  check(groups.size(1) == 4, op, ": groups must have shape [Q, 4], got ", Shape{groups});
  check_shape(op, "ignored", ignored, {sets, objects}, ", a column for each of crowd");
  check(uncounted.size(0) == sets, op, ": uncounted must have shape [", sets,
        ", D], a row for each of ignored, got ", Shape{uncounted});

  const auto dense = [](const Tensor& tensor) { return torch::stable::contiguous(tensor); };
  const Tensor all_overlaps = dense(overlaps), all_groups = dense(groups), all_crowd = dense(crowd),
               all_ignored = dense(ignored), all_uncounted = dense(uncounted),
               all_thresholds = dense(thresholds);
  const int64_t* bounds = data<int64_t>(all_groups);
  std::vector<int64_t> offsets(1, 0);  // of the overlaps of each group
  int64_t reached = 0;
  for (int64_t q = 0; q < groups.size(0); ++q) {
    const int64_t* bound = bounds + 4 * q;
    check(bound[0] == reached && bound[0] <= bound[1] && bound[1] <= detections, op,
          ": groups must follow each other over ", detections, " detections, got ", bound[0],
          " to ", bound[1]);
    check(bound[2] >= 0 && bound[2] <= bound[3] && bound[3] <= objects, op,
          ": groups must be within ", objects, " objects, got ", bound[2], " to ", bound[3]);
    reached = bound[1];
    offsets.push_back(offsets.back() + (bound[1] - bound[0]) * (bound[3] - bound[2]));
  }
  check(reached == detections, op, ": groups must follow each other over ", detections,
        " detections, got ", reached);
  check_shape(op, "overlaps", overlaps, {offsets.back()},
              ", one for each detection and object of a group");

  const int64_t steps = thresholds.size(0);
  const Tensor outcomes = empty(overlaps, ScalarType::Byte, {sets, steps, detections});
  auto* const outcome = mutable_data<uint8_t>(outcomes);
  const double* overlap = data<double>(all_overlaps);
  const bool* is_crowd = data<bool>(all_crowd);
  const bool *is_ignored = data<bool>(all_ignored), *is_uncounted = data<bool>(all_uncounted);
  std::vector<double> min_ious;
  for (int64_t t = 0; t < steps; ++t) {
    min_ious.push_back(std::min(data<double>(all_thresholds)[t], 1 - 1e-10));
  }
  const double lowest = steps ? *std::min_element(min_ious.begin(), min_ious.end()) : 2;
  torch::stable::parallel_for(0, sets * steps, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const bool* uncounted = is_uncounted + row / steps * detections;
      for (int64_t d = 0; d < detections; ++d) {
        outcome[row * detections + d] = uncounted[d] ? kIgnored : kFalsePositive;
      }
    }
  });
  torch::stable::parallel_for(0, groups.size(0), 64, [&](int64_t begin, int64_t end) {
    Matcher matcher;
    for (int64_t q = begin; q < end; ++q) {
      const int64_t* bound = bounds + 4 * q;
      const Group group{bound[1] - bound[0], bound[3] - bound[2], overlap + offsets[q],
                        is_crowd + bound[2]};
      if (matcher.start(group) < lowest) continue;  // most groups
      for (int64_t a = 0; a < sets; ++a) {
        matcher.order(group, is_ignored + a * objects + bound[2]);
        for (int64_t t = 0; t < steps; ++t) {
          matcher.match(group, min_ious[t], outcome + (a * steps + t) * detections + bound[0]);
        }
      }
    }
  });
  return outcomes;
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_FRAGMENT(detlite, m) {
  m.def(
      "match_detections(Tensor overlaps, Tensor groups, Tensor crowd, Tensor ignored, "
      "Tensor uncounted, Tensor thresholds) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("match_detections", TORCH_BOX(&detlite::match_detections));
}
