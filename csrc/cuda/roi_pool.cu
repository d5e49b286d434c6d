// RoIPool on CUDA: one thread some channels of a bin, or an element of the maps' gradient.
#include <torch/csrc/stable/library.h>

#include "roi_loops.h"
#include "roi_pool_geometry.h"

namespace detlite {
namespace {

// Each thread pools V channels of a bin; `count` counts packs.
template <typename F, typename T, int V>
__global__ void forward_kernel(int64_t count, DevicePyramid<const F> pyramid, const T* rois,
                               const int64_t* levels, PoolShape pool, bool channels_last,
                               F* output, int32_t* argmax) {
  DETLITE_GRID_STRIDE(i, count) {
    const Pooled p = pooled_element(i, pyramid.channels / V, pool, channels_last);
    const T* roi = rois + p.roi * kRoiSize;
    const int64_t image = image_or_trap(roi, pyramid.batch_size);
    T best[V] = {};
    Pack<int32_t, V> where;
    for (int v = 0; v < V; ++v) where.values[v] = -1;
    if (image != kPadding) {
      const DeviceLevel<const F>& level =
          pyramid.levels[level_or_trap(levels[p.roi], pyramid.level_count)];
      const View4d<const F>& map = level.map;
      const F* plane = map.at(image, p.channel * V, 0, 0);
      const T scale = static_cast<T>(level.spatial_scale);
      const CellRange rows =
          pool_axis(roi[2], roi[4], scale, pool.height, level.height).cells(p.row);
      const CellRange columns =
          pool_axis(roi[1], roi[3], scale, pool.width, level.width).cells(p.column);
      for (int y = rows.begin; y < rows.end; ++y) {
        for (int x = columns.begin; x < columns.end; ++x) {
          const Pack<F, V> cell = load_pack<F, V>(plane + y * map.stride_h + x * map.stride_w);
          for (int v = 0; v < V; ++v) {
            const T value = static_cast<T>(cell.values[v]);
            if (where.values[v] < 0 || value > best[v] || value != value) {
              best[v] = value;
              where.values[v] = y * level.width + x;
            }
          }
        }
      }
    }
    Pack<F, V> pooled;
    for (int v = 0; v < V; ++v) pooled.values[v] = static_cast<F>(best[v]);
    reinterpret_cast<Pack<F, V>*>(output)[i] = pooled;
    if (argmax) reinterpret_cast<Pack<int32_t, V>*>(argmax)[i] = where;
  }
}

template <typename F, typename T>
struct PoolGradient {
  PoolShape pool;
  const F* grad;
  const int32_t* argmax;

  __device__ PoolAxis<T> rows(const T* roi, const DeviceLevel<F>& level) const {
    return pool_axis(roi[2], roi[4], static_cast<T>(level.spatial_scale), pool.height,
                     level.height);
  }
  __device__ PoolAxis<T> columns(const T* roi, const DeviceLevel<F>& level) const {
    return pool_axis(roi[1], roi[3], static_cast<T>(level.spatial_scale), pool.width, level.width);
  }
  __device__ bool touches(const T* roi, const DeviceLevel<F>& level, int y, int x) const {
    const PoolAxis<T> down = rows(roi, level), across = columns(roi, level);
    return down.cells(0).begin <= y && y < down.cells(pool.height - 1).end &&
           across.cells(0).begin <= x && x < across.cells(pool.width - 1).end;
  }
  __device__ T row_weight(const T* roi, const DeviceLevel<F>& level, int bin, int y) const {
    const CellRange range = rows(roi, level).cells(bin);
    return range.begin <= y && y < range.end;
  }
  __device__ T column_weight(const T* roi, const DeviceLevel<F>& level, int bin, int x) const {
    const CellRange range = columns(roi, level).cells(bin);
    return range.begin <= x && x < range.end;
  }
  __device__ T value(int64_t element, T /*weight*/, int32_t cell) const {
    return argmax[element] == cell ? static_cast<T>(grad[element]) : T(0);
  }
};

std::tuple<Tensor, Tensor> roi_pool_forward(const std::vector<Tensor>& inputs, const Tensor& rois,
                                            const Tensor& levels,
                                            const std::vector<double>& spatial_scales,
                                            int64_t pooled_height, int64_t pooled_width,
                                            bool need_argmax) {
  constexpr const char* op = "roi_pool_forward";
  const PoolShape pool = check_pool_shape(op, pooled_height, pooled_width);
  const PyramidShape pyramid = check_pyramid(op, inputs, spatial_scales);
  check_rois(op, inputs[0], "input", rois, levels);
  const DeviceGuard guard(inputs[0].get_device_index());
  const bool channels_last = is_channels_last(inputs);
  const Tensor boxes = torch::stable::contiguous(rois);
  const Tensor numbers = torch::stable::contiguous(levels);
  const auto result = [&](ScalarType type) {
    return empty_4d(inputs[0], type, boxes.size(0), pyramid.channels, pool.height, pool.width,
                    channels_last);
  };
  const Tensor output = result(inputs[0].scalar_type());
  const Tensor argmax = need_argmax ? result(ScalarType::Int) : no_argmax(inputs[0]);
  const int64_t count = output.numel();
  dispatch_floating(op, "input", inputs[0].scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    with_pack_size<F>(inputs, [&](auto size) {
      constexpr int V = decltype(size)::value;
      launch(inputs[0], forward_kernel<F, T, V>, blocks_for(count / V), kThreads, 0, count / V,
             device_pyramid(pyramid, const_views<F>(inputs)),
             static_cast<const T*>(boxes.const_data_ptr()),
             static_cast<const int64_t*>(numbers.const_data_ptr()), pool, channels_last,
             static_cast<F*>(output.mutable_data_ptr()),
             need_argmax ? static_cast<int32_t*>(argmax.mutable_data_ptr()) : nullptr);
    });
  });
  return {output, argmax};
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
  const DeviceGuard guard(grad.get_device_index());
  const bool channels_last = is_channels_last(grad);
  const Tensor dense = dense_4d(grad, true), where = dense_4d(argmax, true);
  const std::vector<Tensor> maps = empty_levels(grad, grad.scalar_type(), pyramid, true);
  dispatch_floating(op, "grad", grad.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    gather_gradient<F, T>(
        op, pyramid, maps, rois, levels, pool,
        PoolGradient<F, T>{pool, static_cast<const F*>(dense.const_data_ptr()),
                           static_cast<const int32_t*>(where.const_data_ptr())});
  });
  return in_format(maps, channels_last);
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("roi_pool_forward.maps", TORCH_BOX(&detlite::roi_pool_forward));
  m.impl("roi_pool_backward.maps", TORCH_BOX(&detlite::roi_pool_backward));
}
