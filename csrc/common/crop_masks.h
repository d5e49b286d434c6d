// Cropping of ground-truth masks (polygons and run lengths) to boxes: arguments and geometry.
#pragma once

#include "common/tensors.h"
#include "common/iou.h"
#include "common/roi_geometry.h"

namespace detlite {

// The tensors of PackedMasks in detlite/structures. Run lengths are stored as run boundaries: the
// flat column-major positions at which the mask changes.
struct MaskArrays {
  const double* values;
  const int64_t *pieces, *instances, *frames;
  int64_t value_count, piece_count, instance_count;
};

// A frame: [height, width, flip columns, flip rows, resized height, resized width].
constexpr int kFrameSize = 6;
// Limits on the original size and, to bound the memory, on the size of the network input.
constexpr int64_t kMaxSourceSide = 1 << 30, kMaxTargetSide = 1 << 15;

// Nearest-neighbour resizing along one axis: maps a pixel of the network input to the pixel of the
// original mask that is nearest to its centre.
struct NearestAxis {
  int64_t source, target;
  bool flip;

  C10_HOST_DEVICE bool is_valid() const {
    return source >= 1 && source <= kMaxSourceSide && target >= 1 && target <= kMaxTargetSide;
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

// ---- Rasterizing polygons as COCO does (rleFrPoly in maskApi.c of pycocotools)
//
// Corners are rounded to a grid that is five times finer than the cells. Each edge is a chain of
// neighbouring points of that grid. Where an edge crosses the middle of a column of cells, all
// cells below change between inside and outside.

constexpr int kFine = 5;
// Coordinates are clamped to this distance, and NaN to its negative. The limit keeps all integers
// below 2^31 and, in spite of rounding, neighbouring points of an edge at most one apart.
constexpr double kMaxCoordinate = 1 << 25;

// Cells per pixel, with the same precision as in detectron2's rasterize_polygons_within_box.
C10_HOST_DEVICE inline double cells_per_pixel(float low, float high, int resolution) {
  const float side = high - low;
  return side < 0.1f ? resolution / 0.1 : double(static_cast<float>(resolution) / side);
}

C10_HOST_DEVICE inline int fine_coordinate(double pixel, double low, double scale) {
  const double fine = rounded_product(double(kFine), rounded_product(pixel - low, scale)) + 0.5;
  if (!(fine > -kMaxCoordinate)) return static_cast<int>(-kMaxCoordinate);
  return static_cast<int>(fine < kMaxCoordinate ? fine : kMaxCoordinate);
}

// The fine grid of a box.
struct FineGrid {
  double x = 0, y = 0, x_scale = 1, y_scale = 1;

  FineGrid() = default;  // whose cells are the pixels of an image
  C10_HOST_DEVICE FineGrid(const float* box, int resolution)
      : x(box[0]),
        y(box[1]),
        x_scale(cells_per_pixel(box[0], box[2], resolution)),
        y_scale(cells_per_pixel(box[1], box[3], resolution)) {}
};
struct FinePoint {
  int x, y;

  C10_HOST_DEVICE FinePoint(const double* xy, const FineGrid& grid)
      : x(fine_coordinate(xy[0], grid.x, grid.x_scale)),
        y(fine_coordinate(xy[1], grid.y, grid.y_scale)) {}
};

// The coordinate of point `step` of an edge along its shorter axis.
C10_HOST_DEVICE inline int along_edge(int start, double slope, int step) {
  return static_cast<int>(start + rounded_product(slope, double(step)) + 0.5);
}

// The first point of a steep edge after the edge crosses the line between fine columns u and u + 1.
C10_HOST_DEVICE inline int crossing_step(int start, double slope, int steps, int u) {
  const auto crossed = [&](int step) {
    const int x = along_edge(start, slope, step);
    return slope > 0 ? x > u : x <= u;
  };
  const double guess = (u + 0.5 - start) / slope;  // at most one step off
  int step = guess < 1 ? 1 : guess < steps ? static_cast<int>(guess) : steps;
  while (step > 1 && crossed(step - 1)) --step;
  while (step < steps && !crossed(step)) ++step;
  return step;
}

// Calls on_crossing(column, row) for each column of cells that the edge from a to b crosses: the
// cells from `row` downwards change. `row` may be `rows`. The cost does not grow with the edge's
// length.
template <typename OnCrossing>
C10_HOST_DEVICE void cross_columns(FinePoint a, FinePoint b, int columns, int rows,
                                   const OnCrossing& on_crossing) {
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
  for (; column < columns && kFine * column + 3 <= high; ++column) {
    const int u = kFine * column + 2;
    int v;
    if (flat) {
      const int before = along_edge(a.y, slope, u - a.x),
                after = along_edge(a.y, slope, u + 1 - a.x);
      v = before < after ? before : after;
    } else {
      v = a.y + crossing_step(a.x, slope, dy, u) - 1;
    }
    const int row = v < -2 ? 0 : (v + 2) / kFine;
    on_crossing(column, row < rows ? row : rows);
  }
}

// ---- Arguments

// The checked arguments of a call, contiguous, and its uninitialized result. Offsets are checked by
// the CPU kernel and clamped by the CUDA kernel.
struct CropCall {
  Tensor values, pieces, instances, frames, index, boxes;
  Tensor crops;  // [count, resolution, resolution]
  int resolution;
  bool soft;

  int64_t count() const { return boxes.size(0); }
  MaskArrays masks() const {
    return {data<double>(values),  data<int64_t>(pieces), data<int64_t>(instances),
            data<int64_t>(frames), values.size(0),        pieces.size(0) - 1,
            instances.size(0) - 1};
  }
};

inline CropCall check_crop_masks(const Tensor& values, const Tensor& pieces,
                                 const Tensor& instances, const Tensor& frames, const Tensor& index,
                                 const Tensor& boxes, int64_t resolution, bool soft) {
  constexpr const char* op = "crop_masks";
  constexpr int64_t max_resolution = 256;
  check(values.dim() == 1, op, ": values must have shape [V], got ", Shape{values});
  check_dtype(op, "values", values, ScalarType::Double);
  const auto check_indices = [op](const char* name, const Tensor& tensor, int64_t min) {
    check(tensor.dim() == 1 && tensor.size(0) >= min, op, ": ", name,
          " must have one dimension and at least ", min, " elements, got ", Shape{tensor});
    check_dtype(op, name, tensor, ScalarType::Long);
  };
  check_indices("pieces", pieces, 1);
  check_indices("instances", instances, 1);
  check_indices("index", index, 0);
  check_shape(op, "frames", frames, {instances.size(0) - 1, kFrameSize},
              ", a row for each of instances");
  check_dtype(op, "frames", frames, ScalarType::Long);
  check_shape(op, "boxes", boxes, {index.size(0), 4}, ", one for each of index");
  check_floating(op, "boxes", boxes);
  check(resolution >= 1 && resolution <= max_resolution, op, ": resolution must be from 1 to ",
        max_resolution, ", got ", resolution);
  check_count(op, "the number of boxes", boxes.size(0), 0);
  check_same_device(op, {"values", values},
                    {{"pieces", pieces},
                     {"instances", instances},
                     {"frames", frames},
                     {"index", index},
                     {"boxes", boxes}});
  using torch::stable::contiguous;
  return {contiguous(values),
          contiguous(pieces),
          contiguous(instances),
          contiguous(frames),
          contiguous(index),
          contiguous_as(boxes, ScalarType::Float),
          empty(boxes, ScalarType::Float, {boxes.size(0), resolution, resolution}),
          static_cast<int>(resolution),
          soft};
}

}  // namespace detlite
