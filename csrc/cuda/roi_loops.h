// What the CUDA kernels of RoIAlign and RoIPool share.
#pragma once

#include <type_traits>

#include "launch.h"
#include "pyramid.h"

namespace detlite {

// The levels of a pyramid as a kernel's argument.
template <typename T>
struct DeviceLevel {
  View4d<T> map;
  int height, width;
  double spatial_scale;
};
template <typename T>
struct DevicePyramid {
  DeviceLevel<T> levels[kMostLevels];
  int level_count;
  int64_t batch_size, channels;
};

template <typename T>
DevicePyramid<T> device_pyramid(const PyramidShape& shape, const std::vector<View4d<T>>& maps) {
  DevicePyramid<T> pyramid{};
  pyramid.level_count = shape.level_count();
  for (int level = 0; level < pyramid.level_count; ++level) {
    const LevelShape& from = shape.levels[level];
    pyramid.levels[level] = {maps[level], from.height, from.width, from.spatial_scale};
  }
  pyramid.batch_size = shape.batch_size;
  pyramid.channels = shape.channels;
  return pyramid;
}

// V neighbouring channels of one cell, which a thread moves at once: 16 bytes are the most that the
// hardware loads by one instruction.
template <typename F, int V>
struct alignas(sizeof(F) * V) Pack {
  F values[V];
};
template <typename F, int V>
__device__ Pack<F, V> load_pack(const F* from) {
  return *reinterpret_cast<const Pack<F, V>*>(from);
}

// Calls body with V as an integral constant: 16 bytes of channels where all maps are channels-last
// and aligned for it, else one channel. Results, which are fresh and dense, are then aligned too.
template <typename F, typename Body>
void with_pack_size(const std::vector<Tensor>& maps, const Body& body) {
  constexpr int most = 16 / sizeof(F);
  bool fits = maps[0].size(1) % most == 0 && maps[0].size(1) > 1;
  for (const Tensor& map : maps) {
    fits = fits && map.stride(1) == 1 && map.stride(0) % most == 0 && map.stride(2) % most == 0 &&
           map.stride(3) % most == 0 &&
           reinterpret_cast<uintptr_t>(map.const_data_ptr()) % (sizeof(F) * most) == 0;
  }
  if (fits && is_channels_last(maps)) body(std::integral_constant<int, most>());
  else body(std::integral_constant<int, 1>());
}

// One item of the pooled features, [K, C, pooled height, pooled width]: an element, or the pack of
// channels that `channel` counts.
struct Pooled {
  int64_t roi, channel;
  int row, column;
};

// Neighbouring threads take neighbouring elements in memory, whichever dimension is innermost.
__device__ inline Pooled pooled_element(int64_t i, int64_t channels, const PoolShape& pool,
                                        bool channels_last) {
  Pooled p;
  if (channels_last) {
    p.channel = i % channels;
    i /= channels;
  }
  p.column = static_cast<int>(i % pool.width);
  i /= pool.width;
  p.row = static_cast<int>(i % pool.height);
  i /= pool.height;
  if (!channels_last) {
    p.channel = i % channels;
    i /= channels;
  }
  p.roi = i;
  return p;
}

// The image of a RoI, or kPadding. Any other index outside the batch ends the kernel with an error
// that torch reports at the next synchronisation, as its own indexing does: asking first would
// stall the stream.
template <typename T>
__device__ int64_t image_or_trap(const T* roi, int64_t batch_size) {
  const int64_t image = image_of(roi, batch_size);
  if (image == kNoImage) __trap();
  return image;
}

// A level that there is not ends the kernel likewise.
__device__ inline int64_t level_or_trap(int64_t level, int level_count) {
  if (level < 0 || level >= level_count) __trap();
  return level;
}

// The gradient of the maps, [N, H, W, C] in memory: each thread sums one channel of one cell over
// the RoIs that touch it, in order. Nothing is added to twice, so there are no atomics, results
// repeat to the last bit and every cell is written once, in the features' own type.
//
// A block has one cell. Its threads first look for the RoIs that touch it, a thread each, then share
// the row and column weights of each of those that do.
//
// Op: touches(roi, level, y, x); row_weight(roi, level, bin, y); column_weight(roi, level, bin, x);
// value(number of the pooled element, weight, cell).
constexpr int kGatherThreads = 128;

template <typename F, typename T, typename Op>
__global__ void __launch_bounds__(kGatherThreads)
    gather_gradient_kernel(DevicePyramid<F> pyramid, const T* rois, const int64_t* levels,
                           int64_t count, PoolShape pool, Op op) {
  DETLITE_LAUNCHED_SHARED(shared);
  T* weights = reinterpret_cast<T*>(shared);  // of the rows, then of the columns
  constexpr int warps = kGatherThreads / 32;
  __shared__ unsigned hits[warps];

  int64_t cell = blockIdx.x;
  int number = 0;
  for (;; ++number) {
    const DeviceLevel<F>& level = pyramid.levels[number];
    const int64_t cells = pyramid.batch_size * level.height * level.width;
    if (cell < cells) break;
    cell -= cells;
  }
  const DeviceLevel<F>& level = pyramid.levels[number];
  const int64_t image = cell / (int64_t{level.height} * level.width);
  cell %= int64_t{level.height} * level.width;
  const int y = static_cast<int>(cell / level.width), x = static_cast<int>(cell % level.width);
  const int64_t channel = int64_t{blockIdx.y} * kGatherThreads + threadIdx.x;
  const int thread = static_cast<int>(threadIdx.x);

  T sum = 0;
  for (int64_t base = 0; base < count; base += kGatherThreads) {
    bool hit = false;
    if (base + thread < count) {
      const T* roi = rois + (base + thread) * kRoiSize;
      hit = image_or_trap(roi, pyramid.batch_size) == image &&
            level_or_trap(levels[base + thread], pyramid.level_count) == number &&
            op.touches(roi, level, y, x);
    }
    const unsigned word = __ballot_sync(0xffffffffu, hit);
    if (thread % 32 == 0) hits[thread / 32] = word;
    __syncthreads();
    for (int warp = 0; warp < warps; ++warp) {
      for (unsigned left = hits[warp]; left; left &= left - 1) {
        const int64_t k = base + warp * 32 + __ffs(static_cast<int>(left)) - 1;
        const T* roi = rois + k * kRoiSize;
        for (int bin = thread; bin < pool.height + pool.width; bin += kGatherThreads) {
          weights[bin] = bin < pool.height
                             ? op.row_weight(roi, level, bin, y)
                             : op.column_weight(roi, level, bin - pool.height, x);
        }
        __syncthreads();
        if (channel < pyramid.channels) {
          for (int ph = 0; ph < pool.height; ++ph) {
            if (weights[ph] == 0) continue;
            for (int pw = 0; pw < pool.width; ++pw) {
              const T weight = weights[ph] * weights[pool.height + pw];
              if (weight == 0) continue;
              const int64_t element =
                  ((k * pool.height + ph) * pool.width + pw) * pyramid.channels + channel;
              sum += op.value(element, weight, static_cast<int32_t>(cell));
            }
          }
        }
        __syncthreads();
      }
    }
    __syncthreads();
  }
  if (channel < pyramid.channels) *level.map.at(image, channel, y, x) = static_cast<F>(sum);
}

// `maps` are channels-last.
template <typename F, typename T, typename Op>
void gather_gradient(const char* name, const PyramidShape& shape, const std::vector<Tensor>& maps,
                     const Tensor& rois, const Tensor& levels, const PoolShape& pool,
                     const Op& op) {
  int64_t cells = 0;
  for (int level = 0; level < shape.level_count(); ++level) {
    cells += shape.batch_size * shape.cells(level);
  }
  constexpr int64_t most_bins = 4096;
  check(pool.height + int64_t{pool.width} <= most_bins, name, ": pooled height and width may be ",
        most_bins, " together on CUDA");
  check(cells <= std::numeric_limits<int32_t>::max(), name, ": too many cells: ", cells);
  const int64_t channel_blocks = (shape.channels + kGatherThreads - 1) / kGatherThreads;
  check(channel_blocks <= 65535, name, ": too many channels: ", shape.channels);
  if (cells == 0 || channel_blocks == 0) return;
  const dim3 grid(static_cast<unsigned>(cells), static_cast<unsigned>(channel_blocks));
  const size_t bytes = (pool.height + size_t(pool.width)) * sizeof(T);
  const Tensor boxes = torch::stable::contiguous(rois);
  const Tensor numbers = torch::stable::contiguous(levels);
  launch(maps[0], gather_gradient_kernel<F, T, Op>, grid, kGatherThreads, bytes,
         device_pyramid(shape, mutable_views<F>(maps)),
         static_cast<const T*>(boxes.const_data_ptr()),
         static_cast<const int64_t*>(numbers.const_data_ptr()), boxes.size(0), pool, op);
}

inline std::vector<Tensor> in_format(std::vector<Tensor> maps, bool channels_last) {
  for (Tensor& map : maps) map = dense_4d(map, channels_last);
  return maps;
}

}  // namespace detlite
