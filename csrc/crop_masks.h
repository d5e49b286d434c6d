// Ground-truth masks as polygons and run lengths, cropped to boxes: what host and device share.
#pragma once

#include <vector>

#include <torch/csrc/stable/ops.h>

#include "dtypes.h"
#include "iou.h"
#include "roi_align_geometry.h"

namespace detlite {

// The tensors of structures/packed_masks.py. Run lengths are kept as toggles: the flat positions,
// column by column, at which the mask changes.
struct MaskArrays {
  const double* values;
  const int64_t *pieces, *instances, *frames;
  int64_t value_count, piece_count, instance_count;
};

constexpr int kFrameSize = 6;
// In pixels: of a frame, and of the network's input, which bounds the memory.
constexpr int64_t kLongestSource = 1 << 30, kLongestTarget = 1 << 15;

// One side of an RLE's frame, and how the network's input was made from it: the source pixel that is
// nearest to each pixel's centre.
struct NearestAxis {
  int64_t source, target;
  bool flip;

  C10_HOST_DEVICE bool usable() const {
    return source >= 1 && source <= kLongestSource && target >= 1 && target <= kLongestTarget;
  }
  C10_HOST_DEVICE int64_t operator()(int64_t pixel) const {
    const int64_t from = (2 * pixel + 1) * source / (2 * target);
    return flip ? source - 1 - from : from;
  }
};
C10_HOST_DEVICE inline NearestAxis rows_of(const int64_t* frame) {
  return {frame[0], frame[4], frame[3] != 0};
}
C10_HOST_DEVICE inline NearestAxis columns_of(const int64_t* frame) {
  return {frame[1], frame[5], frame[2] != 0};
}

// ---- COCO's polygons (rleFrPoly of pycocotools' maskApi.c). Corners are rounded to a grid five times
// as fine as the cells; each edge is a chain of neighbouring points of that grid; and where it
// crosses the middle of a column of cells, all cells below change sides.

constexpr int kFine = 5;
// Corners farther out are taken as that far, NaN as far on the low side. It keeps all integers below
// 2^31, and two neighbouring points of an edge at most one apart in spite of rounding.
constexpr double kFarthest = 1 << 25;

// Cells to a pixel, in the types that numpy gives detectron2's rasterize_polygons_within_box.
C10_HOST_DEVICE inline double cells_to_pixel(float low, float high, int resolution) {
  const float side = high - low;
  return side < 0.1f ? resolution / 0.1 : double(static_cast<float>(resolution) / side);
}

C10_HOST_DEVICE inline int fine_coordinate(double pixel, double low, double scale) {
  const double fine = rounded_product(double(kFine), rounded_product(pixel - low, scale)) + 0.5;
  if (!(fine > -kFarthest)) return static_cast<int>(-kFarthest);
  return static_cast<int>(fine < kFarthest ? fine : kFarthest);
}

// A polygon's corners on the fine grid of a box.
struct FineGrid {
  double x, y, x_scale, y_scale;

  C10_HOST_DEVICE FineGrid(const float* box, int resolution)
      : x(box[0]),
        y(box[1]),
        x_scale(cells_to_pixel(box[0], box[2], resolution)),
        y_scale(cells_to_pixel(box[1], box[3], resolution)) {}
};
struct FinePoint {
  int x, y;

  C10_HOST_DEVICE FinePoint(const double* xy, const FineGrid& grid)
      : x(fine_coordinate(xy[0], grid.x, grid.x_scale)),
        y(fine_coordinate(xy[1], grid.y, grid.y_scale)) {}
};

// The other coordinate of an edge's point number `step`.
C10_HOST_DEVICE inline int along_edge(int start, double slope, int step) {
  return static_cast<int>(start + rounded_product(slope, double(step)) + 0.5);
}

// The first step of a steep edge whose point is on the far side of the line between the fine columns
// `u` and `u` + 1, which it crosses.
C10_HOST_DEVICE inline int crossing_step(int start, double slope, int steps, int u) {
  const auto crossed = [&](int step) {
    const int x = along_edge(start, slope, step);
    return slope > 0 ? x > u : x <= u;
  };
  const double guess = (u + 0.5 - start) / slope;  // off by one at most
  int step = guess < 1 ? 1 : guess < steps ? static_cast<int>(guess) : steps;
  while (step > 1 && crossed(step - 1)) --step;
  while (step < steps && !crossed(step)) ++step;
  return step;
}

// Calls toggle(column, row) for each column that the edge from `a` to `b` crosses: the cells from
// `row` on, which may be `resolution`, change sides. It takes no longer for a longer edge.
template <typename Toggle>
C10_HOST_DEVICE void cross_columns(FinePoint a, FinePoint b, int resolution, const Toggle& toggle) {
  const int dx = std::abs(b.x - a.x), dy = std::abs(b.y - a.y);
  if (dx == 0) return;
  const bool flat = dx >= dy;
  if (flat ? a.x > b.x : a.y > b.y) {
    const FinePoint other = a;
    a = b;
    b = other;
  }
  const double slope = flat ? double(b.y - a.y) / dx : double(b.x - a.x) / dy;
  const int low = a.x < b.x ? a.x : b.x, high = a.x < b.x ? b.x : a.x;
  int column = low > 2 ? (low + 2) / kFine : 0;
  for (; column < resolution && kFine * column + 3 <= high; ++column) {
    const int u = kFine * column + 2;
    int v;
    if (flat) {
      const int before = along_edge(a.y, slope, u - a.x), after = along_edge(a.y, slope, u + 1 - a.x);
      v = before < after ? before : after;
    } else {
      v = a.y + crossing_step(a.x, slope, dy, u) - 1;
    }
    const int row = v < -2 ? 0 : (v + 2) / kFine;
    toggle(column, row < resolution ? row : resolution);
  }
}

// ---- What an operator's arguments must be. Offsets are checked where they can be read.

struct CropArguments {
  Tensor values, pieces, instances, frames, index, boxes;
  int resolution;
  bool soft;

  int64_t count() const { return boxes.size(0); }
  MaskArrays masks() const {
    const auto of = [](const Tensor& x) { return static_cast<const int64_t*>(x.const_data_ptr()); };
    return {static_cast<const double*>(values.const_data_ptr()), of(pieces), of(instances),
            of(frames), values.size(0), pieces.size(0) - 1, instances.size(0) - 1};
  }
};

inline CropArguments check_crop(const char* op, const Tensor& values, const Tensor& pieces,
                                const Tensor& instances, const Tensor& frames, const Tensor& index,
                                const Tensor& boxes, int64_t resolution, bool soft) {
  constexpr int64_t most = 256;
  check(values.dim() == 1, op, ": values must have shape [V], got ", Shape{values});
  check(values.scalar_type() == ScalarType::Double, op, ": values must be float64, got ",
        dtype_name(values.scalar_type()));
  const auto check_indices = [op](const Tensor& tensor, const char* name, int64_t least) {
    check(tensor.dim() == 1 && tensor.size(0) >= least, op, ": ", name,
          " must have one dimension and at least ", least, " elements, got ", Shape{tensor});
    check(tensor.scalar_type() == ScalarType::Long, op, ": ", name, " must be int64, got ",
          dtype_name(tensor.scalar_type()));
  };
  check_indices(pieces, "pieces", 1);
  check_indices(instances, "instances", 1);
  check_indices(index, "index", 0);
  const int64_t count = instances.size(0) - 1;
  check(frames.dim() == 2 && frames.size(0) == count && frames.size(1) == kFrameSize, op,
        ": frames must have shape [", count, ", 6], a row for each of instances, got ",
        Shape{frames});
  check(frames.scalar_type() == ScalarType::Long, op, ": frames must be int64, got ",
        dtype_name(frames.scalar_type()));
  check(boxes.dim() == 2 && boxes.size(0) == index.size(0) && boxes.size(1) == 4, op,
        ": boxes must have shape [", index.size(0), ", 4], one for each of index, got ",
        Shape{boxes});
  check(is_floating(boxes.scalar_type()), op, ": boxes must be floating point, got ",
        dtype_name(boxes.scalar_type()));
  check(resolution >= 1 && resolution <= most, op, ": resolution must be from 1 to ", most,
        ", got ", resolution);
  check_count(op, "the number of boxes", boxes.size(0), 0);
  check_same_device(op, values, "values", pieces, "pieces");
  check_same_device(op, values, "values", instances, "instances");
  check_same_device(op, values, "values", frames, "frames");
  check_same_device(op, values, "values", index, "index");
  check_same_device(op, values, "values", boxes, "boxes");
  const auto dense = [](const Tensor& tensor) { return torch::stable::contiguous(tensor); };
  return {dense(values), dense(pieces), dense(instances),
          dense(frames), dense(index),
          dense(torch::stable::to(boxes, ScalarType::Float)), static_cast<int>(resolution), soft};
}

inline Tensor empty_crops(const CropArguments& arguments) {
  const int64_t shape[3] = {arguments.count(), arguments.resolution, arguments.resolution};
  return torch::stable::empty({shape, 3}, ScalarType::Float, std::nullopt,
                              arguments.boxes.device());
}

}  // namespace detlite
