// The inner loops of the CPU kernels, compiled once for each instruction set and chosen at run time.
#pragma once

#include "dtypes.h"
#include "focal_loss.h"
#include "roi_pool_geometry.h"
#include "vectorisable_math.h"

namespace detlite {

// Cells [first_row, ...) x [first_column, ...) of a map or of pooled bins, channels innermost.
template <typename T>
struct Window {
  T* data;
  int64_t row_step, column_step;
  int first_row = 0, first_column = 0;

  T* at(int row, int column) const {
    return data + (row - first_row) * row_step + (column - first_column) * column_step;
  }
};

// A sparse matrix along one axis, line by line: place `to` of the result is the sum of the taps
// [begin, end) of the source.
struct Line {
  int to, begin, end;
};
template <typename T>
struct Tap {
  int from;
  T weight;
};
template <typename T>
struct AxisView {
  const Line* lines;
  int count;
  const Tap<T>* taps;
};

// Boxes, coordinate by coordinate. Arrays are padded to a multiple of kBoxPadding with boxes that
// overlap nothing.
constexpr int kBoxPadding = 16;
// Candidates that are matched at a time, few enough to lie close together where anchors do.
constexpr int kMatchBlock = 64;
struct BoxArrays {
  const float *x1, *y1, *x2, *y2, *area;
};

// Loops over features of type F.
template <typename F>
struct FeatureLoops {
  using T = accumulate_t<F>;

  // target = rows x source x columns, each channel by itself.
  void (*resample)(AxisView<T> rows, AxisView<T> columns, Window<const F> source, Window<F> target,
                   int64_t channels);
  // target += rows x source x columns.
  void (*resample_add)(AxisView<T> rows, AxisView<T> columns, Window<const F> source,
                       Window<T> target, int64_t channels);
  // The largest of each bin's cells, and its place row * width + column in the map. NaN is above
  // all numbers; the first of equals wins; an empty bin gives 0 and place -1. No places are left
  // where `place` has no data.
  void (*largest)(const CellRange* rows, int row_count, const CellRange* columns, int column_count,
                  int width, Window<const F> source, Window<F> target, Window<int32_t> place,
                  int64_t channels);
  // target[j * target_step + i] = source[i * source_step + j] for i < rows, j < columns.
  void (*gather)(const F* source, int64_t source_step, int64_t rows, int64_t columns, T* target,
                 int64_t target_step);
  void (*scatter)(const T* source, int64_t source_step, int64_t rows, int64_t columns, F* target,
                  int64_t target_step);
  void (*narrow)(const T* source, int64_t count, F* target);
  // FocalTerms of each element; gradients are read every grad_step elements.
  void (*focal_loss)(const F* logits, const F* targets, int64_t count, FocalSettings<T> settings,
                     T* loss);
  void (*focal_gradient)(const T* grad, int64_t grad_step, const F* logits, const F* targets,
                         int64_t count, FocalSettings<T> settings, F* result);
};

struct Loops {
  FeatureLoops<double> of_double;
  FeatureLoops<float> of_float;
  FeatureLoops<c10::Half> of_half;
  FeatureLoops<c10::BFloat16> of_bfloat16;

  void (*transpose_int32)(const int32_t* source, int64_t source_step, int64_t rows,
                          int64_t columns, int32_t* target, int64_t target_step);
  // Whether any of the first `count` boxes overlaps (x1, y1, x2, y2) by more than the threshold.
  bool (*overlaps_any)(const BoxArrays& boxes, int64_t count, const float* box, float threshold);
  // For each of kMatchBlock candidates, where any of the first `count` boxes of the truth overlaps it
  // by more than iou: that overlap and the first box that has the most. For each of the truth, where
  // any candidate overlaps it by more than highest: the most. NaN overlaps nothing.
  void (*match_block)(const BoxArrays& candidates, const BoxArrays& truth, int64_t count,
                      float* iou, int32_t* index, float* highest);
  // Sets marks[i], i < count, where candidate i overlaps the box by exactly iou, which is not zero.
  void (*mark_equal)(const BoxArrays& candidates, int64_t count, const BoxArrays& box, float iou,
                     bool* marks);
  // Bit x of the result is upper[x] * upper_weight + lower[x] * lower_weight >= threshold; x < 64.
  uint64_t (*threshold_row)(const float* upper, float upper_weight, const float* lower,
                            float lower_weight, float threshold);
  // result[i] = ((w[0] rows[0][i] + w[1] rows[1][i]) + w[2] rows[2][i]) + w[3] rows[3][i], and the
  // highest of them. No value may be NaN.
  float (*blend_rows)(const float* const* rows, const float* weights, int64_t count,
                      float* result);

  template <typename F>
  const FeatureLoops<F>& of() const {
    if constexpr (std::is_same_v<F, double>) return of_double;
    else if constexpr (std::is_same_v<F, float>) return of_float;
    else if constexpr (std::is_same_v<F, c10::Half>) return of_half;
    else return of_bfloat16;
  }
};

// The widest loops that this processor runs, or those that the environment variable
// DETLITE_CPU_CAPABILITY asks for: default, avx2 or avx512. Asked at every call of an operator, so
// that tests compare them within one process.
const Loops& loops();

}  // namespace detlite
