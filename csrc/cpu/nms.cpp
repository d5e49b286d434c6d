// Greedy non-maximum suppression on the CPU: each candidate, best first, against the boxes kept so
// far. A candidate with a NaN in its score or box is never kept; equal scores keep the lower index.
#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include <torch/csrc/stable/library.h>

#include "iou.h"
#include "nms.h"

namespace detlite {
namespace {

// Kept boxes are tested this many at a time, without a branch between them.
constexpr int kLanes = 16;

// The kept boxes of one group, coordinate by coordinate.
template <typename T>
class KeptBoxes {
 public:
  explicit KeptBoxes(size_t capacity) {
    // The lanes past the end hold boxes that nothing overlaps.
    const size_t padded = capacity + kLanes;
    constexpr T infinity = std::numeric_limits<T>::infinity();
    x1_.assign(padded, infinity);
    y1_.assign(padded, infinity);
    x2_.assign(padded, -infinity);
    y2_.assign(padded, -infinity);
    area_.assign(padded, T(1));
  }

  size_t size() const { return size_; }

  void add(const Box<T>& box) {
    x1_[size_] = box.x1;
    y1_[size_] = box.y1;
    x2_[size_] = box.x2;
    y2_[size_] = box.y2;
    area_[size_++] = box.area();
  }

  // Whether any kept box from number `first` on overlaps this one by more than the threshold.
  bool suppress(const Box<T>& box, T threshold, size_t first) const {
    const T area = box.area();
    for (size_t block = first / kLanes * kLanes; block < size_; block += kLanes) {
      int hit = 0;
      for (size_t i = block; i < block + kLanes; ++i) {
        hit |= iou({x1_[i], y1_[i], x2_[i], y2_[i]}, area_[i], box, area) > threshold;
      }
      if (hit) return true;
    }
    return false;
  }

 private:
  std::vector<T> x1_, y1_, x2_, y2_, area_;
  size_t size_ = 0;
};

// Marks the survivors among candidates of one group: `ranks` best first, keep[rank] set to 1.
// Blocks of candidates meet the boxes kept before them in parallel, then each other in order.
template <typename T>
void suppress_group(const Box<T>* boxes, const int64_t* order, const int64_t* ranks, int64_t count,
                    T threshold, uint8_t* keep) {
  constexpr int64_t block_size = 512, grain = 64;
  KeptBoxes<T> kept(count);
  for (int64_t begin = 0; begin < count; begin += block_size) {
    const int64_t end = std::min(begin + block_size, count);
    torch::stable::parallel_for(begin, end, grain, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        keep[ranks[i]] = !kept.suppress(boxes[order[ranks[i]]], threshold, 0);
      }
    });
    const size_t kept_before = kept.size();
    for (int64_t i = begin; i < end; ++i) {
      if (!keep[ranks[i]]) continue;
      const Box<T>& box = boxes[order[ranks[i]]];
      if (kept.suppress(box, threshold, kept_before)) {
        keep[ranks[i]] = 0;
      } else {
        kept.add(box);
      }
    }
  }
}

template <typename T>
std::vector<int64_t> order_by_score(const Box<T>* boxes, const T* scores, int64_t count) {
  std::vector<int64_t> order;
  order.reserve(count);
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isnan(scores[i]) && !boxes[i].has_nan()) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [scores](int64_t a, int64_t b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
  });
  return order;
}

template <typename T>
std::vector<uint8_t> survivors(const Box<T>* boxes, const std::vector<int64_t>& order,
                               const int64_t* idxs, T threshold) {
  const int64_t count = static_cast<int64_t>(order.size());
  std::vector<uint8_t> keep(order.size());
  std::vector<int64_t> ranks(order.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  if (!idxs) {
    suppress_group(boxes, order.data(), ranks.data(), count, threshold, keep.data());
    return keep;
  }
  const auto group = [&](int64_t rank) { return idxs[order[rank]]; };
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](int64_t a, int64_t b) { return group(a) < group(b); });
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < count; ++i) {
    if (i == 0 || group(ranks[i]) != group(ranks[i - 1])) starts.push_back(i);
  }
  const int64_t groups = static_cast<int64_t>(starts.size());
  starts.push_back(count);
  const auto run = [&](int64_t first, int64_t last) {
    for (int64_t g = first; g < last; ++g) {
      suppress_group(boxes, order.data(), ranks.data() + starts[g], starts[g + 1] - starts[g],
                     threshold, keep.data());
    }
  };
  // A single group leaves the threads to the candidates within it.
  if (groups == 1) {
    run(0, 1);
  } else {
    torch::stable::parallel_for(0, groups, 1, run);
  }
  return keep;
}

Tensor suppress(const Candidates& candidates, double iou_threshold) {
  Tensor result;
  dispatch_accumulate(candidates.boxes.scalar_type(), [&](auto scalar) {
    using T = decltype(scalar);
    const auto* boxes = static_cast<const Box<T>*>(candidates.boxes.const_data_ptr());
    const auto* scores = static_cast<const T*>(candidates.scores.const_data_ptr());
    const auto* idxs = candidates.idxs
                           ? static_cast<const int64_t*>(candidates.idxs->const_data_ptr())
                           : nullptr;
    const std::vector<int64_t> order = order_by_score(boxes, scores, candidates.count());
    const std::vector<uint8_t> keep = survivors(boxes, order, idxs, round_down<T>(iou_threshold));
    result = empty_indices(candidates.boxes, std::count(keep.begin(), keep.end(), 1));
    auto* kept = static_cast<int64_t*>(result.mutable_data_ptr());
    for (size_t rank = 0; rank < order.size(); ++rank) {
      if (keep[rank]) *kept++ = order[rank];
    }
  });
  return result;
}

Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
  return suppress(check_candidates("nms", boxes, scores, std::nullopt, iou_threshold),
                  iou_threshold);
}

Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                   double iou_threshold) {
  return suppress(check_candidates("batched_nms", boxes, scores, idxs, iou_threshold),
                  iou_threshold);
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("nms", TORCH_BOX(&detlite::nms));
  m.impl("batched_nms", TORCH_BOX(&detlite::batched_nms));
}
