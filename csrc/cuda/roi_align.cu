// RoIAlign on CUDA: one thread some channels of a bin, or an element of the maps' gradient.
#include <torch/csrc/stable/library.h>

#include "roi_align_geometry.h"
#include "roi_loops.h"

namespace detlite {
namespace {

// Calls body(row sample, column sample) for each sample of one bin that lies on the map; the weights
// are those of the bin's average.
template <typename T, typename Body>
__device__ void for_each_sample(const T* roi, const AlignArguments& align, T scale, int ph, int pw,
                                int height, int width, const Body& body) {
  const AlignAxis<T> rows = align_axis(roi[2], roi[4], scale, align.pool.height,
                                       align.sampling_ratio, align.aligned);
  const AlignAxis<T> columns = align_axis(roi[1], roi[3], scale, align.pool.width,
                                          align.sampling_ratio, align.aligned);
  const SampleRange ys = samples_near_map(rows, ph, height);
  const SampleRange xs = samples_near_map(columns, pw, width);
  for (int iy = ys.begin; iy < ys.end; ++iy) {
    LinearSample<T> y;
    if (!linear_sample(rows.position(ph, iy), height, y)) continue;
    y.low_weight /= rows.samples;
    y.high_weight /= rows.samples;
    for (int ix = xs.begin; ix < xs.end; ++ix) {
      LinearSample<T> x;
      if (!linear_sample(columns.position(pw, ix), width, x)) continue;
      x.low_weight /= columns.samples;
      x.high_weight /= columns.samples;
      body(y, x);
    }
  }
}

// Each thread pools V channels of a bin; `count` counts packs.
template <typename F, typename T, int V>
__global__ void forward_kernel(int64_t count, DevicePyramid<const F> pyramid, const T* rois,
                               const int64_t* levels, AlignArguments align, bool channels_last,
                               F* output) {
  DETLITE_GRID_STRIDE(i, count) {
    const Pooled p = pooled_element(i, pyramid.channels / V, align.pool, channels_last);
    const T* roi = rois + p.roi * kRoiSize;
    const int64_t image = image_or_trap(roi, pyramid.batch_size);
    T sum[V] = {};
    if (image != kPadding) {
      const DeviceLevel<const F>& level =
          pyramid.levels[level_or_trap(levels[p.roi], pyramid.level_count)];
      const View4d<const F>& map = level.map;
      const F* plane = map.at(image, p.channel * V, 0, 0);
      for_each_sample(
          roi, align, static_cast<T>(level.spatial_scale), p.row, p.column, level.height,
          level.width, [&](const LinearSample<T>& y, const LinearSample<T>& x) {
            // All four loads are under way before the first is needed.
            const F* low = plane + y.low * map.stride_h;
            const F* high = plane + y.high * map.stride_h;
            const Pack<F, V> corners[4] = {load_pack<F, V>(low + x.low * map.stride_w),
                                           load_pack<F, V>(low + x.high * map.stride_w),
                                           load_pack<F, V>(high + x.low * map.stride_w),
                                           load_pack<F, V>(high + x.high * map.stride_w)};
            const T weights[4] = {y.low_weight * x.low_weight, y.low_weight * x.high_weight,
                                  y.high_weight * x.low_weight, y.high_weight * x.high_weight};
            for (int corner = 0; corner < 4; ++corner) {
              for (int v = 0; v < V; ++v) {
                sum[v] += weights[corner] * static_cast<T>(corners[corner].values[v]);
              }
            }
          });
    }
    Pack<F, V> pooled;
    for (int v = 0; v < V; ++v) pooled.values[v] = static_cast<F>(sum[v]);
    reinterpret_cast<Pack<F, V>*>(output)[i] = pooled;
  }
}

// A bin's weight on one cell along one axis.
template <typename T>
__device__ T cell_weight(const AlignAxis<T>& axis, int bin, int cell, int size) {
  T weight = 0;
  const SampleRange range = samples_near_map(axis, bin, size);
  for (int s = range.begin; s < range.end; ++s) {
    LinearSample<T> sample;
    if (!linear_sample(axis.position(bin, s), size, sample)) continue;
    if (sample.low == cell) weight += sample.low_weight / axis.samples;
    if (sample.high == cell) weight += sample.high_weight / axis.samples;
  }
  return weight;
}

// False only where no sample can be near the cell. Cells at the edge take what lies beyond it.
template <typename T>
__device__ bool may_touch(const AlignAxis<T>& axis, int bins, int cell, int size) {
  const T end = axis.start + bins * axis.bin_size;
  const T low = axis.start < end ? axis.start : end, high = axis.start < end ? end : axis.start;
  // Positions are rounded sums.
  const T slack = T(1e-5) * (std::abs(low) + std::abs(high) + 1);
  return low - slack <= (cell == size - 1 ? size : cell + 1) &&
         high + slack >= cell - 1;
}

template <typename F, typename T>
struct AlignGradient {
  AlignArguments align;
  const F* grad;

  __device__ AlignAxis<T> rows(const T* roi, const DeviceLevel<F>& level) const {
    return align_axis(roi[2], roi[4], static_cast<T>(level.spatial_scale), align.pool.height,
                      align.sampling_ratio, align.aligned);
  }
  __device__ AlignAxis<T> columns(const T* roi, const DeviceLevel<F>& level) const {
    return align_axis(roi[1], roi[3], static_cast<T>(level.spatial_scale), align.pool.width,
                      align.sampling_ratio, align.aligned);
  }
  __device__ bool touches(const T* roi, const DeviceLevel<F>& level, int y, int x) const {
    return may_touch(rows(roi, level), align.pool.height, y, level.height) &&
           may_touch(columns(roi, level), align.pool.width, x, level.width);
  }
  __device__ T row_weight(const T* roi, const DeviceLevel<F>& level, int bin, int y) const {
    return cell_weight(rows(roi, level), bin, y, level.height);
  }
  __device__ T column_weight(const T* roi, const DeviceLevel<F>& level, int bin, int x) const {
    return cell_weight(columns(roi, level), bin, x, level.width);
  }
  __device__ T value(int64_t element, T weight, int32_t /*cell*/) const {
    return weight * static_cast<T>(grad[element]);
  }
};

Tensor roi_align_forward(const std::vector<Tensor>& inputs, const Tensor& rois,
                         const Tensor& levels, const std::vector<double>& spatial_scales,
                         int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                         bool aligned) {
  constexpr const char* op = "roi_align_forward";
  const AlignArguments align =
      check_align(op, pooled_height, pooled_width, sampling_ratio, aligned);
  const PyramidShape pyramid = check_pyramid(op, inputs, spatial_scales);
  check_rois(op, inputs[0], "input", rois, levels);
  const DeviceGuard guard(inputs[0].get_device_index());
  const bool channels_last = is_channels_last(inputs);
  const Tensor boxes = torch::stable::contiguous(rois);
  const Tensor numbers = torch::stable::contiguous(levels);
  Tensor output = empty_4d(inputs[0], inputs[0].scalar_type(), boxes.size(0), pyramid.channels,
                           align.pool.height, align.pool.width, channels_last);
  const int64_t count = output.numel();
  dispatch_floating(op, "input", inputs[0].scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    with_pack_size<F>(inputs, [&](auto size) {
      constexpr int V = decltype(size)::value;
      launch(inputs[0], forward_kernel<F, T, V>, blocks_for(count / V), kThreads, 0, count / V,
             device_pyramid(pyramid, const_views<F>(inputs)),
             static_cast<const T*>(boxes.const_data_ptr()),
             static_cast<const int64_t*>(numbers.const_data_ptr()), align, channels_last,
             static_cast<F*>(output.mutable_data_ptr()));
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
  const DeviceGuard guard(grad.get_device_index());
  const bool channels_last = is_channels_last(grad);
  const Tensor dense = dense_4d(grad, true);
  const std::vector<Tensor> maps = empty_levels(grad, grad.scalar_type(), pyramid, true);
  dispatch_floating(op, "grad", grad.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    gather_gradient<F, T>(
        op, pyramid, maps, rois, levels, align.pool,
        AlignGradient<F, T>{align, static_cast<const F*>(dense.const_data_ptr())});
  });
  return in_format(maps, channels_last);
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("roi_align_forward.maps", TORCH_BOX(&detlite::roi_align_forward));
  m.impl("roi_align_backward.maps", TORCH_BOX(&detlite::roi_align_backward));
}
