// Gradients of feature maps on CUDA. A block owns a tile of kTile x kTile cells of one map and
// kTileThreads channels. It adds the gradients of all RoIs that touch the tile in order and writes
// the sums once. Without atomics on floats, results are reproducible to the last bit.
#pragma once

#include "roi_common.h"
#include "warp.h"

namespace detlite {

constexpr int kTile = 8;
constexpr int kTileThreads = 64;    // per block, one channel each
constexpr int kListThreads = 512;   // per block of list_rois_kernel
constexpr int kLoadsPerThread = 4;  // bounds that a thread compares per step
constexpr int kChunk = kTileThreads * kLoadsPerThread;

// The cells that a RoI may touch, including the last ones. Empty if first > last.
struct alignas(16) Bounds {
  int first_row, last_row, first_column, last_column;
};

// RoIs grouped by segment, which is one level of one image. `starts` [segments + 1] has the index
// of each segment's first RoI in `order` (RoI numbers) and `bounds`. RoIs keep their order within a
// segment. Padding RoIs are not listed.
struct RoiLists {
  int* starts;
  int* order;
  Bounds* bounds;
};

// Lists the RoIs of one segment per block.
// Budget: list_rois_kernel 1070 instructions.
template <typename F, typename T, typename Op>
__global__ void __launch_bounds__(kListThreads)
    list_rois_kernel(DevicePyramid<F> pyramid, const T* rois, const int64_t* levels, int count,
                     Op op, RoiLists lists) {
  constexpr int warps = kListThreads / kWarp;
  __shared__ int counts[warps];
  const int segment = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp;
  const auto segment_of = [&](int k) {
    const int64_t image = checked_image(rois + int64_t{k} * kRoiSize, pyramid.batch_size);
    if (image == kPadding) return kMaxInt;
    const int level = checked_level(levels[k], pyramid.level_count);
    return static_cast<int>(image) * pyramid.level_count + level;
  };

  int before = 0;
  for (int k = thread; k < count; k += kListThreads) before += segment_of(k) < segment;
  before = sum_of_warp(before);
  if (lane == 0) counts[warp] = before;
  __syncthreads();
  int start = 0;
  for (int w = 0; w < warps; ++w) start += counts[w];
  __syncthreads();
  if (thread == 0) lists.starts[segment] = start;

  for (int base = 0; base < count; base += kListThreads) {
    const int k = base + thread;
    const bool own = k < count && segment_of(k) == segment;
    const unsigned votes = vote(own);
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();
    int place = start + __popc(votes & lanes_before(lane));
    for (int w = 0; w < warps; ++w) {
      if (w < warp) place += counts[w];
      start += counts[w];
    }
    if (own) {
      lists.order[place] = k;
      lists.bounds[place] =
          op.bounds(rois + int64_t{k} * kRoiSize, pyramid.levels[segment % pyramid.level_count]);
    }
    __syncthreads();
  }
  if (thread == 0 && blockIdx.x == gridDim.x - 1) lists.starts[segment + 1] = start;
}

// The tile of a block and the channel of a thread.
struct Tile {
  int level, image, row, column;  // of the first cell
  int channel;

  template <typename F>
  __device__ static Tile of_block(const DevicePyramid<F>& pyramid) {
    int index = static_cast<int>(blockIdx.x), number = 0, across = 0, tiles = 0;
    for (;; ++number) {
      across = (pyramid.levels[number].width + kTile - 1) / kTile;
      tiles = across * ((pyramid.levels[number].height + kTile - 1) / kTile);
      const int all = static_cast<int>(pyramid.batch_size) * tiles;
      if (index < all) break;
      index -= all;
    }
    const int place = index % tiles;
    return {number, index / tiles, place / across * kTile, place % across * kTile,
            static_cast<int>(blockIdx.y * kTileThreads + threadIdx.x)};
  }
};

// Calls function(numbers, count) with up to kChunk RoIs that may touch the tile, in order.
// `numbers` is in shared memory, so `function` must end with a barrier. All threads of the block
// call this together.
template <typename Function>
__device__ void for_touching_rois(const RoiLists& lists, int segment, const Tile& tile,
                                  const Function& function) {
  constexpr int words = kChunk / kWarp;
  __shared__ unsigned touching[words];
  __shared__ int numbers[kChunk];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const int begin = lists.starts[segment], end = lists.starts[segment + 1];
  for (int base = begin; base < end; base += kChunk) {
    bool touches[kLoadsPerThread];
    for (int i = 0; i < kLoadsPerThread; ++i) {
      const int place = base + i * kTileThreads + thread;
      touches[i] = false;
      if (place < end) {
        const Bounds bounds = lists.bounds[place];
        touches[i] = bounds.first_row < tile.row + kTile && bounds.last_row >= tile.row &&
                     bounds.first_column < tile.column + kTile && bounds.last_column >= tile.column;
      }
      const unsigned votes = vote(touches[i]);
      if (lane == 0) touching[(i * kTileThreads + thread) / kWarp] = votes;
    }
    __syncthreads();
    int before[kLoadsPerThread] = {}, total = 0;
    for (int word = 0; word < words; ++word) {
      for (int i = 0; i < kLoadsPerThread; ++i) {
        if (word == (i * kTileThreads + thread) / kWarp) before[i] = total;
      }
      total += __popc(touching[word]);
    }
    for (int i = 0; i < kLoadsPerThread; ++i) {
      if (!touches[i]) continue;
      const unsigned own = touching[(i * kTileThreads + thread) / kWarp];
      numbers[before[i] + __popc(own & lanes_before(lane))] =
          lists.order[base + i * kTileThreads + thread];
    }
    __syncthreads();
    if (total > 0) function(numbers, total);
  }
}

// The bins of a RoI along one axis that overlap the tile. Empty if first >= end.
struct BinRange {
  int first, end;
};

__device__ inline void clear(BinRange& range) { range = {kMaxInt, 0}; }
__device__ inline void widen(BinRange& range, int bin) {
  atomicMin(&range.first, bin);
  atomicMax(&range.end, bin + 1);
}

// Processes the RoIs that may touch the tile in order, `group` RoIs at a time. First, one thread
// per bin calls look(roi, place in the group, bin, is row), which returns true if the bin overlaps
// the tile. Then all threads call add(RoI number, place, rows, columns) for each RoI. `ranges` has
// two elements per RoI.
template <typename T, typename Look, typename Add>
__device__ void add_touching_rois(const RoiLists& lists, int segment, const Tile& tile,
                                  const T* rois, const PoolShape& pool, int group, BinRange* ranges,
                                  const Look& look, const Add& add) {
  const int bins = pool.height + pool.width, thread = static_cast<int>(threadIdx.x);
  for_touching_rois(lists, segment, tile, [&](const int* numbers, int count) {
    for (int first = 0; first < count; first += group) {
      const int size = min(group, count - first);
      if (thread < 2 * size) clear(ranges[thread]);
      __syncthreads();
      for (int i = thread; i < size * bins; i += kTileThreads) {
        const int place = i / bins, bin = i % bins;
        const T* roi = rois + int64_t{numbers[first + place]} * kRoiSize;
        const bool row = bin < pool.height;
        const int own = row ? bin : bin - pool.height;
        if (look(roi, place, own, row)) widen(ranges[2 * place + !row], own);
      }
      __syncthreads();
      for (int place = 0; place < size; ++place) {
        add(int64_t{numbers[first + place]}, place, ranges[2 * place], ranges[2 * place + 1]);
      }
      __syncthreads();
    }
  });
}

// The number of RoIs whose bins the threads of a block process together, one bin per thread.
inline int roi_group_size(const PoolShape& pool) {
  return static_cast<int>(
      std::clamp<int64_t>(kTileThreads / (int64_t{pool.height} + pool.width), 1, 8));
}

// A row of a tile that is transposed for a contiguous map. The pitch avoids bank conflicts in both
// directions.
constexpr int kRowPitch = kTileThreads + 4;
template <typename T>
using TileRow = T[kTile][kRowPitch];

// Writes the tile in the memory order of the map. value(y, x) is the sum of the calling thread. All
// threads of the block call this together.
template <typename F, typename T, typename Value>
__device__ void store_tile(const DeviceLevel<F>& level, const Tile& tile, int channels,
                           TileRow<T>& row, const Value& value) {
  const View4d<F>& map = level.map;
  const int thread = static_cast<int>(threadIdx.x);
  const int height = min(kTile, level.height - tile.row);
  const int width = min(kTile, level.width - tile.column);
  if (map.stride_c == 1) {
    if (tile.channel >= channels) return;
    F* cell = map.at(tile.image, tile.channel, tile.row, tile.column);
#pragma unroll
    for (int y = 0; y < kTile; ++y) {
#pragma unroll
      for (int x = 0; x < kTile; ++x) {
        if (y < height && x < width) cell[x * map.stride_w] = static_cast<F>(value(y, x));
      }
      cell += map.stride_h;
    }
    return;
  }
  const int x = thread % kTile, first = thread / kTile;  // channels go by kTileThreads / kTile
  const int channel = tile.channel - thread + first;
#pragma unroll
  for (int y = 0; y < kTile; ++y) {
#pragma unroll
    for (int i = 0; i < kTile; ++i) row[i][thread] = value(y, i);
    __syncthreads();
    if (y < height && x < width) {
      F* cell = map.at(tile.image, channel, tile.row + y, tile.column + x);
#pragma unroll 1
      for (int i = 0; i < kTileThreads && channel + i < channels; i += kTileThreads / kTile) {
        cell[i * map.stride_c] = static_cast<F>(row[x][first + i]);
      }
    }
    __syncthreads();
  }
}

// Launches list_rois_kernel, then kernel(pyramid, rois, lists, arguments...) with one block per
// tile and kTileThreads channels.
template <typename F, typename T, typename Op, typename Kernel, typename... Arguments>
void launch_tiles(const char* op, const PoolingCall& call, const std::vector<Tensor>& maps,
                  const Op& bounds_op, Kernel kernel, size_t shared_bytes,
                  const Arguments&... arguments) {
  const PyramidShape& shape = call.pyramid;
  int64_t tiles = 0;
  for (const LevelShape& level : shape.levels) {
    tiles += shape.batch_size * ((level.height + int64_t{kTile} - 1) / kTile) *
             ((level.width + int64_t{kTile} - 1) / kTile);
  }
  const int64_t segments = shape.batch_size * shape.level_count(), count = call.roi_count();
  const int64_t channel_blocks = (shape.channels + kTileThreads - 1) / kTileThreads;
  check(tiles <= kMaxInt && segments < kMaxInt && count <= kMaxInt, op, ": too many cells or rois");
  check(channel_blocks <= 65535, op, ": too many channels: ", shape.channels);
  if (tiles == 0 || channel_blocks == 0) return;

  constexpr int64_t bounds_ints = sizeof(Bounds) / sizeof(int);
  const int64_t ints = count * (bounds_ints + 1) + segments + 1;
  const Tensor memory = empty(maps[0], ScalarType::Int, {ints});
  int* const start = mutable_data<int>(memory);
  const RoiLists lists{start + count * (bounds_ints + 1), start + count * bounds_ints,
                       reinterpret_cast<Bounds*>(start)};
  const T* rois = data<T>(call.rois);
  const DevicePyramid<F> pyramid = device_pyramid(shape, views<F>(maps));
  launch(maps[0], list_rois_kernel<F, T, Op>, static_cast<unsigned>(segments), kListThreads, 0,
         pyramid, rois, data<int64_t>(call.levels), static_cast<int>(count), bounds_op, lists);
  launch(maps[0], kernel, dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(channel_blocks)),
         kTileThreads, shared_bytes, pyramid, rois, lists, arguments...);
}

}  // namespace detlite
