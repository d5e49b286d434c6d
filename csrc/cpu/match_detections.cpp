// COCO's matching of detections to ground-truth objects (evaluateImg in cocoeval.py of
// pycocotools), for several IoU thresholds and several sets of ignored objects.
#include <algorithm>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "common/checks.h"

namespace detlite {
namespace {

enum Outcome : uint8_t { kFalsePositive, kTruePositive, kIgnored };

// The detections of one image and category by decreasing score, and its objects.
struct Group {
  int64_t detections, objects;
  const double* overlaps;  // [detections, objects]
  const bool* crowd;       // [objects]
};

class Matcher {
 public:
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

  void match(const Group& group, double threshold, const bool* uncounted, uint8_t* outcomes) {
    matched_.assign(group.objects, 0);
    for (int64_t d = 0; d < group.detections; ++d) {
      const double* overlaps = group.overlaps + d * group.objects;
      double min_iou = std::min(threshold, 1 - 1e-10);
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
      else outcomes[d] = uncounted[d] ? kIgnored : kFalsePositive;
    }
  }

 private:
  std::vector<int64_t> order_;
  size_t counted_ = 0;
  std::vector<uint8_t> matched_;
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

  const Tensor outcomes = empty(overlaps, ScalarType::Byte, {sets, thresholds.size(0), detections});
  auto* const outcome = mutable_data<uint8_t>(outcomes);
  const double *overlap = data<double>(all_overlaps), *threshold = data<double>(all_thresholds);
  const bool* is_crowd = data<bool>(all_crowd);
  const bool *is_ignored = data<bool>(all_ignored), *is_uncounted = data<bool>(all_uncounted);
  torch::stable::parallel_for(0, groups.size(0), 64, [&](int64_t begin, int64_t end) {
    Matcher matcher;
    for (int64_t q = begin; q < end; ++q) {
      const int64_t *bound = bounds + 4 * q, first = bound[0];
      const Group group{bound[1] - first, bound[3] - bound[2], overlap + offsets[q],
                        is_crowd + bound[2]};
      for (int64_t a = 0; a < sets; ++a) {
        matcher.order(group, is_ignored + a * objects + bound[2]);
        for (int64_t t = 0; t < thresholds.size(0); ++t) {
          matcher.match(group, threshold[t], is_uncounted + a * detections + first,
                        outcome + (a * thresholds.size(0) + t) * detections + first);
        }
      }
    }
  });
  return outcomes;
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("match_detections", TORCH_BOX(&detlite::match_detections));
}
