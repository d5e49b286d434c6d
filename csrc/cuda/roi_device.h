// What the CUDA kernels of RoIAlign and RoIPool share: maps, packs of channels, and the RoIs' checks.
#pragma once

#include <type_traits>

#include "launch.h"
#include "pyramid.h"

namespace detlite {

constexpr int kMostInt = std::numeric_limits<int>::max();

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
void with_pack_size(const std::vector<Tensor>& maps, bool channels_last, const Body& body) {
  constexpr int most = 16 / sizeof(F);
  bool fits = channels_last && maps[0].size(1) % most == 0;
  for (const Tensor& map : maps) {
    fits = fits && map.stride(1) == 1 && map.stride(0) % most == 0 && map.stride(2) % most == 0 &&
           map.stride(3) % most == 0 &&
           reinterpret_cast<uintptr_t>(map.const_data_ptr()) % (sizeof(F) * most) == 0;
  }
  if (fits) body(std::integral_constant<int, most>());
  else body(std::integral_constant<int, 1>());
}

// The image of a RoI, or kPadding. Any other index outside the batch fails torch's assertion, which
// torch reports at the next synchronisation, as for its own indexing: asking first would stall the
// stream.
template <typename T>
__device__ int64_t checked_image(const T* roi, int64_t batch_size) {
  const int64_t image = image_of(roi, batch_size);
  CUDA_KERNEL_ASSERT_MSG(image != kNoImage, "rois: an image index is outside the batch");
  return image;
}

__device__ inline int checked_level(int64_t level, int level_count) {
  CUDA_KERNEL_ASSERT_MSG(level >= 0 && level < level_count, "levels: there is no such level");
  return static_cast<int>(level);
}

// The work on one RoI's pooled features: an item is a pack of channels of one bin. Neighbouring
// threads take what lies beside in memory: packs in channels-last results, else bins. A RoI has
// `parts` blocks, so that a few RoIs fill the device too.
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

  // Calls body(item, pack, row of bins, column of bins) for this thread's items of the block's part.
  template <typename Body>
  __device__ void for_each(int part, const Body& body) const {
    const unsigned bins = height * width, total = packs * bins;
    unsigned item = part * kThreads * kItemsPerThread + threadIdx.x;
#pragma unroll 1
    for (int step = 0; step < kItemsPerThread && item < total; ++step, item += kThreads) {
      const unsigned divisor = packs_first ? packs : bins;
      const unsigned quotient = item / divisor, rest = item - quotient * divisor;
      const unsigned bin = packs_first ? quotient : rest, pack = packs_first ? rest : quotient;
      const unsigned row = bin / width;
      body(item, pack, row, bin - row * width);
    }
  }
};

// What a block may have of every GPU.
inline void check_shared_memory(const char* op, int64_t bytes) {
  constexpr int64_t most = 40 << 10;  // the kernels have some of their own
  check(bytes <= most, op, ": CUDA's kernel would need ", bytes, " bytes of shared memory, but has ",
        most, ": choose a smaller pooled size or sampling ratio, or smaller maps");
}

// Maps whose rows and columns are so near in memory that an int holds their distances.
inline std::vector<Tensor> readable_maps(std::vector<Tensor> maps) {
  for (Tensor& map : maps) {
    const int64_t reach = std::max(map.size(3) * map.stride(3), map.stride(2));
    if (reach > std::numeric_limits<int32_t>::max()) map = dense_4d(map, false);
  }
  return maps;
}

// A RoI and its part of the items have a block each.
inline dim3 grid_of(const char* op, int64_t rois, const Items& items) {
  const int64_t blocks = rois * items.parts;
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  check(items.count() <= most / 2 && blocks <= most, op, ": the result has too many elements");
  return {static_cast<unsigned>(blocks)};
}

}  // namespace detlite
