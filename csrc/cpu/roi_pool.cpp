// RoIPool on the CPU: the maximum of each bin. NaN counts as larger than any number, as in torch's
// max pooling, so that it stays visible. An empty bin has the value 0 and argmax -1.
#include <algorithm>
#include <vector>

#include <torch/csrc/stable/library.h>

#include "roi_traversal.h"

namespace detlite {
namespace {

// The cells of each bin along one axis.
struct BinCells {
  std::vector<CellRange> bins;
  CellRange touched{0, 0};
};

template <typename T>
BinCells bin_cells(const PoolAxis<T>& axis, int bins) {
  BinCells result;
  result.bins.reserve(bins);
  for (int bin = 0; bin < bins; ++bin) {
    result.bins.push_back(axis.cells(bin));
    result.touched = hull(result.touched, result.bins.back());
  }
  return result;
}

std::tuple<Tensor, Tensor> roi_pool_forward(const std::vector<Tensor>& inputs, const Tensor& rois,
                                            const Tensor& levels,
                                            const std::vector<double>& spatial_scales,
                                            int64_t pooled_height, int64_t pooled_width,
                                            bool need_argmax) {
  constexpr const char* op = "roi_pool_forward";
  const PoolingCall call =
      check_pooling_forward(op, inputs, rois, levels, spatial_scales, pooled_height, pooled_width);
  const PoolShape& pool = call.pool;
  const ScalarType type = inputs[0].scalar_type();
  const Tensor output = call.empty_pooled(type, call.channels_last);
  const Tensor argmax = empty_argmax(call, need_argmax, call.channels_last);
  prefer_huge_pages(output);
  prefer_huge_pages(argmax);
  dispatch_floating(op, "input", type, [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const auto planned = plan_rois<BinCells, T>(
        op, call, [&](const T* roi, const LevelShape& level, PlannedRoi<BinCells>& plan) {
          const T scale = static_cast<T>(level.spatial_scale);
          plan.rows =
              bin_cells(pool_axis(roi[2], roi[4], scale, pool.height, level.height), pool.height);
          plan.columns =
              bin_cells(pool_axis(roi[1], roi[3], scale, pool.width, level.width), pool.width);
        });
    pool_rois(inputs, call, planned, mutable_data<F>(output),
              need_argmax ? mutable_data<int32_t>(argmax) : nullptr,
              [&, &loops = inner_loops()](const PlannedRoi<BinCells>& roi, auto source, auto values,
                                          Window<int32_t> places, int64_t channels) {
                using X = std::remove_pointer_t<decltype(values.data)>;
                loops.for_type<X>().max_pool(
                    roi.rows.bins.data(), pool.height, roi.columns.bins.data(), pool.width,
                    call.pyramid.levels[roi.level].width, source, values, places, channels);
              });
  });
  return {output, argmax};
}

// Backward needs no boxes, because argmax contains the cells. They are between the first and last
// row of a RoI.
struct ArgmaxRows {
  CellRange touched{0, 0};
  int32_t lowest = -1, highest = -1;  // argmax values, including -1
};

ArgmaxRows rows_of_cells(const int32_t* cells, int64_t count, int width) {
  ArgmaxRows result;
  int32_t first = std::numeric_limits<int32_t>::max();
  for (int64_t i = 0; i < count; ++i) {
    result.lowest = std::min(result.lowest, cells[i]);
    result.highest = std::max(result.highest, cells[i]);
    first = std::min(first, cells[i] < 0 ? first : cells[i]);
  }
  if (result.highest >= 0 && width > 0) {
    result.touched = {first / width, result.highest / width + 1};
  }
  return result;
}

std::vector<Tensor> roi_pool_backward(const Tensor& grad, const Tensor& rois, const Tensor& levels,
                                      const Tensor& argmax,
                                      const std::vector<double>& spatial_scales,
                                      int64_t pooled_height, int64_t pooled_width,
                                      int64_t batch_size, int64_t channels,
                                      const std::vector<int64_t>& heights,
                                      const std::vector<int64_t>& widths) {
  constexpr const char* op = "roi_pool_backward";
  const PoolingCall call =
      check_pooling_backward(op, grad, rois, levels, spatial_scales, pooled_height, pooled_width,
                             batch_size, channels, heights, widths);
  check_argmax(op, grad, argmax);
  const PyramidShape& pyramid = call.pyramid;
  const Tensor dense = dense_4d(grad, call.channels_last);
  const Tensor dense_argmax = dense_4d(argmax, call.channels_last);
  const std::vector<Tensor> maps = empty_maps(grad, pyramid, call.channels_last);
  for (const Tensor& map : maps) prefer_huge_pages(map);
  dispatch_floating(op, "grad", grad.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const F* grads = data<F>(dense);
    const int32_t* cells = data<int32_t>(dense_argmax);
    const int64_t size = call.pooled_size(), bins = call.pool.bins();
    const auto planned = plan_rois<ArgmaxRows, T>(
        op, call, [&](const T*, const LevelShape& level, PlannedRoi<ArgmaxRows>& plan) {
          plan.rows = rows_of_cells(cells + plan.number * size, size, level.width);
        });
    for (const auto& roi : planned.rois) {
      const int32_t wrong = roi.rows.lowest < -1 ? roi.rows.lowest : roi.rows.highest;
      check(wrong >= -1 && wrong < pyramid.cells(roi.level), op, ": argmax must be from -1 to ",
            pyramid.cells(roi.level) - 1, ", got ", wrong);
    }
    const int64_t channel_step = call.channels_last ? 1 : bins;
    const int64_t bin_step = call.channels_last ? channels : 1;
    sum_gradients(call, planned.rois, views<F>(maps),
                  [&](const PlannedRoi<ArgmaxRows>& roi, Window<T> tile, CellRange rows,
                      int64_t first_channel, int64_t count) {
                    const int32_t width = pyramid.levels[roi.level].width;
                    const int32_t begin = rows.begin * width, end = rows.end * width;
                    for (int64_t bin = 0; bin < bins; ++bin) {
                      const int64_t at =
                          roi.number * size + first_channel * channel_step + bin * bin_step;
                      for (int64_t c = 0; c < count; ++c) {
                        const int32_t cell = cells[at + c * channel_step];
                        if (cell < begin || cell >= end) continue;
                        tile.data[(cell - begin) * tile.column_step + c] +=
                            static_cast<T>(grads[at + c * channel_step]);
                      }
                    }
                  });
  });
  return maps;
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_FRAGMENT(detlite, m) {
  // The input of `maps` is the maps of a feature pyramid. The arguments have no default values:
  // torch 2.11 drops arguments that equal them before an autograd rule sees them, and then finds too
  // many gradients for an operator that takes a list of tensors.
  m.def(
      "roi_pool_forward.maps(Tensor[] inputs, Tensor rois, Tensor levels, float[] spatial_scales, "
      "int pooled_height, int pooled_width, bool need_argmax) -> (Tensor output, Tensor argmax)");
  m.def(
      "roi_pool_backward.maps(Tensor grad, Tensor rois, Tensor levels, Tensor argmax, "
      "float[] spatial_scales, int pooled_height, int pooled_width, SymInt batch_size, "
      "SymInt channels, SymInt[] heights, SymInt[] widths) -> Tensor[]");
}

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("roi_pool_forward.maps", TORCH_BOX(&detlite::roi_pool_forward));
  m.impl("roi_pool_backward.maps", TORCH_BOX(&detlite::roi_pool_backward));
}
