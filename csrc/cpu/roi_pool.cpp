// RoIPool on the CPU. The largest feature of a bin, with NaN above all numbers as in torch's own
// max pooling, so that a NaN shows; an empty bin gives 0 and argmax -1.
#include <algorithm>
#include <vector>

#include <torch/csrc/stable/library.h>

#include "roi_loops.h"

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
  const PoolShape pool = check_pool_shape(op, pooled_height, pooled_width);
  const PyramidShape pyramid = check_pyramid(op, inputs, spatial_scales);
  check_rois(op, inputs[0], "input", rois, levels);
  const bool channels_last = is_channels_last(inputs);
  const PooledShape shape{pool, pyramid.channels, channels_last};
  const auto result = [&](ScalarType type) {
    Tensor tensor = empty_4d(inputs[0], type, rois.size(0), pyramid.channels, pool.height,
                             pool.width, channels_last);
    prefer_large_pages(tensor);
    return tensor;
  };
  const Tensor output = result(inputs[0].scalar_type());
  const Tensor argmax = need_argmax ? result(ScalarType::Int) : no_argmax(inputs[0]);
  dispatch_floating(op, "input", inputs[0].scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const auto planned = plan_rois<BinCells, T>(
        op, rois, levels, pyramid,
        [&](const T* roi, const LevelShape& level, PlannedRoi<BinCells>& plan) {
          const T scale = static_cast<T>(level.spatial_scale);
          plan.rows = bin_cells(pool_axis(roi[2], roi[4], scale, pool.height, level.height),
                                pool.height);
          plan.columns = bin_cells(pool_axis(roi[1], roi[3], scale, pool.width, level.width),
                                   pool.width);
        });
    std::vector<Tensor> maps;
    for (const Tensor& input : inputs) maps.push_back(cells_in_rows(input, channels_last));
    pool_rois(const_views<F>(maps), planned, shape, static_cast<F*>(output.mutable_data_ptr()),
              need_argmax ? static_cast<int32_t*>(argmax.mutable_data_ptr()) : nullptr,
              [&, &all = loops()](const PlannedRoi<BinCells>& roi, auto source, auto values,
                                  Window<int32_t> places, int64_t channels) {
                using X = std::remove_pointer_t<decltype(values.data)>;
                all.of<X>().largest(roi.rows.bins.data(), pool.height, roi.columns.bins.data(),
                                    pool.width, pyramid.levels[roi.level].width, source, values,
                                    places, channels);
              });
  });
  return {output, argmax};
}

// The gradient needs no boxes, only where each maximum was: between the RoI's first and last rows.
struct ArgmaxRows {
  CellRange touched{0, 0};
  int32_t lowest = -1, highest = -1;  // of the cells, -1 included
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
  const PoolShape pool = check_pool_shape(op, pooled_height, pooled_width);
  const PyramidShape pyramid =
      check_pyramid_sizes(op, spatial_scales, batch_size, channels, heights, widths);
  check_features(op, "grad", grad);
  check_rois(op, grad, "grad", rois, levels);
  check_pooled_grad(op, grad, rois, pool, channels);
  check_argmax(op, grad, argmax);
  const bool channels_last = is_channels_last(grad);
  const Tensor dense = dense_4d(grad, channels_last);
  const Tensor where = dense_4d(argmax, channels_last);
  const PooledShape shape{pool, pyramid.channels, channels_last};
  const std::vector<Tensor> maps = empty_levels(grad, grad.scalar_type(), pyramid, channels_last);
  for (const Tensor& map : maps) prefer_large_pages(map);
  dispatch_floating(op, "grad", grad.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const F* grads = static_cast<const F*>(dense.const_data_ptr());
    const int32_t* cells = static_cast<const int32_t*>(where.const_data_ptr());
    const auto planned = plan_rois<ArgmaxRows, T>(
        op, rois, levels, pyramid,
        [&](const T*, const LevelShape& level, PlannedRoi<ArgmaxRows>& plan) {
          plan.rows =
              rows_of_cells(cells + plan.number * shape.size(), shape.size(), level.width);
        });
    for (const auto& roi : planned.rois) {
      const int32_t wrong = roi.rows.lowest < -1 ? roi.rows.lowest : roi.rows.highest;
      check(wrong >= -1 && wrong < pyramid.cells(roi.level), op, ": argmax must be from -1 to ",
            pyramid.cells(roi.level) - 1, ", got ", wrong);
    }
    const int64_t bins = pool.bins();
    const int64_t channel_step = channels_last ? 1 : bins;
    const int64_t bin_step = channels_last ? shape.channels : 1;
    sum_gradients(pyramid, planned.rois, channels_last, mutable_views<F>(maps),
                  [&](const PlannedRoi<ArgmaxRows>& roi, Window<T> tile, CellRange rows,
                      int64_t first_channel, int64_t count) {
                    const int32_t width = pyramid.levels[roi.level].width;
                    const int32_t begin = rows.begin * width, end = rows.end * width;
                    for (int64_t bin = 0; bin < bins; ++bin) {
                      const int64_t at = roi.number * shape.size() +
                                         first_channel * channel_step + bin * bin_step;
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

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("roi_pool_forward.maps", TORCH_BOX(&detlite::roi_pool_forward));
  m.impl("roi_pool_backward.maps", TORCH_BOX(&detlite::roi_pool_backward));
}
