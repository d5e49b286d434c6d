// Greedy non-maximum suppression (NMS) on the CPU.
//
// The definition as scalar code, for boxes (x1, y1, x2, y2) without NaN:
//
//   float iou(float a[4], float b[4]) {
//     float width = max(min(a[2], b[2]) - max(a[0], b[0]), 0);
//     float height = max(min(a[3], b[3]) - max(a[1], b[1]), 0);
//     float areas = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]);
//     return width * height / (areas - width * height);
//   }
//
//   int nms(float boxes[][4], float scores[], int groups[], int count, float max_iou, int kept[]) {
//     std::vector<int> order(count);
//     for (int i = 0; i < count; ++i) order[i] = i;
//     std::stable_sort(order.begin(), order.end(),
//                      [=](int i, int j) { return scores[i] > scores[j]; });
//     int kept_count = 0;
//     for (int i : order) {
//       bool suppressed = false;
//       for (int k = 0; k < kept_count; ++k)
//         if (groups[kept[k]] == groups[i] && iou(boxes[kept[k]], boxes[i]) > max_iou)
//           suppressed = true;
//       if (!suppressed) kept[kept_count++] = i;
//     }
//     return kept_count;
//   }
//
// The kernel keeps the same boxes. Five changes lead from this code to the kernel:
//
// 1. Sort by score and then by group, with a radix sort (Groups). Each group is suppressed on its
//    own, and threads share the groups of all images.
// 2. Sort out boxes that overlap nothing. A candidate with NaN in its score or box is never kept;
//    boxes without an extent are kept without a comparison (has_extent()).
// 3. Compare only with boxes nearby. Kept boxes are stored in the cells of a grid, and an IoU above
//    the threshold limits how far apart the centres of two boxes can be (KeptBoxes).
// 4. Vectorize over the kept boxes of a cell, with one array per coordinate (BoxColumns). A product
//    rejects most vectors before the division (overlaps_any() in simd/box_loops.h).
// 5. Stop at the first kept box that suppresses the candidate, and begin with the candidate's own
//    cell, which most likely has it.
#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include <torch/csrc/stable/library.h>

#include "box_columns.h"
#include "common/iou.h"
#include "simd/inner_loops.h"
#include "common/nms.h"
#include "radix_sort.h"

namespace detlite {
namespace {

// True if the box can overlap another box. For boxes that are empty, inverted, or too large or too
// small for a finite positive area, iou() is never above a threshold.
template <typename T>
bool has_extent(const Box<T>& box) {
  const T area = box.area();
  return box.x2 > box.x1 && area > 0 && area < std::numeric_limits<T>::infinity();
}

// The cells of a grid along one axis.
class GridAxis {
 public:
  // Covers centres from `first` to `last` with cells of at least `side` pixels and at most
  // max_cells cells.
  GridAxis(double first, double last, double side, int max_cells) : first_(first) {
    per_pixel_ = 1 / std::max(side, (last - first) / max_cells);
    last_ = std::min(max_cells - 1, static_cast<int>((last - first) * per_pixel_));
  }

  int cells() const { return static_cast<int>(last_) + 1; }

  // Returns the nearest cell for a centre outside of the grid.
  int cell_of(double centre) const {
    return static_cast<int>(std::clamp((centre - first_) * per_pixel_, 0.0, last_));
  }

 private:
  double first_, per_pixel_, last_;
};

// The kept boxes in a grid, by their centres. If two boxes have an IoU above t, the same holds for
// their extents along each axis, so their centres are at most (1 - t) / 2t of either extent apart.
// A candidate is therefore compared only with boxes in cells within that distance.
class KeptBoxes {
 public:
  KeptBoxes(const Box<float>* boxes, int64_t count, float threshold)
      : loops_(inner_loops()), threshold_(threshold) {
    const double t = threshold * (1 - 1e-5);  // the computed IoU is rounded
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
      capacity += round_up(size, kBoxPadding);
    }
    kept_.reset(capacity);
  }

  bool suppress(const Box<float>& box) const {
    // Rounding errors of tiny areas make the distance limit meaningless.
    constexpr float tiny = 1e-30f;
    const double reach = box.area() < tiny ? kInfinity : reach_;
    const double x = centre_x(box), y = centre_y(box);
    const double reach_x = reach * (double{box.x2} - box.x1);
    const double reach_y = reach * (double{box.y2} - box.y1);
    const int left = columns_.cell_of(x - reach_x), right = columns_.cell_of(x + reach_x);
    const int top = rows_.cell_of(y - reach_y), bottom = rows_.cell_of(y + reach_y);
    // The box that suppresses a candidate is most likely in the same cell.
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
    kept_.set(cell.begin + cell.size++, box, box.area());
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
    return loops_.overlaps_any(kept_.from(cell.begin), cell.size, &box.x1, threshold_);
  }

  // Makes cells as large as the average box, and large enough to hold a vector of boxes each.
  void place_cells(const Box<float>* boxes, int64_t count) {
    constexpr int64_t min_boxes = 8 * kBoxPadding;
    if (count <= min_boxes || !std::isfinite(reach_)) return;
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
    const int max_cells = static_cast<int>(std::sqrt(static_cast<double>(count) / kBoxPadding)) + 1;
    columns_ = GridAxis(first_x, last_x, widths / static_cast<double>(count), max_cells);
    rows_ = GridAxis(first_y, last_y, heights / static_cast<double>(count), max_cells);
  }

  const InnerLoops& loops_;
  float threshold_;
  double reach_;
  GridAxis columns_{0, 0, 1, 1}, rows_{0, 0, 1, 1};
  std::vector<Cell> cells_;
  BoxColumns kept_;
};

// The same for float64, without a grid or vectors.
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

// Marks which candidates of one group are kept. Candidates are sorted by decreasing score.
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

// The candidates of one image without NaN, sorted by group, then by decreasing score.
template <typename T>
class Groups {
 public:
  void sort(const CandidateView<T>& image, int64_t count) {
    order_by_score(image, count);
    if (image.groups) {
      order_by_group(image.groups);
    } else {
      if (!order_.empty()) starts_.push_back(0);
      places_.resize(order_.size());
      std::iota(places_.begin(), places_.end(), 0);
    }
    starts_.push_back(static_cast<int64_t>(places_.size()));
    members_.reserve(places_.size());
    for (const int32_t place : places_) members_.push_back(image.boxes[order_[place]]);
    keep_.resize(places_.size());
  }

  int64_t size() const { return static_cast<int64_t>(members_.size()); }
  int count() const { return static_cast<int>(starts_.size()) - 1; }

  void suppress(int group, T threshold) {
    const int64_t begin = starts_[group];
    suppress_group(&members_[begin], starts_[group + 1] - begin, threshold, &keep_[begin]);
  }

  // Returns the candidates that suppress() kept in all groups, by decreasing score.
  std::vector<int32_t> survivors() const {
    std::vector<uint8_t> keep(keep_.size());
    for (size_t i = 0; i < keep_.size(); ++i) keep[places_[i]] = keep_[i];
    std::vector<int32_t> result;
    for (size_t i = 0; i < keep.size(); ++i) {
      if (keep[i]) result.push_back(order_[i]);
    }
    return result;
  }

 private:
  void order_by_score(const CandidateView<T>& image, int64_t count) {
    std::vector<Keyed<decltype(descending_key(T{}))>> items;
    items.reserve(count);
    for (int64_t i = 0; i < count; ++i) {
      if (image.takes_part(i)) {
        items.push_back({descending_key(image.scores[i]), static_cast<int32_t>(i)});
      }
    }
    radix_sort(items);
    order_.reserve(items.size());
    for (const auto& item : items) order_.push_back(item.item);
  }

  void order_by_group(const int64_t* groups) {
    std::vector<Keyed<uint64_t>> items;
    items.reserve(order_.size());
    for (size_t i = 0; i < order_.size(); ++i) {
      items.push_back({static_cast<uint64_t>(groups[order_[i]]), static_cast<int32_t>(i)});
    }
    radix_sort(items);
    places_.reserve(items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      if (i == 0 || items[i].key != items[i - 1].key) starts_.push_back(static_cast<int64_t>(i));
      places_.push_back(items[i].item);
    }
  }

  std::vector<int32_t> order_;   // candidates by decreasing score
  std::vector<int32_t> places_;  // indices into order_, sorted by group
  std::vector<Box<T>> members_;  // the boxes, in the order of places_
  std::vector<uint8_t> keep_;    // in the order of places_
  std::vector<int64_t> starts_;  // the first place of each group, and the end
};

// Returns the kept candidates of each image by decreasing score. Threads share first the images,
// then the groups of all images.
std::vector<std::vector<int32_t>> suppress(const Candidates& candidates, double iou_threshold) {
  const int64_t images = candidates.images, count = candidates.count;
  std::vector<std::vector<int32_t>> result(images);
  dispatch_accumulate(candidates.boxes.scalar_type(), [&](auto scalar) {
    using T = decltype(scalar);
    const CandidateView<T> all(candidates);
    const T threshold = round_down<T>(iou_threshold);
    std::vector<Groups<T>> sorted(images);
    torch::stable::parallel_for(0, images, 1, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b) sorted[b].sort(all.from(b * count), count);
    });

    std::vector<std::pair<Groups<T>*, int>> groups;
    int64_t boxes = 0;
    for (Groups<T>& image : sorted) {
      for (int g = 0; g < image.count(); ++g) groups.emplace_back(&image, g);
      boxes += image.size();
    }
    constexpr int64_t boxes_per_thread = 2048;
    const auto group_count = static_cast<int64_t>(groups.size());
    const int64_t grain =
        std::max<int64_t>(1, group_count * boxes_per_thread / std::max<int64_t>(1, boxes));
    torch::stable::parallel_for(0, group_count, grain, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) groups[i].first->suppress(groups[i].second, threshold);
    });
    for (int64_t b = 0; b < images; ++b) result[b] = sorted[b].survivors();
  });
  return result;
}

Tensor suppress_one_image(const char*, const Candidates& candidates, double iou_threshold) {
  const std::vector<int32_t> kept = suppress(candidates, iou_threshold).front();
  const Tensor result =
      empty(candidates.boxes, ScalarType::Long, {static_cast<int64_t>(kept.size())});
  std::copy(kept.begin(), kept.end(), mutable_data<int64_t>(result));
  return result;
}

void suppress_padded(const Candidates& candidates, double iou_threshold, const Tensor& index,
                     const Tensor& kept) {
  const int64_t limit = index.size(1);
  auto* next_index = mutable_data<int64_t>(index);
  auto* next_kept = mutable_data<bool>(kept);
  for (const std::vector<int32_t>& survivors : suppress(candidates, iou_threshold)) {
    const int64_t count = std::min(limit, static_cast<int64_t>(survivors.size()));
    next_index = std::fill_n(std::copy_n(survivors.begin(), count, next_index), limit - count, 0);
    next_kept = std::fill_n(std::fill_n(next_kept, count, true), limit - count, false);
  }
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_FRAGMENT(detlite, m) {
  m.def("nms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor");
  m.def("batched_nms(Tensor boxes, Tensor scores, Tensor idxs, float iou_threshold) -> Tensor");
  m.def(
      "padded_nms(Tensor boxes, Tensor scores, Tensor groups, Tensor valid, float iou_threshold, "
      "int limit) -> (Tensor index, Tensor kept)");
}

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("nms", TORCH_BOX(&detlite::nms<detlite::suppress_one_image>));
  m.impl("batched_nms", TORCH_BOX(&detlite::batched_nms<detlite::suppress_one_image>));
  m.impl("padded_nms", TORCH_BOX(&detlite::padded_nms<detlite::suppress_padded>));
}
