// The table of inner loops of the CPU kernels. It is compiled once per instruction set;
// inner_loops() selects one at run time.
#pragma once

#include "common/tensors.h"
#include "common/focal_loss.h"
#include "common/roi_geometry.h"
#include "vector_math.h"

namespace detlite {

// A rectangle of cells of a map, or of pooled bins, with channels innermost. `data` is the cell
// (first_row, first_column).
template <typename T>
struct Window {
  T* data;
  int64_t row_step, column_step;
  int first_row = 0, first_column = 0;

  T* at(int row, int column) const {
    return data + (row - first_row) * row_step + (column - first_column) * column_step;
  }
};

// A sparse matrix along one axis, stored by rows. Element `target` of the result is the weighted
// sum of the source elements named by cells [begin, end).
struct SparseRow {
  int target, begin, end;
};
template <typename T>
struct WeightedCell {
  int source;
  T weight;
};
template <typename T>
struct SparseView {
  const SparseRow* rows;
  int count;
  const WeightedCell<T>* cells;
};

// Boxes as one array per coordinate, padded to a multiple of kBoxPadding with boxes that overlap
// nothing.
constexpr int kBoxPadding = 16;
// The number of candidates per call of match_block. Consecutive anchors of a block are near each
// other.
constexpr int kMatchBlock = 64;
struct BoxArrays {
  const float *x1, *y1, *x2, *y2, *area;
};

// Loops over features of type F.
template <typename F>
struct FeatureLoops {
  using T = accumulate_t<F>;

  // target = rows x source x columns, for each channel.
  void (*resample)(SparseView<T> rows, SparseView<T> columns, Window<const F> source,
                   Window<F> target, int64_t channels);
  // target += rows x source x columns.
  void (*resample_add)(SparseView<T> rows, SparseView<T> columns, Window<const F> source,
                       Window<T> target, int64_t channels);
  // The maximum of each bin and its index, row * width + column, in the map. NaN is larger than all
  // numbers. The first of equal values wins. An empty bin has 0 and index -1. `place` may have no
  // data.
  void (*max_pool)(const CellRange* rows, int row_count, const CellRange* columns, int column_count,
                   int width, Window<const F> source, Window<F> target, Window<int32_t> place,
                   int64_t channels);
  // target[j * target_step + i] = source[i * source_step + j] for i < rows, j < columns.
  void (*gather)(const F* source, int64_t source_step, int64_t rows, int64_t columns, T* target,
                 int64_t target_step);
  void (*scatter)(const T* source, int64_t source_step, int64_t rows, int64_t columns, F* target,
                  int64_t target_step);
  void (*downcast)(const T* source, int64_t count, F* target);
  // The loss of each element, and its gradient. `grad` is read every grad_step elements.
  void (*focal_loss)(const F* logits, const F* targets, int64_t count, FocalSettings<T> settings,
                     T* loss);
  void (*focal_gradient)(const T* grad, int64_t grad_step, const F* logits, const F* targets,
                         int64_t count, FocalSettings<T> settings, F* result);
};

struct InnerLoops {
  FeatureLoops<double> of_double;
  FeatureLoops<float> of_float;
  FeatureLoops<c10::Half> of_half;
  FeatureLoops<c10::BFloat16> of_bfloat16;

  void (*transpose_int32)(const int32_t* source, int64_t source_step, int64_t rows, int64_t columns,
                          int32_t* target, int64_t target_step);
  // True if any of the first `count` boxes has an IoU above the threshold with `box` (x1, y1, x2,
  // y2).
  bool (*overlaps_any)(const BoxArrays& boxes, int64_t count, const float* box, float threshold);
  // Updates three running maxima over all pairs of kMatchBlock candidates and the first `count`
  // ground-truth boxes: the highest IoU of each candidate, the first ground-truth box that has it,
  // and the highest IoU of each ground-truth box. NaN never counts.
  void (*match_block)(const BoxArrays& candidates, const BoxArrays& truth, int64_t count,
                      float* iou, int32_t* index, float* highest);
  // Sets marks[i] for each candidate i < count whose IoU with the box is exactly `iou`, which is
  // not 0.
  void (*mark_equal)(const BoxArrays& candidates, int64_t count, const BoxArrays& box, float iou,
                     bool* marks);
  // Bit x of the result is upper[x] * upper_weight + lower[x] * lower_weight >= threshold; x < 64.
  uint64_t (*threshold_row)(const float* upper, float upper_weight, const float* lower,
                            float lower_weight, float threshold);
  // result[i] = ((w[0] rows[0][i] + w[1] rows[1][i]) + w[2] rows[2][i]) + w[3] rows[3][i], and the
  // maximum of the result. No value may be NaN.
  float (*blend_rows)(const float* const* rows, const float* weights, int64_t count, float* result);

  template <typename F>
  const FeatureLoops<F>& for_type() const {
    if constexpr (std::is_same_v<F, double>) return of_double;
    else if constexpr (std::is_same_v<F, float>) return of_float;
    else if constexpr (std::is_same_v<F, c10::Half>) return of_half;
    else return of_bfloat16;
  }
};

// Returns the loops for the widest instruction set of this processor, or for the one that the
// environment variable DETLITE_CPU_CAPABILITY names: default, avx2 or avx512. Every operator call
// reads the variable, so that tests can compare instruction sets within one process.
const InnerLoops& inner_loops();

}  // namespace detlite
