// RoIAlign on CUDA: one thread an element of the pooled features.
#include <torch/csrc/stable/library.h>

#include "roi_align_geometry.h"
#include "roi_loops.h"

namespace detlite {
namespace {

// Calls body(row, column, weight) for each cell that the bilinear samples of one bin touch.
template <typename T, typename Body>
__device__ void for_each_cell(const T* roi, const AlignArguments& align, int ph, int pw, int height,
                              int width, const Body& body) {
  const PoolShape& pool = align.pool;
  const T scale = static_cast<T>(pool.spatial_scale);
  const AlignAxis<T> rows = align_axis(roi[2], roi[4], scale, pool.height, align.sampling_ratio,
                                       align.aligned);
  const AlignAxis<T> columns = align_axis(roi[1], roi[3], scale, pool.width, align.sampling_ratio,
                                          align.aligned);
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
      body(y.low, x.low, y.low_weight * x.low_weight);
      body(y.low, x.high, y.low_weight * x.high_weight);
      body(y.high, x.low, y.high_weight * x.low_weight);
      body(y.high, x.high, y.high_weight * x.high_weight);
    }
  }
}

template <typename F, typename T>
__global__ void forward_kernel(int64_t count, View4d<const F> input, const T* rois,
                               AlignArguments align, int64_t batch_size, int64_t channels,
                               int height, int width, bool channels_last, F* output) {
  DETLITE_GRID_STRIDE(i, count) {
    const Pooled p =
        pooled_element(i, channels, align.pool.height, align.pool.width, channels_last);
    const T* roi = rois + p.roi * kRoiSize;
    const F* plane = input.at(image_or_trap(roi, batch_size), p.channel, 0, 0);
    T sum = 0;
    for_each_cell(roi, align, p.row, p.column, height, width, [&](int y, int x, T weight) {
      sum += weight * static_cast<T>(plane[y * input.stride_h + x * input.stride_w]);
    });
    output[i] = static_cast<F>(sum);
  }
}

template <typename F, typename T>
__global__ void backward_kernel(int64_t count, const F* grad, const T* rois, AlignArguments align,
                                int64_t batch_size, int64_t channels, int height, int width,
                                bool channels_last, View4d<T> sums) {
  DETLITE_GRID_STRIDE(i, count) {
    const Pooled p =
        pooled_element(i, channels, align.pool.height, align.pool.width, channels_last);
    const T* roi = rois + p.roi * kRoiSize;
    T* plane = sums.at(image_or_trap(roi, batch_size), p.channel, 0, 0);
    const T pooled_grad = static_cast<T>(grad[i]);
    for_each_cell(roi, align, p.row, p.column, height, width, [&](int y, int x, T weight) {
      if (weight == 0) return;
      atomicAdd(plane + y * sums.stride_h + x * sums.stride_w, weight * pooled_grad);
    });
  }
}

Tensor roi_align_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                         int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                         bool aligned) {
  constexpr const char* op = "roi_align_forward";
  const AlignArguments align =
      check_align(op, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned);
  check_features(op, "input", input);
  check_map_size(op, input.size(2), input.size(3));
  check_rois(op, input, "input", rois);

  const torch::stable::accelerator::DeviceGuard guard(input.get_device_index());
  const bool channels_last = is_channels_last(input);
  const Tensor boxes = torch::stable::contiguous(rois);
  Tensor output = empty_4d(input, input.scalar_type(), rois.size(0), input.size(1), pooled_height,
                           pooled_width, channels_last);
  const int64_t count = output.numel();
  dispatch_floating(op, "input", input.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    forward_kernel<F, T><<<blocks_for(count), kThreads, 0, current_stream(input)>>>(
        count, const_view<F>(input), static_cast<const T*>(boxes.const_data_ptr()), align,
        input.size(0), input.size(1), static_cast<int>(input.size(2)),
        static_cast<int>(input.size(3)), channels_last, static_cast<F*>(output.mutable_data_ptr()));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return output;
}

Tensor roi_align_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                          int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                          int64_t channels, int64_t height, int64_t width, int64_t sampling_ratio,
                          bool aligned) {
  constexpr const char* op = "roi_align_backward";
  const AlignArguments align =
      check_align(op, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned);
  check_features(op, "grad", grad);
  check_map_size(op, height, width);
  check_rois(op, grad, "grad", rois);
  check_pooled_grad(op, "grad", grad, rois, align.pool, batch_size, channels);

  const torch::stable::accelerator::DeviceGuard guard(grad.get_device_index());
  const bool channels_last = is_channels_last(grad);
  const Tensor dense = dense_4d(grad, channels_last);
  const Tensor boxes = torch::stable::contiguous(rois);
  Tensor sums = empty_4d(grad, accumulate_type(grad.scalar_type()), batch_size, channels, height,
                         width, channels_last);
  torch::stable::zero_(sums);
  const int64_t count = dense.numel();
  dispatch_floating(op, "grad", grad.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    backward_kernel<F, T><<<blocks_for(count), kThreads, 0, current_stream(grad)>>>(
        count, static_cast<const F*>(dense.const_data_ptr()),
        static_cast<const T*>(boxes.const_data_ptr()), align, batch_size, channels,
        static_cast<int>(height), static_cast<int>(width), channels_last, mutable_view<T>(sums));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return torch::stable::to(sums, grad.scalar_type());
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("roi_align_forward", TORCH_BOX(&detlite::roi_align_forward));
  m.impl("roi_align_backward", TORCH_BOX(&detlite::roi_align_backward));
}
