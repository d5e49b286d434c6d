// RoIPool on CUDA: one thread an element of the pooled features.
#include <torch/csrc/stable/library.h>

#include "roi_loops.h"
#include "roi_pool_geometry.h"

namespace detlite {
namespace {

template <typename F, typename T>
__global__ void forward_kernel(int64_t count, View4d<const F> input, const T* rois, PoolShape pool,
                               int64_t batch_size, int64_t channels, int height, int width,
                               bool channels_last, F* output, int32_t* argmax) {
  DETLITE_GRID_STRIDE(i, count) {
    const Pooled p = pooled_element(i, channels, pool.height, pool.width, channels_last);
    const T* roi = rois + p.roi * kRoiSize;
    const F* plane = input.at(image_or_trap(roi, batch_size), p.channel, 0, 0);
    const T scale = static_cast<T>(pool.spatial_scale);
    const CellRange rows = pool_axis(roi[2], roi[4], scale, pool.height, height).cells(p.row);
    const CellRange columns = pool_axis(roi[1], roi[3], scale, pool.width, width).cells(p.column);
    T best = 0;
    int32_t where = -1;
    for (int y = rows.begin; y < rows.end; ++y) {
      for (int x = columns.begin; x < columns.end; ++x) {
        const T value = static_cast<T>(plane[y * input.stride_h + x * input.stride_w]);
        if (where < 0 || value > best || value != value) {
          best = value;
          where = y * width + x;
        }
      }
    }
    output[i] = static_cast<F>(best);
    argmax[i] = where;
  }
}

template <typename F, typename T>
__global__ void backward_kernel(int64_t count, const F* grad, const T* rois, const int32_t* argmax,
                                PoolShape pool, int64_t batch_size, int64_t channels, int height,
                                int width, bool channels_last, View4d<T> sums) {
  DETLITE_GRID_STRIDE(i, count) {
    const int32_t cell = argmax[i];
    if (cell < 0) continue;
    if (cell >= height * width) __trap();
    const Pooled p = pooled_element(i, channels, pool.height, pool.width, channels_last);
    const int64_t image = image_or_trap(rois + p.roi * kRoiSize, batch_size);
    atomicAdd(sums.at(image, p.channel, cell / width, cell % width), static_cast<T>(grad[i]));
  }
}

std::tuple<Tensor, Tensor> roi_pool_forward(const Tensor& input, const Tensor& rois,
                                            double spatial_scale, int64_t pooled_height,
                                            int64_t pooled_width) {
  constexpr const char* op = "roi_pool_forward";
  const PoolShape pool = check_pool_shape(op, spatial_scale, pooled_height, pooled_width);
  check_features(op, "input", input);
  check_map_size(op, input.size(2), input.size(3));
  check_rois(op, input, "input", rois);

  const torch::stable::accelerator::DeviceGuard guard(input.get_device_index());
  const bool channels_last = is_channels_last(input);
  const Tensor boxes = torch::stable::contiguous(rois);
  Tensor output = empty_4d(input, input.scalar_type(), rois.size(0), input.size(1), pooled_height,
                           pooled_width, channels_last);
  Tensor argmax = empty_4d(input, ScalarType::Int, rois.size(0), input.size(1), pooled_height,
                           pooled_width, channels_last);
  const int64_t count = output.numel();
  dispatch_floating(op, "input", input.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    forward_kernel<F, T><<<blocks_for(count), kThreads, 0, current_stream(input)>>>(
        count, const_view<F>(input), static_cast<const T*>(boxes.const_data_ptr()), pool,
        input.size(0), input.size(1), static_cast<int>(input.size(2)),
        static_cast<int>(input.size(3)), channels_last, static_cast<F*>(output.mutable_data_ptr()),
        static_cast<int32_t*>(argmax.mutable_data_ptr()));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return {output, argmax};
}

Tensor roi_pool_backward(const Tensor& grad, const Tensor& rois, const Tensor& argmax,
                         double spatial_scale, int64_t pooled_height, int64_t pooled_width,
                         int64_t batch_size, int64_t channels, int64_t height, int64_t width) {
  constexpr const char* op = "roi_pool_backward";
  const PoolShape pool = check_pool_shape(op, spatial_scale, pooled_height, pooled_width);
  check_features(op, "grad", grad);
  check_map_size(op, height, width);
  check_rois(op, grad, "grad", rois);
  check_pooled_grad(op, "grad", grad, rois, pool, batch_size, channels);
  check_argmax(op, grad, argmax);

  const torch::stable::accelerator::DeviceGuard guard(grad.get_device_index());
  const bool channels_last = is_channels_last(grad);
  const Tensor dense = dense_4d(grad, channels_last);
  const Tensor where = dense_4d(argmax, channels_last);
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
        static_cast<const T*>(boxes.const_data_ptr()),
        static_cast<const int32_t*>(where.const_data_ptr()), pool, batch_size, channels,
        static_cast<int>(height), static_cast<int>(width), channels_last, mutable_view<T>(sums));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return torch::stable::to(sums, grad.scalar_type());
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("roi_pool_forward", TORCH_BOX(&detlite::roi_pool_forward));
  m.impl("roi_pool_backward", TORCH_BOX(&detlite::roi_pool_backward));
}
