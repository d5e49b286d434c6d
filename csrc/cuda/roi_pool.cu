// RoIPool on CUDA. In forward, a block processes a RoI or a part of it; in backward, a tile of a
// map.
#include <torch/csrc/stable/library.h>

#include "common/roi_geometry.h"
#include "gradient_tiles.h"
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

// Registers suffice for four blocks per multiprocessor with every pack size.
// Budget: forward_kernel 1200 instructions.
// Budget: forward_kernel<float, float, 4> 880 instructions.
template <typename F, typename T, int V>
__global__ void __launch_bounds__(kThreads, 4)
    forward_kernel(DevicePyramid<const F> pyramid, const T* rois, const int64_t* levels,
                   PoolShape pool, Items items, F* output, int32_t* argmax) {
  DETLITE_DYNAMIC_SHARED(shared);
  CellRange* const cells = reinterpret_cast<CellRange*>(shared);  // rows of bins, then columns
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
      const F* const row_cells = plane + y * level.map.stride_h;
      for (int x = across.begin; x < across.end; ++x) {
        const Pack<F, V> cell = load_pack<F, V>(row_cells + x * level.map.stride_w);
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

  // Bins are consecutive, so the first and the last one determine the cells of all.
  template <typename F>
  __device__ Bounds bounds(const T* roi, const DeviceLevel<F>& level) const {
    const PoolAxis<T> down = rows_of(roi, level, pool), across = columns_of(roi, level, pool);
    return {down.cells(0).begin, down.cells(pool.height - 1).end - 1, across.cells(0).begin,
            across.cells(pool.width - 1).end - 1};
  }
};

constexpr int kParallelLoads = 4;

// `grad` and `argmax` are [K, bins, C] in memory. A thread keeps the cells of the tile for one
// channel in shared memory, because argmax selects the cell at run time.
// Budget: backward_kernel 2300 instructions.
template <typename F, typename T>
__global__ void __launch_bounds__(kTileThreads)
    backward_kernel(DevicePyramid<F> pyramid, const T* rois, RoiLists lists, PoolShape pool,
                    const F* grad, const int32_t* argmax, int group) {
  DETLITE_DYNAMIC_SHARED(shared);
  BinRange* const ranges = reinterpret_cast<BinRange*>(shared);  // two per RoI of the group
  __shared__ T sums[kTile][kTile][kTileThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const Tile tile = Tile::of_block(pyramid);
  const DeviceLevel<F>& level = pyramid.levels[tile.level];
  const bool inside = tile.channel < pyramid.channels;
  for (int y = 0; y < kTile; ++y) {
    for (int x = 0; x < kTile; ++x) sums[y][x][thread] = 0;
  }

  const int segment = tile.image * pyramid.level_count + tile.level;
  const auto overlaps_tile = [&](const T* roi, int, int bin, bool row) {
    const CellRange cells =
        row ? rows_of(roi, level, pool).cells(bin) : columns_of(roi, level, pool).cells(bin);
    const int from = row ? tile.row : tile.column;
    return cells.begin < from + kTile && cells.end > from && cells.begin < cells.end;
  };
  const unsigned width = level.width, own_columns = min(kTile, level.width - tile.column);
  const int first_cell = tile.row * level.width + tile.column;
  const auto add = [&](int64_t number, int, BinRange rows, BinRange columns) {
    if (!inside) return;
    const int64_t first = number * pool.height * pool.width * pyramid.channels + tile.channel;
    for (int ph = rows.first; ph < rows.end; ++ph) {
      const int64_t row_of_bins = first + int64_t{ph} * pool.width * pyramid.channels;
      for (int pw = columns.first; pw < columns.end; pw += kParallelLoads) {
        // All loads start before the first use.
        int32_t places[kParallelLoads];
        F values[kParallelLoads];
#pragma unroll
        for (int i = 0; i < kParallelLoads; ++i) {
          const int64_t element = row_of_bins + int64_t{pw + i} * pyramid.channels;
          places[i] = pw + i < columns.end ? argmax[element] : -1;
          if (pw + i < columns.end) values[i] = grad[element];
        }
#pragma unroll
        for (int i = 0; i < kParallelLoads; ++i) {
          // Comparisons find the row of the cell, because a division costs more.
          unsigned across = places[i] - first_cell, down = 0;
#pragma unroll
          for (unsigned rows_down = kTile / 2; rows_down > 0; rows_down /= 2) {
            if (across >= rows_down * width) {
              across -= rows_down * width;
              down += rows_down;
            }
          }
          if (places[i] >= first_cell && across < own_columns) {
            sums[down][across][thread] += static_cast<T>(values[i]);
          }
        }
      }
    }
  };
  add_touching_rois(lists, segment, tile, rois, pool, group, ranges, overlaps_tile, add);
  __shared__ TileRow<T> row;
  store_tile(level, tile, pyramid.channels, row, [&](int y, int x) { return sums[y][x][thread]; });
}

// ---- Operators

std::tuple<Tensor, Tensor> roi_pool_forward(const std::vector<Tensor>& inputs, const Tensor& rois,
                                            const Tensor& levels,
                                            const std::vector<double>& spatial_scales,
                                            int64_t pooled_height, int64_t pooled_width,
                                            bool need_argmax) {
  constexpr const char* op = "roi_pool_forward";
  const PoolingCall call =
      check_pooling_forward(op, inputs, rois, levels, spatial_scales, pooled_height, pooled_width);
  const PoolShape& pool = call.pool;
  const DeviceGuard guard(rois.get_device_index());
  const bool channels_inside =
      call.channels_last || is_worth_transposing(call.pyramid, call.roi_count(), pool);
  const ScalarType type = inputs[0].scalar_type();
  Tensor output = call.empty_pooled(type, channels_inside);
  Tensor argmax = empty_argmax(call, need_argmax, channels_inside);
  if (output.numel() == 0) return {output, argmax};
  const int64_t bytes = (int64_t{pool.height} + pool.width) * sizeof(CellRange);
  check_shared_memory(op, bytes);
  dispatch_floating(op, "input", type, [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const std::vector<Tensor> maps = channels_inside ? to_layout<F>(op, inputs, true) : inputs;
    with_pack_size<F>(maps, channels_inside, [&](auto size) {
      constexpr int V = decltype(size)::value;
      const Items items(call.pyramid.channels / V, pool, channels_inside);
      launch(rois, forward_kernel<F, T, V>, grid_of(op, call.roi_count(), items), kThreads, bytes,
             device_pyramid(call.pyramid, views<const F>(maps)), data<T>(call.rois),
             data<int64_t>(call.levels), pool, items, mutable_data<F>(output),
             need_argmax ? mutable_data<int32_t>(argmax) : nullptr);
    });
    output = to_layout<F>(op, output, call.channels_last);
    // Only the gradient reads argmax, as [K, bins, C].
    if (need_argmax) argmax = to_layout<int32_t>(op, argmax, true);
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
  const PoolingCall call =
      check_pooling_backward(op, grad, rois, levels, spatial_scales, pooled_height, pooled_width,
                             batch_size, channels, heights, widths);
  const PoolShape& pool = call.pool;
  check_argmax(op, grad, argmax);
  const DeviceGuard guard(grad.get_device_index());
  const std::vector<Tensor> maps = empty_maps(grad, call.pyramid, call.channels_last);
  dispatch_floating(op, "grad", grad.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const int group = roi_group_size(pool);
    const Tensor pooled = to_layout<F>(op, grad, true);
    const Tensor cells = to_layout<int32_t>(op, argmax, true);
    launch_tiles<F, T>(op, call, maps, PoolTiles<T>{pool}, backward_kernel<F, T>,
                       group * 2 * sizeof(BinRange), pool, data<F>(pooled), data<int32_t>(cells),
                       group);
  });
  return maps;
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("roi_pool_forward.maps", TORCH_BOX(&detlite::roi_pool_forward));
  m.impl("roi_pool_backward.maps", TORCH_BOX(&detlite::roi_pool_backward));
}
