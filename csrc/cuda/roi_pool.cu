// RoIPool on CUDA. Forward: a block has a RoI, or a part of one. Backward: a block has a tile of a
// map.
#include <torch/csrc/stable/library.h>

#include "roi_pool_geometry.h"
#include "roi_tiles.h"
#include "transpose.h"

namespace detlite {
namespace {

template <typename T, typename F>
__device__ PoolAxis<T> rows_of(const T* roi, const DeviceLevel<F>& level, const PoolShape& pool) {
  return pool_axis(roi[2], roi[4], static_cast<T>(level.spatial_scale), pool.height, level.height);
}
template <typename T, typename F>
__device__ PoolAxis<T> columns_of(const T* roi, const DeviceLevel<F>& level,
                                  const PoolShape& pool) {
  return pool_axis(roi[1], roi[3], static_cast<T>(level.spatial_scale), pool.width, level.width);
}

// Four blocks at a time leave registers enough for every pack.
// Budget: forward_kernel 1200 instructions.
// Budget: forward_kernel<float, float, 4> 880 instructions.
template <typename F, typename T, int V>
__global__ void __launch_bounds__(kThreads, 4)
    forward_kernel(DevicePyramid<const F> pyramid, const T* rois, const int64_t* levels,
                   PoolShape pool, Items items, F* output, int32_t* argmax) {
  DETLITE_LAUNCHED_SHARED(shared);
  CellRange* const cells = reinterpret_cast<CellRange*>(shared);  // of rows of bins, then columns
  const unsigned k = blockIdx.x / items.parts;
  const int part = static_cast<int>(blockIdx.x % items.parts);
  const T* roi = rois + k * kRoiSize;
  auto* const pooled = reinterpret_cast<Pack<F, V>*>(output) + k * items.count();
  auto* const places = reinterpret_cast<Pack<int32_t, V>*>(argmax) + k * items.count();
  const int64_t image = checked_image(roi, pyramid.batch_size);
  const bool padding = image == kPadding;
  const DeviceLevel<const F>& level =
      pyramid.levels[padding ? 0 : checked_level(levels[k], pyramid.level_count)];
  for (int i = static_cast<int>(threadIdx.x); i < pool.height + pool.width; i += kThreads) {
    if (padding) cells[i] = {0, 0};
    else if (i < pool.height) cells[i] = rows_of(roi, level, pool).cells(i);
    else cells[i] = columns_of(roi, level, pool).cells(i - pool.height);
  }
  __syncthreads();
  items.for_each(part, [&](int item, int pack, int row, int column) {
    const CellRange down = cells[row], across = cells[pool.height + column];
    const F* const plane = level.map.at(padding ? 0 : image, int64_t{pack} * V, 0, 0);
    T best[V] = {};
    Pack<int32_t, V> where;
    for (int v = 0; v < V; ++v) where.values[v] = -1;
    for (int y = down.begin; y < down.end; ++y) {
      const F* const line = plane + y * level.map.stride_h;
      for (int x = across.begin; x < across.end; ++x) {
        const Pack<F, V> cell = load_pack<F, V>(line + x * level.map.stride_w);
        for (int v = 0; v < V; ++v) {
          const T value = static_cast<T>(cell.values[v]);
          if (where.values[v] < 0 || value > best[v] || value != value) {
            best[v] = value;
            where.values[v] = y * level.width + x;
          }
        }
      }
    }
    Pack<F, V> result;
    for (int v = 0; v < V; ++v) result.values[v] = static_cast<F>(best[v]);
    pooled[item] = result;
    if (argmax) places[item] = where;
  });
}

// ---- Backward

template <typename T>
struct PoolTiles {
  PoolShape pool;

  // The cells of all bins together: they follow one another.
  template <typename F>
  __device__ Bounds bounds(const T* roi, const DeviceLevel<F>& level) const {
    const PoolAxis<T> down = rows_of(roi, level, pool), across = columns_of(roi, level, pool);
    return {down.cells(0).begin, down.cells(pool.height - 1).end - 1, across.cells(0).begin,
            across.cells(pool.width - 1).end - 1};
  }
};

// `grad` and `argmax` are [K, bins, C] in memory. A thread has the tile's cells of one channel in
// shared memory, for which of them a gradient goes to is known only then.
// Budget: backward_kernel 2590 instructions.
template <typename F, typename T>
__global__ void __launch_bounds__(kTileThreads)
    backward_kernel(DevicePyramid<F> pyramid, const T* rois, RoiLists lists, PoolShape pool,
                    const F* grad, const int32_t* argmax, int at_once) {
  DETLITE_LAUNCHED_SHARED(shared);
  BinRange* const ranges = reinterpret_cast<BinRange*>(shared);  // of each RoI at work, two
  __shared__ T sums[kTile][kTile][kTileThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const Tile tile = Tile::of_block(pyramid);
  const DeviceLevel<F>& level = pyramid.levels[tile.level];
  const bool inside = tile.channel < pyramid.channels;
  for (int y = 0; y < kTile; ++y) {
    for (int x = 0; x < kTile; ++x) sums[y][x][thread] = 0;
  }

  const int segment = tile.image * pyramid.level_count + tile.level;
  const auto reaches = [&](const T* roi, int, int bin, bool row) {
    const CellRange cells = row ? rows_of(roi, level, pool).cells(bin)
                                : columns_of(roi, level, pool).cells(bin);
    const int from = row ? tile.row : tile.column;
    return cells.begin < from + kTile && cells.end > from && cells.begin < cells.end;
  };
  const auto add = [&](int64_t number, int, BinRange rows, BinRange columns) {
    if (!inside) return;
    const int64_t roi = number * pool.height * pool.width;
    for (int ph = rows.first; ph < rows.end; ++ph) {
#pragma unroll 4
      for (int pw = columns.first; pw < columns.end; ++pw) {
        const int64_t element = (roi + ph * pool.width + pw) * pyramid.channels + tile.channel;
        const int32_t place = argmax[element];
        if (place < 0) continue;
        const int y = place / level.width, x = place - y * level.width;
        const unsigned down = y - tile.row, across = x - tile.column;
        if (down < kTile && across < kTile) {
          sums[down][across][thread] += static_cast<T>(grad[element]);
        }
      }
    }
  };
  add_touching_rois(lists, segment, tile, rois, pool, at_once, ranges, reaches, add);
  __shared__ TileRow<T> row;
  store_tile(level, tile, pyramid.channels, row,
             [&](int y, int x) { return sums[y][x][thread]; });
}

// ---- Operators

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
  const bool channels_inside = channels_last || pays_to_transpose(pyramid, rois.size(0), pool);
  const Tensor boxes = torch::stable::contiguous(rois);
  const Tensor numbers = torch::stable::contiguous(levels);
  const auto result = [&](ScalarType type) {
    return empty_4d(inputs[0], type, boxes.size(0), pyramid.channels, pool.height, pool.width,
                    channels_inside);
  };
  Tensor output = result(inputs[0].scalar_type());
  Tensor argmax = need_argmax ? result(ScalarType::Int) : no_argmax(inputs[0]);
  if (output.numel() == 0) return {output, argmax};
  const int64_t bytes = (int64_t{pool.height} + pool.width) * sizeof(CellRange);
  check_shared_memory(op, bytes);
  dispatch_floating(op, "input", inputs[0].scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const std::vector<Tensor> maps = channels_inside ? in_format<F>(op, inputs, true) : inputs;
    with_pack_size<F>(maps, channels_inside, [&](auto size) {
      constexpr int V = decltype(size)::value;
      const Items items(pyramid.channels / V, pool, channels_inside);
      launch(inputs[0], forward_kernel<F, T, V>, grid_of(op, boxes.size(0), items), kThreads,
             bytes, device_pyramid(pyramid, const_views<F>(maps)),
             static_cast<const T*>(boxes.const_data_ptr()),
             static_cast<const int64_t*>(numbers.const_data_ptr()), pool, items,
             static_cast<F*>(output.mutable_data_ptr()),
             need_argmax ? static_cast<int32_t*>(argmax.mutable_data_ptr()) : nullptr);
    });
    output = in_format<F>(op, output, channels_last);
    if (need_argmax) argmax = in_format<int32_t>(op, argmax, channels_last);
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
  const std::vector<Tensor> maps =
      empty_levels(grad, grad.scalar_type(), pyramid, is_channels_last(grad));
  dispatch_floating(op, "grad", grad.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const int at_once = rois_at_once(pool);
    const Tensor pooled = in_format<F>(op, grad, true);
    const Tensor places = in_format<int32_t>(op, argmax, true);
    gather_by_tiles<F, T>(op, pyramid, maps, rois, levels, PoolTiles<T>{pool},
                          backward_kernel<F, T>, at_once * 2 * sizeof(BinRange), pool,
                          static_cast<const F*>(pooled.const_data_ptr()),
                          static_cast<const int32_t*>(places.const_data_ptr()), at_once);
  });
  return maps;
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("roi_pool_forward.maps", TORCH_BOX(&detlite::roi_pool_forward));
  m.impl("roi_pool_backward.maps", TORCH_BOX(&detlite::roi_pool_backward));
}
