// The kernels of non-maximum suppression. nms.cu describes their order.
#pragma once

#include "common/iou.h"
#include "launch.h"
#include "common/nms.h"
#include "nms_overlap.h"
#include "warp.h"

namespace detlite {

// A tile is 64 boxes, one per bit of a word. A chunk is 32 tiles, one per warp of a block.
constexpr int kTile = 64;
constexpr int kMaxWarps = 32;
constexpr int kChunk = kMaxWarps;

// A mask of the lowest `count` bits, for any value of `count`.
__device__ inline uint64_t bits_below(int count) {
  if (count <= 0) return 0;
  return count < kTile ? (uint64_t{1} << count) - 1 : ~uint64_t{0};
}

// The candidates of all images, sorted by group, then by decreasing score. A candidate's index in
// this order is its position. Per image, arrays of boxes have an element for each place of all
// tiles, and arrays of bits have one bit per place.
template <typename T>
struct Sorted {
  int count, tiles;
  Box<T>* boxes;
  int* starts;              // the first position of the box's group; null: one group
  uint32_t* removed;        // bits of boxes known to be suppressed, by position
  uint64_t* kept;           // bits of kept boxes, by position
  uint32_t* kept_by_score;  // bits of kept boxes, by index in `order`
  const int64_t* order;     // candidates by decreasing score, [images, count]
  const int64_t* groups;    // sorted; null: one group
  const int64_t* places;    // the index in `order` of each position

  __device__ Sorted of_image(int64_t image) const {
    Sorted own = *this;
    own.boxes += image * tiles * kTile;
    own.removed += image * tiles * 2;
    own.kept += image * tiles;
    own.kept_by_score += image * tiles * 2;
    own.order += image * count;
    if (groups) {
      own.starts += image * tiles * kTile;
      own.groups += image * count;
      own.places += image * count;
    }
    return own;
  }
  __device__ int start_of(int position) const { return groups ? starts[position] : 0; }
};

// Writes the candidates in sorted order. One thread per position, including the padding of the last
// tile.
// Budget: prepare_kernel 185 instructions.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    prepare_kernel(CandidateView<T> candidates, Sorted<T> all) {
  const Sorted<T> sorted = all.of_image(blockIdx.y);
  const CandidateView<T> image = candidates.from(int64_t{blockIdx.y} * all.count);
  const int position = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (position >= sorted.tiles * kTile) return;  // only whole warps return
  Box<T> box{0, 0, 0, 0};
  bool excluded = true;
  int start = position;
  if (position < sorted.count) {
    const int64_t i = sorted.order[sorted.groups ? sorted.places[position] : position];
    excluded = !image.takes_part(i);
    if (!excluded) box = image.boxes[i];  // excluded boxes stay empty
    if (sorted.groups) {
      // Binary search for the first position of the group.
      const int64_t group = sorted.groups[position];
      for (int low = 0; low < start;) {
        const int middle = (low + start) / 2;
        if (sorted.groups[middle] < group) low = middle + 1;
        else start = middle;
      }
    }
  }
  sorted.boxes[position] = box;
  if (sorted.groups) sorted.starts[position] = start;
  const unsigned removed = vote(excluded);
  if (threadIdx.x % kWarp == 0) {
    sorted.removed[position / kWarp] = removed;
    sorted.kept_by_score[position / kWarp] = 0;
  }
}

// Compares the boxes of one tile of a chunk, which begins with tile `first`, with the tiles before
// it. For earlier chunks it is already known which boxes are kept: boxes that overlap these are
// marked in `removed`. For tiles of the same chunk it writes a word per box to masks [images, side,
// side, kTile]: the bits of the higher-scoring boxes of its group that overlap it.
//
// Each thread has one box. Blocks along y divide the earlier tiles among them.
// Budget: overlap_kernel<float> 600 instructions.
// Budget: overlap_kernel<double> 1220 instructions.
template <typename T>
__global__ void __launch_bounds__(kTile)
    overlap_kernel(Sorted<T> all, int first, int side, T threshold, T fraction, uint64_t* masks) {
  alignas(16) __shared__ Box<T> rows[kTile];
  alignas(16) __shared__ T needed[kTile];
  const Sorted<T> sorted = all.of_image(blockIdx.z);
  const int thread = static_cast<int>(threadIdx.x), local = static_cast<int>(blockIdx.x);
  const int tile = first + local, position = tile * kTile + thread;
  const Box<T> own = sorted.boxes[position];
  const int start = sorted.start_of(position), tile_start = sorted.start_of(tile * kTile);
  uint64_t* words = masks + ((int64_t{blockIdx.z} * side + local) * side) * kTile + thread;

  const int step = static_cast<int>(gridDim.y);
  for (int row_tile = tile_start / kTile + static_cast<int>(blockIdx.y); row_tile <= tile;
       row_tile += step) {
    const bool earlier = row_tile < first;
    const int row = row_tile * kTile;
    // Only the group of the tile's first box can begin in an earlier chunk.
    const uint64_t compared =
        earlier ? sorted.kept[row_tile] & ~bits_below(tile_start - row) : ~0ull;
    const int count = __popcll(compared);
    if (count == 0) continue;
    // Boxes to compare come first.
    const int before = __popcll(compared & bits_below(thread));
    const int slot = compared >> thread & 1 ? before : count + thread - before;
    __syncthreads();  // all threads have finished the previous tile
    rows[slot] = sorted.boxes[row + thread];
    needed[slot] = min_intersection(rows[slot].area(), fraction);
    __syncthreads();
    const uint64_t word = overlaps(own, fraction, rows, needed, count, threshold);
    if (earlier) {
      const unsigned removed = vote(word != 0 && start == tile_start);
      if (removed && thread % kWarp == 0) atomicOr(&sorted.removed[position / kWarp], removed);
    } else {
      const uint64_t better = bits_below(position - row) & ~bits_below(start - row);
      words[(row_tile - first) * kTile] = word & better;
    }
  }
}

// Finds which boxes of a chunk are kept. One block per image, one warp per tile, two boxes per
// lane, kWarp apart. Tiles are resolved in order, and each passes its kept boxes on to later tiles.
// Words are loaded two steps before they are used.
// Budget: resolve_kernel 520 instructions.
template <typename T>
__global__ void __launch_bounds__(kChunk* kWarp)
    resolve_kernel(Sorted<T> all, int first, int side, const uint64_t* masks) {
  __shared__ uint64_t kept[kChunk];
  const Sorted<T> sorted = all.of_image(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int tile = first + warp, position = tile * kTile + lane;
  const int from = sorted.start_of(tile * kTile) / kTile - first;
  const uint64_t* words = masks + ((int64_t{blockIdx.x} * side + warp) * side) * kTile + lane;
  struct Pair {
    uint64_t low, high;
  };
  const auto load = [&](int row_tile) -> Pair {
    if (row_tile < from || row_tile > warp) return {0, 0};
    return {words[row_tile * kTile], words[row_tile * kTile + kWarp]};
  };
  const auto vote_twice = [](bool low, bool high) {
    return vote(low) | uint64_t{vote(high)} << kWarp;
  };

  bool low_removed = sorted.removed[tile * 2] >> lane & 1;
  bool high_removed = sorted.removed[tile * 2 + 1] >> lane & 1;
  uint64_t alive = 0;
  Pair now = load(0), next = load(1);
  const int tiles = static_cast<int>(blockDim.x) / kWarp;
  // Unrolled three times so that the three pairs rotate without copies. A copy would wait for its
  // load.
#pragma unroll 3
  for (int step = 0; step < tiles; ++step) {
    const Pair after = load(step + 2);
    if (step == warp) {
      // A box depends only on higher-scoring boxes. Each round therefore decides at least one more
      // box of a chain that suppress each other, and the result is final when it no longer changes.
      const uint64_t candidates = ~vote_twice(low_removed, high_removed);
      alive = candidates;
      for (uint64_t before = ~alive; before != alive;) {
        before = alive;
        alive = candidates & ~vote_twice(now.low & before, now.high & before);
      }
      if (lane == 0) kept[warp] = alive;
    }
    __syncthreads();
    low_removed |= (now.low & kept[step]) != 0;
    high_removed |= (now.high & kept[step]) != 0;
    now = next;
    next = after;
  }

  // Written after the loop, because all warps wait for the one that is being resolved.
  if (lane == 0) sorted.kept[tile] = alive;
  if (!sorted.groups) return;
  for (int half = 0; half < kTile; half += kWarp) {
    if (!(alive >> (lane + half) & 1)) continue;
    const int place = static_cast<int>(sorted.places[position + half]);
    atomicOr(&sorted.kept_by_score[place / kWarp], 1u << place % kWarp);
  }
}

// The result: index [images, limit] and, unless null, kept [images, limit] and count [images].
struct Survivors {
  int limit;
  int64_t* index;
  bool* kept;
  int64_t* count;
};

// Converts bits in score order to indices. One block per image, several consecutive words per warp,
// one bit per lane.
// Budget: collect_kernel 740 instructions.
template <typename T>
__global__ void __launch_bounds__(kMaxWarps* kWarp)
    collect_kernel(Sorted<T> all, Survivors survivors) {
  __shared__ int sums[kMaxWarps];
  const Sorted<T> sorted = all.of_image(blockIdx.x);
  const uint32_t* bits =
      sorted.groups ? sorted.kept_by_score : reinterpret_cast<uint32_t*>(sorted.kept);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp, words = sorted.tiles * 2;
  const int words_per_warp = (words + warps - 1) / warps, begin = warp * words_per_warp;
  const int end = min(begin + words_per_warp, words), limit = survivors.limit;
  int64_t* index = survivors.index + int64_t{blockIdx.x} * limit;

  int own = 0;
  for (int w = begin + lane; w < end; w += kWarp) own += __popc(bits[w]);
  own = sum_of_warp(own);
  if (lane == 0) sums[warp] = own;
  __syncthreads();
  const int others = lane < warps ? sums[lane] : 0;
  const int total = sum_of_warp(others);
  int place = sum_of_warp(lane < warp ? others : 0);
  for (int first = begin; first < end && place < limit; first += kWarp) {
    const uint32_t loaded = first + lane < end ? bits[first + lane] : 0;
    for (int j = 0; j < min(kWarp, end - first); ++j) {
      const uint32_t word = from_lane(loaded, j);
      const int at = place + __popc(word & lanes_before(lane));
      if ((word >> lane & 1) && at < limit) index[at] = sorted.order[(first + j) * kWarp + lane];
      place += __popc(word);
    }
  }
  if (survivors.count && threadIdx.x == 0) survivors.count[blockIdx.x] = min(total, limit);
  if (!survivors.kept) return;
  bool* kept = survivors.kept + int64_t{blockIdx.x} * limit;
  for (int i = static_cast<int>(threadIdx.x); i < limit; i += static_cast<int>(blockDim.x)) {
    kept[i] = i < total;
    if (i >= total) index[i] = 0;
  }
}

}  // namespace detlite
