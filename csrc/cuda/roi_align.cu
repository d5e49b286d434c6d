// RoIAlign on CUDA. Forward: a block has a RoI, or a part of one. Backward: a block has a tile of a
// map.
#include <torch/csrc/stable/library.h>

#include "align_plan.h"
#include "roi_tiles.h"
#include "transpose.h"

namespace detlite {
namespace {

// Eight sums a thread take so many registers that three blocks run at a time, else four or more.
// Budget: forward_kernel 1440 instructions.
// Budget: forward_kernel<float, float, 4> 1165 instructions.
template <typename F, typename T, int V>
__global__ void __launch_bounds__(kThreads, V == 8 ? 3 : 4)
    forward_kernel(DevicePyramid<const F> pyramid, const T* rois, const int64_t* levels,
                   AlignArguments align, AlignPlanShape shape, Items items, F* output) {
  DETLITE_LAUNCHED_SHARED(shared);
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
      T line[V] = {};
#pragma unroll 4
      for (int x = 0; x < across.count; ++x) {
        const Pack<F, V> cell = load_pack<F, V>(cells + columns[x].offset);
        for (int v = 0; v < V; ++v) line[v] += columns[x].weight * static_cast<T>(cell.values[v]);
      }
      for (int v = 0; v < V; ++v) sum[v] += planned.weight * line[v];
    }
    Pack<F, V> result;
    for (int v = 0; v < V; ++v) result.values[v] = static_cast<F>(sum[v]);
    pooled[item] = result;
  });
}

// ---- Backward

// The cells along one axis that samples between two positions may touch, in [0, size). Cells at the
// edge take what lies up to a cell beyond it.
template <typename T>
__device__ void touched_cells(const AlignAxis<T>& axis, int bins, int size, int& first, int& last) {
  const T end = axis.start + bins * axis.bin_size;
  const T low = axis.start < end ? axis.start : end, high = axis.start < end ? end : axis.start;
  // Positions are rounded sums.
  const T slack = T(1e-5) * (std::abs(low) + std::abs(high) + 1);
  first = 0;
  last = -1;
  if (size == 0 || !(high + slack >= T(-1) && low - slack <= T(size))) return;  // NaN too
  const T from = low - slack, to = high + slack + 1;
  first = from > 0 ? (from < T(size - 1) ? static_cast<int>(from) : size - 1) : 0;
  last = to < T(size - 1) ? (to > 0 ? static_cast<int>(to) : 0) : size - 1;
}

template <typename T>
struct AlignTiles {
  AlignArguments align;

  template <typename F>
  __device__ Bounds bounds(const T* roi, const DeviceLevel<F>& level) const {
    Bounds found;
    touched_cells(axis_of(roi, align, level, true), align.pool.height, level.height,
                  found.first_row, found.last_row);
    touched_cells(axis_of(roi, align, level, false), align.pool.width, level.width,
                  found.first_column, found.last_column);
    return found;
  }
};

// One bin's weights on the kTile cells from `cell` on along one axis; whether any is not 0.
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

constexpr int kLoadsAtOnce = 4;

// `grad` is [K, bins, C] in memory. A thread has the tile's cells of one channel in registers. Where a
// gradient is infinite, other cells of its tiles become NaN: a weight of 0 is multiplied too.
// Budget: backward_kernel 2800 instructions.
// Budget: backward_kernel<float, float> 2530 instructions.
template <typename F, typename T>
__global__ void __launch_bounds__(kTileThreads)
    backward_kernel(DevicePyramid<F> pyramid, const T* rois, RoiLists lists, AlignTiles<T> op,
                    const F* grad, int at_once) {
  DETLITE_LAUNCHED_SHARED(shared);
  const PoolShape pool = op.align.pool;
  const int bins = pool.height + pool.width;
  // Of each RoI at work: the bins' weights on the tile, rows then columns; and which bins there are.
  T* const weights = reinterpret_cast<T*>(shared);
  BinRange* const ranges = reinterpret_cast<BinRange*>(weights + at_once * bins * kTile);
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
      for (int ph = rows.first; ph < rows.end; ph += kLoadsAtOnce) {
        T values[kLoadsAtOnce];  // all under way before the first is needed
#pragma unroll
        for (int i = 0; i < kLoadsAtOnce; ++i) {
          values[i] = ph + i < rows.end ? static_cast<T>(pooled[offset + i * step]) : T(0);
        }
        offset += kLoadsAtOnce * step;
#pragma unroll
        for (int i = 0; i < kLoadsAtOnce; ++i) {
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
  add_touching_rois(lists, segment, tile, rois, pool, at_once, ranges, weigh, add);

  __shared__ TileRow<T> row;
  store_tile(level, tile, pyramid.channels, row, [&](int y, int x) { return sum[y][x]; });
}

// ---- Operators

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
  const bool channels_inside = channels_last || pays_to_transpose(pyramid, rois.size(0), align.pool);
  const Tensor boxes = torch::stable::contiguous(rois);
  const Tensor numbers = torch::stable::contiguous(levels);
  const Tensor pooled = empty_4d(inputs[0], inputs[0].scalar_type(), boxes.size(0),
                                 pyramid.channels, align.pool.height, align.pool.width,
                                 channels_inside);
  if (pooled.numel() == 0) return pooled;
  Tensor output;
  dispatch_floating(op, "input", inputs[0].scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const AlignPlanShape plan = align_plan_shape(pyramid, align);
    check_shared_memory(op, plan.bytes<T>());
    const std::vector<Tensor> maps =
        channels_inside ? in_format<F>(op, inputs, true) : readable_maps(inputs);
    with_pack_size<F>(maps, channels_inside, [&](auto size) {
      constexpr int V = decltype(size)::value;
      const Items items(pyramid.channels / V, align.pool, channels_inside);
      launch(inputs[0], forward_kernel<F, T, V>, grid_of(op, boxes.size(0), items), kThreads,
             plan.bytes<T>(), device_pyramid(pyramid, const_views<F>(maps)),
             static_cast<const T*>(boxes.const_data_ptr()),
             static_cast<const int64_t*>(numbers.const_data_ptr()), align, plan, items,
             static_cast<F*>(pooled.mutable_data_ptr()));
    });
    output = in_format<F>(op, pooled, channels_last);
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
  const std::vector<Tensor> maps =
      empty_levels(grad, grad.scalar_type(), pyramid, is_channels_last(grad));
  dispatch_floating(op, "grad", grad.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const int at_once = rois_at_once(align.pool);
    const int64_t bins = int64_t{align.pool.height} + align.pool.width;
    const int64_t bytes = at_once * (bins * kTile * sizeof(T) + 2 * sizeof(BinRange));
    check_shared_memory(op, bytes);
    const Tensor pooled = in_format<F>(op, grad, true);
    gather_by_tiles<F, T>(op, pyramid, maps, rois, levels, AlignTiles<T>{align},
                          backward_kernel<F, T>, bytes, AlignTiles<T>{align},
                          static_cast<const F*>(pooled.const_data_ptr()), at_once);
  });
  return maps;
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("roi_align_forward.maps", TORCH_BOX(&detlite::roi_align_forward));
  m.impl("roi_align_backward.maps", TORCH_BOX(&detlite::roi_align_backward));
}
