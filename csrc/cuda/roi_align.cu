// RoIAlign on CUDA.
//
// The plain kernel has one thread per channel and bin; cpu/roi_align.cpp defines roi_align_bin():
//
//   __global__ void roi_align_kernel(float maps[][channels][height][width], int images[],
//                                    float rois[][4], float pooled[][channels][bins_y][bins_x]) {
//     int i = blockIdx.x * blockDim.x + threadIdx.x;
//     int bx = i % bins_x, by = i / bins_x % bins_y;
//     int c = i / (bins_x * bins_y) % channels, k = i / (bins_x * bins_y * channels);
//     pooled[k][c][by][bx] = roi_align_bin(maps[images[k]][c], rois[k], by, bx);
//   }
//
// The kernels compute the same sums. Five changes lead from this code to forward_kernel:
//
// 1. Plan each RoI once. A block processes one RoI, or a part of it. Its threads first write the
//    cells and weights of all bins along each axis to shared memory, with samples of the same cell
//    merged (AlignPlan in roi_align_plan.h).
// 2. Several bins per thread share the plan (Items in roi_common.h).
// 3. Make channels innermost, so that neighbouring threads read neighbouring channels. Contiguous
//    maps are transposed first if enough bins read them (transpose.h).
// 4. Load 16 bytes of channels per instruction (Pack and with_pack_size() in roi_common.h).
// 5. Report invalid RoIs without a check on the host, which would stall the stream
//    (checked_image() in roi_common.h).
//
// The gradient of the plain kernel would add to cells with atomics, in random order. Instead, a
// block of backward_kernel owns a tile of a map and adds the gradients of all RoIs that touch it,
// in order (gradient_tiles.h).
#include <torch/csrc/stable/library.h>

#include "roi_align_plan.h"
#include "gradient_tiles.h"
#include "transpose.h"

namespace detlite {
namespace {

// Registers suffice for three blocks per multiprocessor with eight sums per thread, and for four
// blocks with fewer sums.
// Budget: forward_kernel 1440 instructions.
// Budget: forward_kernel<float, float, 4> 1165 instructions.
template <typename F, typename T, int V>
__global__ void __launch_bounds__(kThreads, V == 8 ? 3 : 4)
    forward_kernel(DevicePyramid<const F> pyramid, const T* rois, const int64_t* levels,
                   AlignArguments align, AlignPlanShape shape, Items items, F* output) {
  DETLITE_DYNAMIC_SHARED(shared);
  const unsigned k = blockIdx.x / items.parts;
  const int part = static_cast<int>(blockIdx.x % items.parts);
  const T* roi = rois + k * kRoiSize;
  auto* const pooled = reinterpret_cast<Pack<F, V>*>(output) + k * items.count();
  const int64_t image = checked_image(roi, pyramid.batch_size);
  if (image == kPadding) {
    items.for_each(part, [&](int item, int, int, int) { pooled[item] = {}; });
    return;
  }
  const DeviceLevel<const F>& level = pyramid.levels[checked_level(levels[k], pyramid.level_count)];
  const int stride_h = static_cast<int>(level.map.stride_h);
  AlignPlan<T> plan(shared, shape);
  plan.fill(roi, align, level, shape);
  items.for_each(part, [&](int item, int pack, int row, int column) {
    const PlannedBin down = plan.bins[row], across = plan.bins[items.height + column];
    const PlannedCell<T>* const columns = plan.columns + across.first;
    const F* const plane = level.map.at(image, int64_t{pack} * V, 0, 0);
    T sum[V] = {};
    for (int y = 0; y < down.count; ++y) {
      const PlannedCell<T> planned = plan.rows[down.first + y];
      const F* const cells = plane + int64_t{planned.offset} * stride_h;
      T row_sum[V] = {};
#pragma unroll 4
      for (int x = 0; x < across.count; ++x) {
        const Pack<F, V> cell = load_pack<F, V>(cells + columns[x].offset);
        for (int v = 0; v < V; ++v)
          row_sum[v] += columns[x].weight * static_cast<T>(cell.values[v]);
      }
      for (int v = 0; v < V; ++v) sum[v] += planned.weight * row_sum[v];
    }
    Pack<F, V> result;
    for (int v = 0; v < V; ++v) result.values[v] = static_cast<F>(sum[v]);
    pooled[item] = result;
  });
}

// ---- Backward

// The cells [first, last] along one axis that a RoI may touch. Edge cells also receive samples up
// to one cell outside of the map.
template <typename T>
__device__ void touched_cells(const AlignAxis<T>& axis, int bins, int size, int& first, int& last) {
  const T end = axis.start + bins * axis.bin_size;
  const T low = axis.start < end ? axis.start : end, high = axis.start < end ? end : axis.start;
  // Sample positions are rounded.
  const T slack = T(1e-5) * (std::abs(low) + std::abs(high) + 1);
  first = 0;
  last = -1;
  if (size == 0 || !(high + slack >= T(-1) && low - slack <= T(size))) return;  // also for NaN
  const T from = low - slack, to = high + slack + 1;
  first = from > 0 ? (from < T(size - 1) ? static_cast<int>(from) : size - 1) : 0;
  last = to < T(size - 1) ? (to > 0 ? static_cast<int>(to) : 0) : size - 1;
}

template <typename T>
struct AlignTiles {
  AlignArguments align;

  template <typename F>
  __device__ Bounds bounds(const T* roi, const DeviceLevel<F>& level) const {
    Bounds result;
    touched_cells(axis_of(roi, align, level, true), align.pool.height, level.height,
                  result.first_row, result.last_row);
    touched_cells(axis_of(roi, align, level, false), align.pool.width, level.width,
                  result.first_column, result.last_column);
    return result;
  }
};

// Computes the weights of a bin on kTile cells along one axis, from `cell` on. Returns true if
// there are any.
template <typename T>
__device__ bool weigh_cells(const AlignAxis<T>& axis, int bin, int cell, int size, T* weights) {
  for (int i = 0; i < kTile; ++i) weights[i] = 0;
  bool any = false;
  const SampleRange range = samples_near_map(axis, bin, size);
  for (int s = range.begin; s < range.end; ++s) {
    LinearSample<T> sample;
    if (!linear_sample(axis.position(bin, s), size, sample)) continue;
    const auto add = [&](int at, T weight) {
      if (at < cell || at >= cell + kTile) return;
      weights[at - cell] += weight / axis.samples;
      any = true;
    };
    add(sample.low, sample.low_weight);
    add(sample.high, sample.high_weight);
  }
  return any;
}

constexpr int kParallelLoads = 4;

// `grad` is [K, bins, C] in memory. A thread keeps the cells of the tile for one channel in
// registers. An infinite gradient makes other cells of the tile NaN, because zero weights are
// multiplied too.
// Budget: backward_kernel 2800 instructions.
// Budget: backward_kernel<float, float> 2530 instructions.
template <typename F, typename T>
__global__ void __launch_bounds__(kTileThreads)
    backward_kernel(DevicePyramid<F> pyramid, const T* rois, RoiLists lists, AlignTiles<T> op,
                    const F* grad, int group) {
  DETLITE_DYNAMIC_SHARED(shared);
  const PoolShape pool = op.align.pool;
  const int bins = pool.height + pool.width;
  // For each RoI of the group: the weights of its bins on the tile (rows, then columns), and its
  // ranges of bins.
  T* const weights = reinterpret_cast<T*>(shared);
  BinRange* const ranges = reinterpret_cast<BinRange*>(weights + group * bins * kTile);
  const Tile tile = Tile::of_block(pyramid);
  const DeviceLevel<F>& level = pyramid.levels[tile.level];
  const bool inside = tile.channel < pyramid.channels;

  const int64_t step = int64_t{pool.width} * pyramid.channels;  // from a row of bins to the next
  T sum[kTile][kTile] = {};
  const int segment = tile.image * pyramid.level_count + tile.level;
  const auto weigh = [&](const T* roi, int place, int bin, bool row) {
    T* const own = weights + (place * bins + (row ? bin : pool.height + bin)) * kTile;
    return weigh_cells(axis_of(roi, op.align, level, row), bin, row ? tile.row : tile.column,
                       row ? level.height : level.width, own);
  };
  const auto add = [&](int64_t number, int place, BinRange rows, BinRange columns) {
    if (!inside) return;
    const T* const down = weights + place * bins * kTile;
    const T* const across = down + pool.height * kTile;
    const F* const pooled =
        grad + number * pool.height * pool.width * pyramid.channels + tile.channel;
    for (int pw = columns.first; pw < columns.end; ++pw) {
      T column[kTile] = {};
      int64_t offset = (int64_t{rows.first} * pool.width + pw) * pyramid.channels;
      for (int ph = rows.first; ph < rows.end; ph += kParallelLoads) {
        T values[kParallelLoads];  // all loads start before the first use
#pragma unroll
        for (int i = 0; i < kParallelLoads; ++i) {
          values[i] = ph + i < rows.end ? static_cast<T>(pooled[offset + i * step]) : T(0);
        }
        offset += kParallelLoads * step;
#pragma unroll
        for (int i = 0; i < kParallelLoads; ++i) {
          if (ph + i >= rows.end) break;
#pragma unroll
          for (int y = 0; y < kTile; ++y) column[y] += down[(ph + i) * kTile + y] * values[i];
        }
      }
#pragma unroll
      for (int x = 0; x < kTile; ++x) {
        const T weight = across[pw * kTile + x];
#pragma unroll
        for (int y = 0; y < kTile; ++y) sum[y][x] += weight * column[y];
      }
    }
  };
  add_touching_rois(lists, segment, tile, rois, pool, group, ranges, weigh, add);

  __shared__ TileRow<T> row;
  store_tile(level, tile, pyramid.channels, row, [&](int y, int x) { return sum[y][x]; });
}

// ---- Operators

Tensor roi_align_forward(const std::vector<Tensor>& inputs, const Tensor& rois,
                         const Tensor& levels, const std::vector<double>& spatial_scales,
                         int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                         bool aligned) {
  constexpr const char* op = "roi_align_forward";
  const PoolingCall call =
      check_pooling_forward(op, inputs, rois, levels, spatial_scales, pooled_height, pooled_width);
  const AlignArguments align = check_align(op, call.pool, sampling_ratio, aligned);
  const DeviceGuard guard(rois.get_device_index());
  const bool channels_inside =
      call.channels_last || is_worth_transposing(call.pyramid, call.roi_count(), call.pool);
  const ScalarType type = inputs[0].scalar_type();
  const Tensor pooled = call.empty_pooled(type, channels_inside);
  if (pooled.numel() == 0) return pooled;
  Tensor output;
  dispatch_floating(op, "input", type, [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const AlignPlanShape plan = align_plan_shape(call.pyramid, align);
    check_shared_memory(op, plan.bytes<T>());
    const std::vector<Tensor> maps =
        channels_inside ? to_layout<F>(op, inputs, true) : readable_maps(inputs);
    with_pack_size<F>(maps, channels_inside, [&](auto size) {
      constexpr int V = decltype(size)::value;
      const Items items(call.pyramid.channels / V, align.pool, channels_inside);
      launch(rois, forward_kernel<F, T, V>, grid_of(op, call.roi_count(), items), kThreads,
             plan.bytes<T>(), device_pyramid(call.pyramid, views<const F>(maps)),
             data<T>(call.rois), data<int64_t>(call.levels), align, plan, items,
             mutable_data<F>(pooled));
    });
    output = to_layout<F>(op, pooled, call.channels_last);
  });
  return output;
}

std::vector<Tensor> roi_align_backward(const Tensor& grad, const Tensor& rois, const Tensor& levels,
                                       const std::vector<double>& spatial_scales,
                                       int64_t pooled_height, int64_t pooled_width,
                                       int64_t batch_size, int64_t channels,
                                       const std::vector<int64_t>& heights,
                                       const std::vector<int64_t>& widths, int64_t sampling_ratio,
                                       bool aligned) {
  constexpr const char* op = "roi_align_backward";
  const PoolingCall call =
      check_pooling_backward(op, grad, rois, levels, spatial_scales, pooled_height, pooled_width,
                             batch_size, channels, heights, widths);
  const AlignArguments align = check_align(op, call.pool, sampling_ratio, aligned);
  const DeviceGuard guard(grad.get_device_index());
  const std::vector<Tensor> maps = empty_maps(grad, call.pyramid, call.channels_last);
  dispatch_floating(op, "grad", grad.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const int group = roi_group_size(align.pool);
    const int64_t bins = int64_t{align.pool.height} + align.pool.width;
    const int64_t bytes = group * (bins * kTile * sizeof(T) + 2 * sizeof(BinRange));
    check_shared_memory(op, bytes);
    const Tensor pooled = to_layout<F>(op, grad, true);
    launch_tiles<F, T>(op, call, maps, AlignTiles<T>{align}, backward_kernel<F, T>, bytes,
                       AlignTiles<T>{align}, data<F>(pooled), group);
  });
  return maps;
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("roi_align_forward.maps", TORCH_BOX(&detlite::roi_align_forward));
  m.impl("roi_align_backward.maps", TORCH_BOX(&detlite::roi_align_backward));
}
