// Shared by the CUDA kernels of RoIAlign and RoIPool: maps, packs of channels, checks of RoIs.
#pragma once

#include <type_traits>

#include "launch.h"
#include "common/roi_pooling.h"

namespace detlite {

constexpr int kMaxInt = std::numeric_limits<int>::max();

// The levels of a pyramid as a kernel argument.
template <typename T>
struct DeviceLevel {
  View4d<T> map;
  int height, width;
  double spatial_scale;
};
template <typename T>
struct DevicePyramid {
  DeviceLevel<T> levels[kMaxLevels];
  int level_count;
  int64_t batch_size;
  int channels;
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
  pyramid.channels = static_cast<int>(shape.channels);
  return pyramid;
}

// V neighbouring channels of one cell, which a thread moves with one instruction of up to 16 bytes.
template <typename F, int V>
struct alignas(sizeof(F) * V) Pack {
  F values[V];
};
template <typename F, int V>
__device__ Pack<F, V> load_pack(const F* from) {
  return *reinterpret_cast<const Pack<F, V>*>(from);
}

// Calls function(V) with V as an integral constant: 16 bytes of channels if all maps are
// channels-last and aligned for that, otherwise one channel. New results are dense and therefore
// aligned too.
template <typename F, typename Function>
void with_pack_size(const std::vector<Tensor>& maps, bool channels_last, const Function& function) {
  constexpr int pack = 16 / sizeof(F);
  bool aligned = channels_last && maps[0].size(1) % pack == 0;
  for (const Tensor& map : maps) {
    aligned = aligned && map.stride(1) == 1 && map.stride(0) % pack == 0 &&
              map.stride(2) % pack == 0 && map.stride(3) % pack == 0 &&
              reinterpret_cast<uintptr_t>(map.const_data_ptr()) % (sizeof(F) * pack) == 0;
  }
  if (aligned) function(std::integral_constant<int, pack>());
  else function(std::integral_constant<int, 1>());
}

// Returns the image of a RoI, or kPadding. Any other index outside of the batch fails torch's
// device assertion, which torch reports at the next synchronization, as for its own indexing. A
// check on the host would stall the stream.
template <typename T>
__device__ int64_t checked_image(const T* roi, int64_t batch_size) {
  const int64_t image = image_of(roi, batch_size);
  CUDA_KERNEL_ASSERT_MSG(image != kInvalidImage, "rois: a batch index is outside of the batch");
  return image;
}

__device__ inline int checked_level(int64_t level, int level_count) {
  CUDA_KERNEL_ASSERT_MSG(level >= 0 && level < level_count, "levels: a level does not exist");
  return static_cast<int>(level);
}

// The work items of one RoI: an item is a pack of channels of one bin. Neighbouring threads process
// items that are neighbours in memory: packs in channels-last results, else bins. A RoI is divided
// into `parts` blocks, so that a few RoIs can also fill the device.
constexpr int kItemsPerThread = 4;

struct Items {
  unsigned packs, height, width;
  bool packs_first;
  int parts;

  __host__ Items(int64_t packs, const PoolShape& pool, bool packs_first)
      : packs(static_cast<unsigned>(packs)),
        height(pool.height),
        width(pool.width),
        packs_first(packs_first),
        parts(static_cast<int>((count() + kThreads * kItemsPerThread - 1) /
                               (kThreads * kItemsPerThread))) {}

  C10_HOST_DEVICE int64_t count() const { return int64_t{packs} * height * width; }

  // Calls function(item, pack, row of bins, column of bins) for the items of this thread.
  template <typename Function>
  __device__ void for_each(int part, const Function& function) const {
    const unsigned bins = height * width, total = packs * bins;
    unsigned item = part * kThreads * kItemsPerThread + threadIdx.x;
#pragma unroll 1
    for (int step = 0; step < kItemsPerThread && item < total; ++step, item += kThreads) {
      const unsigned divisor = packs_first ? packs : bins;
      const unsigned quotient = item / divisor, rest = item - quotient * divisor;
      const unsigned bin = packs_first ? quotient : rest, pack = packs_first ? rest : quotient;
      const unsigned row = bin / width;
      function(item, pack, row, bin - row * width);
    }
  }
};

// Every GPU has 48 KiB of shared memory per block. Kernels use the rest for static variables.
inline void check_shared_memory(const char* op, int64_t bytes) {
  constexpr int64_t limit = 40 << 10;
  check(bytes <= limit, op, ": the CUDA kernel needs ", bytes, " bytes of shared memory, but has ",
        limit, ". Use a smaller pooled size, a smaller sampling ratio or smaller maps");
}

// Returns maps whose row and column strides fit an int.
inline std::vector<Tensor> readable_maps(std::vector<Tensor> maps) {
  for (Tensor& map : maps) {
    const int64_t reach = std::max(map.size(3) * map.stride(3), map.stride(2));
    if (reach > std::numeric_limits<int32_t>::max()) map = dense_4d(map, false);
  }
  return maps;
}

// One block per part of each RoI.
inline dim3 grid_of(const char* op, int64_t rois, const Items& items) {
  const int64_t blocks = rois * items.parts;
  check(items.count() <= kMaxInt / 2 && blocks <= kMaxInt, op,
        ": the result has too many elements");
  return {static_cast<unsigned>(blocks)};
}

}  // namespace detlite
