// RoIAlign on the CPU: each bin a weighted sum of the channel vectors of its cells, and each cell's
// gradient the same sum over its bins.
#include <torch/csrc/stable/library.h>

#include "axis_operator.h"
#include "roi_loops.h"

namespace detlite {
namespace {

template <typename T>
RoiPlan<AxisOperator<T>> plan(const char* op, const Tensor& rois, const Tensor& levels,
                              const PyramidShape& pyramid, const AlignArguments& align,
                              bool transposed) {
  return plan_rois<AxisOperator<T>, T>(
      op, rois, levels, pyramid,
      [&](const T* roi, const LevelShape& level, PlannedRoi<AxisOperator<T>>& planned) {
        const auto axis = [&](T low, T high, int bins, int size) {
          const AxisOperator<T> forward = bins_from_cells(
              align_axis(low, high, static_cast<T>(level.spatial_scale), bins,
                         align.sampling_ratio, align.aligned),
              bins, size);
          return transposed ? cells_from_bins(forward) : forward;
        };
        planned.rows = axis(roi[2], roi[4], align.pool.height, level.height);
        planned.columns = axis(roi[1], roi[3], align.pool.width, level.width);
      });
}

Tensor roi_align_forward(const std::vector<Tensor>& inputs, const Tensor& rois,
                         const Tensor& levels, const std::vector<double>& spatial_scales,
                         int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                         bool aligned) {
  constexpr const char* op = "roi_align_forward";
  const AlignArguments align =
      check_align(op, pooled_height, pooled_width, sampling_ratio, aligned);
  const PyramidShape pyramid = check_pyramid(op, inputs, spatial_scales);
  check_rois(op, inputs[0], "input", rois, levels);
  const bool channels_last = is_channels_last(inputs);
  const PooledShape shape{align.pool, pyramid.channels, channels_last};
  Tensor output = empty_4d(inputs[0], inputs[0].scalar_type(), rois.size(0), pyramid.channels,
                           align.pool.height, align.pool.width, channels_last);
  prefer_large_pages(output);
  dispatch_floating(op, "input", inputs[0].scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const auto planned = plan<T>(op, rois, levels, pyramid, align, false);
    std::vector<Tensor> maps;
    for (const Tensor& input : inputs) maps.push_back(cells_in_rows(input, channels_last));
    pool_rois(const_views<F>(maps), planned, shape, static_cast<F*>(output.mutable_data_ptr()),
              nullptr,
              [&all = loops()](const auto& roi, auto source, auto values, auto, int64_t channels) {
                using X = std::remove_pointer_t<decltype(values.data)>;
                all.of<X>().resample(roi.rows.view(), roi.columns.view(), source, values, channels);
              });
  });
  return output;
}

std::vector<Tensor> roi_align_backward(
    const Tensor& grad, const Tensor& rois, const Tensor& levels,
    const std::vector<double>& spatial_scales, int64_t pooled_height, int64_t pooled_width,
    int64_t batch_size, int64_t channels, const std::vector<int64_t>& heights,
    const std::vector<int64_t>& widths, int64_t sampling_ratio, bool aligned) {
  constexpr const char* op = "roi_align_backward";
  const AlignArguments align =
      check_align(op, pooled_height, pooled_width, sampling_ratio, aligned);
  const PyramidShape pyramid =
      check_pyramid_sizes(op, spatial_scales, batch_size, channels, heights, widths);
  check_features(op, "grad", grad);
  check_rois(op, grad, "grad", rois, levels);
  check_pooled_grad(op, grad, rois, align.pool, channels);
  const bool channels_last = is_channels_last(grad);
  const Tensor dense = dense_4d(grad, channels_last);
  const PooledShape shape{align.pool, pyramid.channels, channels_last};
  const std::vector<Tensor> maps = empty_levels(grad, grad.scalar_type(), pyramid, channels_last);
  for (const Tensor& map : maps) prefer_large_pages(map);
  dispatch_floating(op, "grad", grad.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const auto planned = plan<T>(op, rois, levels, pyramid, align, true);
    const F* pooled = static_cast<const F*>(dense.const_data_ptr());
    const int64_t bins = align.pool.bins();
    sum_gradients(
        pyramid, planned.rois, channels_last, mutable_views<F>(maps),
        [&, &all = loops()](const auto& roi, Window<T> tile, CellRange rows, int64_t first_channel,
                            int64_t count) {
          const F* grads = pooled + roi.number * shape.size();
          if (channels_last) {
            all.of<F>().resample_add(roi.rows.view(rows), roi.columns.view(),
                                     bins_window(grads + first_channel, align.pool, shape.channels),
                                     tile, count);
          } else {
            thread_local std::vector<T> packed;
            packed.resize(bins * count);
            all.of<F>().gather(grads + first_channel * bins, bins, count, bins, packed.data(),
                               count);
            all.of<T>().resample_add(
                roi.rows.view(rows), roi.columns.view(),
                bins_window(static_cast<const T*>(packed.data()), align.pool, count), tile, count);
          }
        });
  });
  return maps;
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("roi_align_forward.maps", TORCH_BOX(&detlite::roi_align_forward));
  m.impl("roi_align_backward.maps", TORCH_BOX(&detlite::roi_align_backward));
}
