// Greedy non-maximum suppression on the CPU: each candidate, best first, against the boxes kept so
// far. A candidate with a NaN in its score or box is never kept; equal scores keep the lower index.
#include <algorithm>
#include <limits>
#include <vector>

#include <torch/csrc/stable/library.h>

#include "iou.h"
#include "loops.h"
#include "nms.h"
#include "radix_sort.h"

namespace detlite {
namespace {

// Whether the box can overlap any other at all. The rest (without extent, inverted, or so large or
// small that their area is not a number) have no overlap above any threshold, by the arithmetic
// of iou().
template <typename T>
bool has_extent(const Box<T>& box) {
  const T area = box.area();
  return box.x2 > box.x1 && area > 0 && area < std::numeric_limits<T>::infinity();
}

// The kept boxes, in bands by the height of their centres. Two boxes overlap by more than t only if
// their extents along an axis do, so their centres are no further apart than (1 - t) / 2t of
// either's height, and a candidate meets the bands within that reach alone.
class KeptBoxes {
 public:
  KeptBoxes(const Box<float>* boxes, const int32_t* members, int64_t count, float threshold)
      : loops_(loops()), threshold_(threshold) {
    const double t = threshold * (1 - 1e-5);  // the overlap is a rounded quotient
    reach_ = t > 1e-3 ? std::max(0.0, (1 - t) / (2 * t)) : std::numeric_limits<double>::infinity();

    double heights = 0, last = -std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < count; ++i) {
      const Box<float>& box = boxes[members[i]];
      if (!has_extent(box)) continue;
      first_ = std::min(first_, centre(box));
      last = std::max(last, centre(box));
      heights += double{box.y2} - box.y1;
    }
    constexpr int64_t worthwhile = 8 * kBoxPadding, most = 1024;
    if (count > worthwhile && heights > 0 && std::isfinite(reach_)) {
      const double height = std::max(heights / static_cast<double>(count), (last - first_) / most);
      bands_per_pixel_ = 1 / height;
    }
    const int bands = last > first_ ? static_cast<int>((last - first_) * bands_per_pixel_) + 1 : 1;
    last_band_ = bands - 1;

    std::vector<int64_t> sizes(bands);
    for (int64_t i = 0; i < count; ++i) {
      const Box<float>& box = boxes[members[i]];
      if (has_extent(box)) ++sizes[band_of(centre(box))];
    }
    int64_t capacity = 0;
    for (const int64_t size : sizes) {
      bands_.push_back({capacity, 0});
      capacity += (size + kBoxPadding - 1) / kBoxPadding * kBoxPadding;
    }
    constexpr float infinity = std::numeric_limits<float>::infinity();
    x1_.assign(capacity, infinity);
    y1_.assign(capacity, infinity);
    x2_.assign(capacity, -infinity);
    y2_.assign(capacity, -infinity);
    area_.assign(capacity, 1);
  }

  bool suppress(const Box<float>& box) const {
    // In the smallest of areas, rounding is coarse and the reach means nothing.
    constexpr float coarse = 1e-30f;
    const double reach = box.area() < coarse ? std::numeric_limits<double>::infinity()
                                             : reach_ * (double{box.y2} - box.y1);
    const int end = band_of(centre(box) + reach);
    for (int b = band_of(centre(box) - reach); b <= end; ++b) {
      const int64_t at = bands_[b].begin;
      const BoxArrays kept{&x1_[at], &y1_[at], &x2_[at], &y2_[at], &area_[at]};
      if (bands_[b].size > 0 && loops_.overlaps_any(kept, bands_[b].size, &box.x1, threshold_)) {
        return true;
      }
    }
    return false;
  }

  void add(const Box<float>& box) {
    Band& band = bands_[band_of(centre(box))];
    const int64_t at = band.begin + band.size++;
    x1_[at] = box.x1;
    y1_[at] = box.y1;
    x2_[at] = box.x2;
    y2_[at] = box.y2;
    area_[at] = box.area();
  }

 private:
  struct Band {
    int64_t begin, size;
  };

  static double centre(const Box<float>& box) { return (double{box.y1} + box.y2) / 2; }

  int band_of(double y) const {
    const double band = (y - first_) * bands_per_pixel_;
    return band > 0 ? (band < last_band_ ? static_cast<int>(band) : last_band_) : 0;
  }

  const Loops& loops_;
  float threshold_;
  double reach_, first_ = std::numeric_limits<double>::infinity();
  double bands_per_pixel_ = 0;
  int last_band_ = 0;
  std::vector<Band> bands_;
  std::vector<float> x1_, y1_, x2_, y2_, area_;
};

// The same without bands or vectors: double is for checking, not for speed.
class KeptDoubleBoxes {
 public:
  KeptDoubleBoxes(const Box<double>*, const int32_t*, int64_t, double threshold)
      : threshold_(threshold) {}

  bool suppress(const Box<double>& box) const {
    return std::any_of(kept_.begin(), kept_.end(), [&](const Box<double>& other) {
      return iou(other, other.area(), box, box.area()) > threshold_;
    });
  }
  void add(const Box<double>& box) { kept_.push_back(box); }

 private:
  double threshold_;
  std::vector<Box<double>> kept_;
};

// Marks the survivors among the candidates of one group, `members` best first.
template <typename T>
void suppress_group(const Box<T>* boxes, const int32_t* members, int64_t count, T threshold,
                    uint8_t* keep) {
  using Kept = std::conditional_t<std::is_same_v<T, double>, KeptDoubleBoxes, KeptBoxes>;
  Kept kept(boxes, members, count, threshold);
  for (int64_t i = 0; i < count; ++i) {
    const Box<T>& box = boxes[members[i]];
    if (!has_extent(box)) {
      keep[members[i]] = 1;
    } else if (!kept.suppress(box)) {
      keep[members[i]] = 1;
      kept.add(box);
    }
  }
}

// The candidates without NaN, best first.
template <typename T>
std::vector<int32_t> order_by_score(const Box<T>* boxes, const T* scores, int64_t count) {
  std::vector<Keyed<decltype(descending_key(T{}))>> items;
  items.reserve(count);
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isnan(scores[i]) && !boxes[i].has_nan()) {
      items.push_back({descending_key(scores[i]), static_cast<int32_t>(i)});
    }
  }
  radix_sort(items);
  std::vector<int32_t> order;
  order.reserve(items.size());
  for (const auto& item : items) order.push_back(item.item);
  return order;
}

template <typename T>
void suppress_groups(const Box<T>* boxes, const std::vector<int32_t>& order, const int64_t* idxs,
                     T threshold, uint8_t* keep) {
  std::vector<Keyed<uint64_t>> items;
  items.reserve(order.size());
  for (const int32_t i : order) items.push_back({static_cast<uint64_t>(idxs[i]), i});
  radix_sort(items);
  std::vector<int32_t> members;
  std::vector<int64_t> starts;
  members.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    if (i == 0 || items[i].key != items[i - 1].key) starts.push_back(static_cast<int64_t>(i));
    members.push_back(items[i].item);
  }
  const int64_t groups = static_cast<int64_t>(starts.size());
  starts.push_back(static_cast<int64_t>(items.size()));
  constexpr int64_t boxes_per_thread = 2048;
  const int64_t grain =
      std::max<int64_t>(1, groups * boxes_per_thread / std::max<int64_t>(1, starts.back()));
  torch::stable::parallel_for(0, groups, grain, [&](int64_t first, int64_t last) {
    for (int64_t g = first; g < last; ++g) {
      suppress_group(boxes, members.data() + starts[g], starts[g + 1] - starts[g], threshold, keep);
    }
  });
}

Tensor suppress(const Candidates& candidates, double iou_threshold) {
  Tensor result;
  dispatch_accumulate(candidates.boxes.scalar_type(), [&](auto scalar) {
    using T = decltype(scalar);
    const auto* boxes = static_cast<const Box<T>*>(candidates.boxes.const_data_ptr());
    const auto* scores = static_cast<const T*>(candidates.scores.const_data_ptr());
    const T threshold = round_down<T>(iou_threshold);
    const std::vector<int32_t> order = order_by_score(boxes, scores, candidates.count());
    std::vector<uint8_t> keep(candidates.count());
    if (candidates.idxs) {
      const auto* idxs = static_cast<const int64_t*>(candidates.idxs->const_data_ptr());
      suppress_groups(boxes, order, idxs, threshold, keep.data());
    } else {
      suppress_group(boxes, order.data(), static_cast<int64_t>(order.size()), threshold,
                     keep.data());
    }
    result = empty_indices(candidates.boxes, std::count(keep.begin(), keep.end(), 1));
    auto* kept = static_cast<int64_t*>(result.mutable_data_ptr());
    for (const int32_t i : order) {
      if (keep[i]) *kept++ = i;
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
