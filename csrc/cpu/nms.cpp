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

// One direction of a grid: where along it a centre lies.
class GridAxis {
 public:
  // Cells of `side` pixels and at most `most` of them, for centres from `first` to `last`.
  GridAxis(double first, double last, double side, int most) : first_(first) {
    per_pixel_ = 1 / std::max(side, (last - first) / most);
    last_ = std::min(most - 1, static_cast<int>((last - first) * per_pixel_));
  }

  int cells() const { return static_cast<int>(last_) + 1; }

  // The nearest cell where the centre lies outside.
  int cell_of(double centre) const {
    return static_cast<int>(std::clamp((centre - first_) * per_pixel_, 0.0, last_));
  }

 private:
  double first_, per_pixel_, last_;
};

// The kept boxes, in a grid by their centres. Two boxes overlap by more than t only if their extents
// along either axis do, so their centres are no further apart there than (1 - t) / 2t of either's
// extent, and a candidate meets the cells within that reach alone.
class KeptBoxes {
 public:
  KeptBoxes(const Box<float>* boxes, int64_t count, float threshold)
      : loops_(loops()), threshold_(threshold) {
    const double t = threshold * (1 - 1e-5);  // the overlap is a rounded quotient
    reach_ = t > 1e-3 ? std::max(0.0, (1 - t) / (2 * t)) : kInfinity;
    place_cells(boxes, count);

    std::vector<int32_t> sizes(rows_.cells() * columns_.cells());
    for (int64_t i = 0; i < count; ++i) {
      if (has_extent(boxes[i])) ++sizes[cell_of(boxes[i])];
    }
    int64_t capacity = 0;
    cells_.reserve(sizes.size());
    for (const int64_t size : sizes) {
      cells_.push_back({capacity, 0});
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
    const double reach = box.area() < coarse ? kInfinity : reach_;
    const double x = centre_x(box), y = centre_y(box);
    const double reach_x = reach * (double{box.x2} - box.x1);
    const double reach_y = reach * (double{box.y2} - box.y1);
    const int left = columns_.cell_of(x - reach_x), right = columns_.cell_of(x + reach_x);
    const int top = rows_.cell_of(y - reach_y), bottom = rows_.cell_of(y + reach_y);
    // What suppresses a box most likely shares its cell.
    const int own = cell_of(box);
    if (overlaps_any(own, box)) return true;
    for (int row = top; row <= bottom; ++row) {
      for (int column = left; column <= right; ++column) {
        const int cell = row * columns_.cells() + column;
        if (cell != own && overlaps_any(cell, box)) return true;
      }
    }
    return false;
  }

  void add(const Box<float>& box) {
    Cell& cell = cells_[cell_of(box)];
    const int64_t at = cell.begin + cell.size++;
    x1_[at] = box.x1;
    y1_[at] = box.y1;
    x2_[at] = box.x2;
    y2_[at] = box.y2;
    area_[at] = box.area();
  }

 private:
  struct Cell {
    int64_t begin, size;
  };

  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  static double centre_x(const Box<float>& box) { return (double{box.x1} + box.x2) / 2; }
  static double centre_y(const Box<float>& box) { return (double{box.y1} + box.y2) / 2; }

  int cell_of(const Box<float>& box) const {
    return rows_.cell_of(centre_y(box)) * columns_.cells() + columns_.cell_of(centre_x(box));
  }

  bool overlaps_any(int index, const Box<float>& box) const {
    const Cell& cell = cells_[index];
    if (cell.size == 0) return false;
    const int64_t at = cell.begin;
    const BoxArrays kept{&x1_[at], &y1_[at], &x2_[at], &y2_[at], &area_[at]};
    return loops_.overlaps_any(kept, cell.size, &box.x1, threshold_);
  }

  // Cells as large as a box is on average, and no more than hold a vector of boxes each.
  void place_cells(const Box<float>* boxes, int64_t count) {
    constexpr int64_t worthwhile = 8 * kBoxPadding;
    if (count <= worthwhile || !std::isfinite(reach_)) return;
    double first_x = kInfinity, first_y = kInfinity, last_x = -kInfinity, last_y = -kInfinity;
    double widths = 0, heights = 0;
    for (int64_t i = 0; i < count; ++i) {
      const Box<float>& box = boxes[i];
      if (!has_extent(box)) continue;
      first_x = std::min(first_x, centre_x(box));
      first_y = std::min(first_y, centre_y(box));
      last_x = std::max(last_x, centre_x(box));
      last_y = std::max(last_y, centre_y(box));
      widths += double{box.x2} - box.x1;
      heights += double{box.y2} - box.y1;
    }
    if (!(widths > 0)) return;
    const int most = static_cast<int>(std::sqrt(static_cast<double>(count) / kBoxPadding)) + 1;
    columns_ = GridAxis(first_x, last_x, widths / static_cast<double>(count), most);
    rows_ = GridAxis(first_y, last_y, heights / static_cast<double>(count), most);
  }

  const Loops& loops_;
  float threshold_;
  double reach_;
  GridAxis columns_{0, 0, 1, 1}, rows_{0, 0, 1, 1};
  std::vector<Cell> cells_;
  std::vector<float> x1_, y1_, x2_, y2_, area_;
};

// The same without a grid or vectors: double is for checking, not for speed.
class KeptDoubleBoxes {
 public:
  KeptDoubleBoxes(const Box<double>*, int64_t, double threshold) : threshold_(threshold) {}

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

// Marks the survivors among the candidates of one group, best first.
template <typename T>
void suppress_group(const Box<T>* boxes, int64_t count, T threshold, uint8_t* keep) {
  using Kept = std::conditional_t<std::is_same_v<T, double>, KeptDoubleBoxes, KeptBoxes>;
  Kept kept(boxes, count, threshold);
  for (int64_t i = 0; i < count; ++i) {
    if (!has_extent(boxes[i])) {
      keep[i] = 1;
    } else if (!kept.suppress(boxes[i])) {
      keep[i] = 1;
      kept.add(boxes[i]);
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

// The survivors of each group among the boxes, `idxs` naming theirs, best first.
template <typename T>
void suppress_groups(const std::vector<Box<T>>& boxes, const std::vector<int64_t>& idxs,
                     T threshold, uint8_t* keep) {
  std::vector<Keyed<uint64_t>> items;
  items.reserve(boxes.size());
  for (size_t i = 0; i < boxes.size(); ++i) {
    items.push_back({static_cast<uint64_t>(idxs[i]), static_cast<int32_t>(i)});
  }
  radix_sort(items);
  std::vector<Box<T>> members;
  std::vector<int64_t> starts;
  members.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    if (i == 0 || items[i].key != items[i - 1].key) starts.push_back(static_cast<int64_t>(i));
    members.push_back(boxes[items[i].item]);
  }
  const int64_t groups = static_cast<int64_t>(starts.size());
  starts.push_back(static_cast<int64_t>(items.size()));
  constexpr int64_t boxes_per_thread = 2048;
  const int64_t grain =
      std::max<int64_t>(1, groups * boxes_per_thread / std::max<int64_t>(1, starts.back()));
  std::vector<uint8_t> kept(items.size());
  torch::stable::parallel_for(0, groups, grain, [&](int64_t first, int64_t last) {
    for (int64_t g = first; g < last; ++g) {
      suppress_group(&members[starts[g]], starts[g + 1] - starts[g], threshold, &kept[starts[g]]);
    }
  });
  for (size_t i = 0; i < items.size(); ++i) keep[items[i].item] = kept[i];
}

Tensor suppress(const Candidates& candidates, double iou_threshold) {
  Tensor result;
  dispatch_accumulate(candidates.boxes.scalar_type(), [&](auto scalar) {
    using T = decltype(scalar);
    const auto* boxes = static_cast<const Box<T>*>(candidates.boxes.const_data_ptr());
    const auto* scores = static_cast<const T*>(candidates.scores.const_data_ptr());
    const T threshold = round_down<T>(iou_threshold);
    const std::vector<int32_t> order = order_by_score(boxes, scores, candidates.count());
    const auto in_order = [&order](const auto* values) {
      std::vector<std::decay_t<decltype(*values)>> ordered;
      ordered.reserve(order.size());
      for (const int32_t i : order) ordered.push_back(values[i]);
      return ordered;
    };
    const std::vector<Box<T>> ordered = in_order(boxes);
    std::vector<uint8_t> keep(order.size());
    if (candidates.idxs) {
      const auto* idxs = static_cast<const int64_t*>(candidates.idxs->const_data_ptr());
      suppress_groups(ordered, in_order(idxs), threshold, keep.data());
    } else {
      suppress_group(ordered.data(), static_cast<int64_t>(ordered.size()), threshold, keep.data());
    }
    result = empty_indices(candidates.boxes, std::count(keep.begin(), keep.end(), 1));
    auto* kept = static_cast<int64_t*>(result.mutable_data_ptr());
    for (size_t i = 0; i < keep.size(); ++i) {
      if (keep[i]) *kept++ = order[i];
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
