// The precision and recall tables of COCO's evaluation (accumulate in cocoeval.py of pycocotools),
// from the outcomes of match_detections.
#include <algorithm>
#include <limits>
#include <vector>

#include <torch/csrc/stable/library.h>

#include "common/tensors.h"
#include "evaluation/match_outcome.h"
#include "cpu/radix_sort.h"

namespace detlite {
namespace {

struct Tables {
  int64_t areas, thresholds, detections, categories, recalls, limits;
  const uint8_t* outcomes;  // [areas, thresholds, detections]
  const double* scores;     // [detections]
  const int64_t* ranks;     // [detections]
  const int64_t* ends;      // [categories], of the detections of each category
  const int64_t* positives;  // [areas, categories]
  const int64_t* limit;      // [limits]
  const double* recall_thresholds;  // [recalls]
  int64_t max_dets;
  double* precision;  // [thresholds, recalls, categories, areas]
  double* recall;     // [thresholds, categories, areas, limits]
};

class CategoryTables {
 public:
  explicit CategoryTables(const Tables& tables) : t_(tables), hits_(tables.limits) {}

  void compute(int64_t category) {
    const int64_t begin = category ? t_.ends[category - 1] : 0;
    sort_by_score(begin, t_.ends[category]);
    for (int64_t area = 0; area < t_.areas; ++area) {
      const int64_t positives = t_.positives[area * t_.categories + category];
      for (int64_t threshold = 0; threshold < t_.thresholds; ++threshold) {
        if (positives > 0) {
          count(t_.outcomes + (area * t_.thresholds + threshold) * t_.detections + begin);
        }
        write(threshold, category, area, positives);
      }
    }
  }

 private:
  void sort_by_score(int64_t begin, int64_t end) {
    order_.clear();
    for (int64_t d = begin; d < end; ++d) {
      order_.push_back({descending_key(t_.scores[d]), static_cast<int32_t>(d - begin)});
    }
    if (!order_.empty()) radix_sort(order_);
    ranks_.clear();
    for (const auto& item : order_) ranks_.push_back(t_.ranks[begin + item.item]);
  }

  // Counts the true positives within each limit, and the precision at each of them.
  void count(const uint8_t* outcomes) {
    std::fill(hits_.begin(), hits_.end(), 0);
    precisions_.clear();
    int64_t counted = 0;
    for (size_t i = 0; i < order_.size(); ++i) {
      const uint8_t outcome = outcomes[order_[i].item];
      const bool within = ranks_[i] < t_.max_dets;
      counted += within && outcome != kIgnored;
      if (outcome != kTruePositive) continue;
      for (int64_t m = 0; m < t_.limits; ++m) hits_[m] += ranks_[i] < t_.limit[m];
      if (!within) continue;
      // pycocotools adds the smallest difference to avoid a division by zero.
      const double hits = static_cast<double>(precisions_.size() + 1);
      precisions_.push_back(hits / (static_cast<double>(counted) +
                                    std::numeric_limits<double>::epsilon()));
    }
    for (size_t h = precisions_.size(); h-- > 1;) {
      precisions_[h - 1] = std::max(precisions_[h - 1], precisions_[h]);
    }
  }

  void write(int64_t threshold, int64_t category, int64_t area, int64_t positives) {
    double* recall =
        t_.recall + ((threshold * t_.categories + category) * t_.areas + area) * t_.limits;
    for (int64_t m = 0; m < t_.limits; ++m) {
      recall[m] = positives ? static_cast<double>(hits_[m]) / static_cast<double>(positives) : -1;
    }
    size_t hit = 0;
    for (int64_t r = 0; r < t_.recalls; ++r) {
      double value = -1;
      if (positives) {
        const auto reached = [&](size_t h) {
          return static_cast<double>(h + 1) / static_cast<double>(positives);
        };
        while (hit < precisions_.size() && reached(hit) < t_.recall_thresholds[r]) ++hit;
        value = hit < precisions_.size() ? precisions_[hit] : 0;
      }
      t_.precision[((threshold * t_.recalls + r) * t_.categories + category) * t_.areas + area] =
          value;
    }
  }

  const Tables& t_;
  std::vector<Keyed<uint64_t>> order_;
  std::vector<int64_t> ranks_, hits_;
  std::vector<double> precisions_;
};

std::tuple<Tensor, Tensor> precision_recall(const Tensor& outcomes, const Tensor& scores,
                                            const Tensor& ranks, const Tensor& ends,
                                            const Tensor& positives, const Tensor& limits,
                                            const Tensor& recall_thresholds, int64_t max_dets) {
  constexpr const char* op = "precision_recall";
  check(outcomes.dim() == 3, op, ": outcomes must have shape [A, T, D], got ", Shape{outcomes});
  check_dtype(op, "outcomes", outcomes, ScalarType::Byte);
  const auto check_vector = [op](const char* name, const Tensor& tensor, ScalarType type) {
    check(tensor.dim() == 1, op, ": ", name, " must have one dimension, got ", Shape{tensor});
    check_dtype(op, name, tensor, type);
  };
  const int64_t areas = outcomes.size(0), thresholds = outcomes.size(1),
                detections = outcomes.size(2), categories = ends.dim() == 1 ? ends.size(0) : 0;
  check_vector("scores", scores, ScalarType::Double);
  check_vector("ranks", ranks, ScalarType::Long);
  check_vector("ends", ends, ScalarType::Long);
  check_vector("limits", limits, ScalarType::Long);
  check_vector("recall_thresholds", recall_thresholds, ScalarType::Double);
  check_shape(op, "scores", scores, {detections}, ", one for each of outcomes");
  check_shape(op, "ranks", ranks, {detections}, ", one for each of outcomes");
  check_shape(op, "positives", positives, {areas, categories}, ", a column for each of ends");
  check_dtype(op, "positives", positives, ScalarType::Long);
  check_count(op, "the number of detections", detections, 0);

  const auto dense = [](const Tensor& tensor) { return torch::stable::contiguous(tensor); };
  const Tensor all_outcomes = dense(outcomes), all_scores = dense(scores), all_ranks = dense(ranks),
               all_ends = dense(ends), all_positives = dense(positives), all_limits = dense(limits),
               all_recalls = dense(recall_thresholds);
  for (int64_t k = 0; k <= categories; ++k) {
    const int64_t begin = k ? data<int64_t>(all_ends)[k - 1] : 0;
    const int64_t end = k < categories ? data<int64_t>(all_ends)[k] : detections;
    check(begin <= end && (k < categories || begin == end), op, ": ends must increase to the ",
          detections, " detections, got ", k < categories ? end : begin);
  }
  const int64_t recalls = recall_thresholds.size(0), limit_count = limits.size(0);
  const Tensor precision =
      empty(scores, ScalarType::Double, {thresholds, recalls, categories, areas});
  const Tensor recall =
      empty(scores, ScalarType::Double, {thresholds, categories, areas, limit_count});
  const Tables tables{areas, thresholds, detections, categories, recalls, limit_count,
                      data<uint8_t>(all_outcomes), data<double>(all_scores),
                      data<int64_t>(all_ranks), data<int64_t>(all_ends),
                      data<int64_t>(all_positives), data<int64_t>(all_limits),
                      data<double>(all_recalls), max_dets, mutable_data<double>(precision),
                      mutable_data<double>(recall)};
  torch::stable::parallel_for(0, categories, 1, [&](int64_t first, int64_t last) {
    CategoryTables category(tables);
    for (int64_t k = first; k < last; ++k) category.compute(k);
  });
  return {precision, recall};
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_FRAGMENT(detlite, m) {
  m.def(
      "precision_recall(Tensor outcomes, Tensor scores, Tensor ranks, Tensor ends, "
      "Tensor positives, Tensor limits, Tensor recall_thresholds, int max_dets) "
      "-> (Tensor precision, Tensor recall)");
}

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("precision_recall", TORCH_BOX(&detlite::precision_recall));
}
