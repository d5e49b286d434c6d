// Run lengths of polygons at the size of their image, as COCO rasterizes them (rleFrPoly and rleMerge
// in maskApi.c of pycocotools), without a bitmap.
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include <torch/csrc/stable/library.h>

#include "common/crop_masks.h"
#include "cpu/run_lengths.h"

namespace detlite {
namespace {

class PolygonEncoder {
 public:
  void start(int height, int width) {
    height_ = height;
    width_ = width;
    changes_.clear();
    polygons_ = 0;
  }

  // Adds a polygon to the union: the pixels inside, by the even-odd rule.
  void add(const double* begin, const double* end) {
    find_crossings(begin, end);
    polygon_.clear();
    for (const Crossing& crossing : sorted_) {
      polygon_.add(int64_t{crossing.column} * height_ + crossing.row);
    }
    ++polygons_;
    int change = 1;
    for (const int64_t position : polygon_.positions()) {
      changes_.emplace_back(position, change);
      change = -change;
    }
    if (change < 0) changes_.emplace_back(pixels(), change);
  }

  std::string encode() {
    if (polygons_ == 1) return polygon_.encode(pixels());
    std::sort(changes_.begin(), changes_.end());
    union_.clear();
    int depth = 0;  // the number of polygons that contain a pixel
    for (const auto& [position, change] : changes_) {
      if (depth == 0 || depth + change == 0) union_.add(position);
      depth += change;
    }
    return union_.encode(pixels());
  }

 private:
  struct Crossing {
    int column, row;
  };

  int64_t pixels() const { return int64_t{height_} * width_; }

  // Sorts the crossings by column and row. Most columns have two.
  void find_crossings(const double* begin, const double* end) {
    crossings_.clear();
    FinePoint from(end - 2, FineGrid());
    int low = width_, high = -1;
    for (const double* xy = begin; xy < end; xy += 2) {
      const FinePoint to(xy, FineGrid());
      cross_columns(from, to, width_, height_, [&](int column, int row) {
        crossings_.push_back({column, row});
        low = std::min(low, column);
        high = std::max(high, column);
      });
      from = to;
    }
    ends_.assign(std::max(high - low, -1) + 2, 0);
    for (const Crossing& crossing : crossings_) ++ends_[crossing.column - low + 1];
    for (size_t i = 1; i < ends_.size(); ++i) ends_[i] += ends_[i - 1];
    // ends_[i] is now the place of the next crossing of column low + i.
    sorted_.resize(crossings_.size());
    for (const Crossing& crossing : crossings_) {
      sorted_[ends_[crossing.column - low]++] = crossing;
    }
    size_t first = 0;
    for (size_t i = 0; i + 1 < ends_.size(); ++i) {
      std::sort(sorted_.begin() + first, sorted_.begin() + ends_[i],
                [](const Crossing& a, const Crossing& b) { return a.row < b.row; });
      first = ends_[i];
    }
  }

  int height_ = 0, width_ = 0, polygons_ = 0;
  std::vector<Crossing> crossings_, sorted_;
  std::vector<size_t> ends_;
  std::vector<std::pair<int64_t, int>> changes_;
  RunBoundaries polygon_, union_;
};

void check_lengths(const char* op, const char* name, const Tensor& lengths, int64_t total,
                   const char* target) {
  check(lengths.dim() == 1, op, ": ", name, " must have one dimension, got ", Shape{lengths});
  check_dtype(op, name, lengths, ScalarType::Long);
  int64_t sum = 0;
  for (int64_t i = 0; i < lengths.size(0); ++i) {
    const int64_t length = data<int64_t>(lengths)[i];
    check(length >= 0 && length <= total - sum, op, ": ", name, " must add up to the ", total, " ",
          target, ", got ", length, " at place ", i);
    sum += length;
  }
  check(sum == total, op, ": ", name, " must add up to the ", total, " ", target, ", got ", sum);
}

std::tuple<Tensor, Tensor> encode_polygons(const Tensor& corners, const Tensor& polygons,
                                           const Tensor& masks, const Tensor& sizes) {
  constexpr const char* op = "encode_polygons";
  check(corners.dim() == 2 && corners.size(1) == 2, op, ": corners must have shape [V, 2], got ",
        Shape{corners});
  check_dtype(op, "corners", corners, ScalarType::Double);
  const Tensor all_corners = torch::stable::contiguous(corners),
               all_polygons = torch::stable::contiguous(polygons),
               all_masks = torch::stable::contiguous(masks),
               all_sizes = torch::stable::contiguous(sizes);
  check_lengths(op, "polygons", all_polygons, corners.size(0), "corners");
  check_lengths(op, "masks", all_masks, polygons.size(0), "polygons");
  const int64_t count = masks.size(0);
  check_shape(op, "sizes", sizes, {count, 2}, ", (height, width) of each mask");
  check_dtype(op, "sizes", sizes, ScalarType::Long);
  const double* corner = data<double>(all_corners);
  const int64_t *corner_count = data<int64_t>(all_polygons), *ring_count = data<int64_t>(all_masks),
                *size = data<int64_t>(all_sizes);
  std::vector<int64_t> first_ring(1, 0), first_corner(1, 0);
  for (int64_t i = 0; i < count; ++i) {
    first_ring.push_back(first_ring.back() + ring_count[i]);
    check_count(op, "a height", size[2 * i], 1);
    check_count(op, "a width", size[2 * i + 1], 1);
    check(size[2 * i] * size[2 * i + 1] <= std::numeric_limits<uint32_t>::max(), op,
          ": an image of ", size[2 * i], " x ", size[2 * i + 1],
          " has too many pixels for run lengths");
  }
  for (int64_t r = 0; r < polygons.size(0); ++r) {
    first_corner.push_back(first_corner.back() + corner_count[r]);
  }
  std::vector<std::string> texts(count);
  torch::stable::parallel_for(0, count, 16, [&](int64_t first, int64_t last) {
    PolygonEncoder encoder;
    for (int64_t i = first; i < last; ++i) {
      encoder.start(static_cast<int>(size[2 * i]), static_cast<int>(size[2 * i + 1]));
      for (int64_t r = first_ring[i]; r < first_ring[i + 1]; ++r) {
        if (corner_count[r] == 0) continue;
        encoder.add(corner + 2 * first_corner[r], corner + 2 * first_corner[r + 1]);
      }
      texts[i] = encoder.encode();
    }
  });
  return join_texts(texts, corners);
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_FRAGMENT(detlite, m) {
  m.def(
      "encode_polygons(Tensor corners, Tensor polygons, Tensor masks, Tensor sizes) "
      "-> (Tensor data, Tensor ends)");
}

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("encode_polygons", TORCH_BOX(&detlite::encode_polygons));
}
