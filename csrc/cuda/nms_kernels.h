// The kernels of non-maximum suppression; nms.cu says how they follow each other.
#pragma once

#include "iou.h"
#include "launch.h"
#include "nms.h"
#include "overlaps.h"
#include "warp.h"

namespace detlite {

// Boxes are handled in tiles of as many as a word has bits, and tiles in chunks of as many as a
// block has warps.
constexpr int kTile = 64;
constexpr int kMostWarps = 32;
constexpr int kChunk = kMostWarps;

// The bits under `count`, which may be any number.
__device__ inline uint64_t bits_below(int count) {
  if (count <= 0) return 0;
  return count < kTile ? (uint64_t{1} << count) - 1 : ~uint64_t{0};
}

// The candidates of all images, at their positions: sorted by group, then by decreasing score.
// Arrays of boxes are as long as all tiles of an image, those of bits have a word for each tile.
template <typename T>
struct Sorted {
  int count, tiles;
  Box<T>* boxes;
  int* starts;         // the position where the own group begins; null: all are one group
  uint32_t* removed;   // what is not kept, as far as is known
  uint64_t* kept;      // what is kept, by position
  uint32_t* best;      // and by place in the order of scores
  const int64_t* order;   // the candidates by decreasing score, [images, count]
  const int64_t* groups;  // sorted; null: all are one group
  const int64_t* places;  // where in `order` each position is

  __device__ Sorted of_image(int64_t image) const {
    Sorted own = *this;
    own.boxes += image * tiles * kTile;
    own.removed += image * tiles * 2;
    own.kept += image * tiles;
    own.best += image * tiles * 2;
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

// Lays the candidates out. A thread for each position, the last tile's empty ones too.
// Budget: prepare_kernel 185 instructions.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    prepare_kernel(CandidateView<T> candidates, Sorted<T> all) {
  const Sorted<T> sorted = all.of_image(blockIdx.y);
  const CandidateView<T> image = candidates.from(int64_t{blockIdx.y} * all.count);
  const int position = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (position >= sorted.tiles * kTile) return;  // whole warps
  Box<T> box{0, 0, 0, 0};
  bool out = true;
  int start = position;
  if (position < sorted.count) {
    const int64_t i = sorted.order[sorted.groups ? sorted.places[position] : position];
    out = !image.takes_part(i);
    if (!out) box = image.boxes[i];  // the rest overlap nothing
    if (sorted.groups) {
      // The first position of the same group.
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
  const unsigned removed = vote(out);
  if (threadIdx.x % kWarp == 0) {
    sorted.removed[position / kWarp] = removed;
    sorted.best[position / kWarp] = 0;
  }
}

// What may suppress the boxes of one tile of the chunk that begins with tile `first`. Of earlier
// chunks it is known what is kept: overlaps with that are marked in `removed`. Tiles of the chunk
// itself leave a word for each box, the bits of the better ones of its group that overlap it, in
// masks [images, kChunk, kChunk, kTile], or less where there are fewer tiles.
//
// A thread has a box; blocks along y share the tiles before it.
// Budget: overlap_kernel<float> 600 instructions.
// Budget: overlap_kernel<double> 1220 instructions.
template <typename T>
__global__ void __launch_bounds__(kTile)
    overlap_kernel(Sorted<T> all, int first, int side, T threshold, T share, uint64_t* masks) {
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
    // Earlier chunks share but one group with this one: that of the tile's first box.
    const uint64_t taken = earlier ? sorted.kept[row_tile] & ~bits_below(tile_start - row) : ~0ull;
    const int count = __popcll(taken);
    if (count == 0) continue;
    // Those to compare come first.
    const int before = __popcll(taken & bits_below(thread));
    const int slot = taken >> thread & 1 ? before : count + thread - before;
    __syncthreads();  // the tile before is done with
    rows[slot] = sorted.boxes[row + thread];
    needed[slot] = needed_intersection(rows[slot].area(), share);
    __syncthreads();
    const uint64_t word = overlaps(own, share, rows, needed, count, threshold);
    if (earlier) {
      const unsigned removed = vote(word != 0 && start == tile_start);
      if (removed && thread % kWarp == 0) atomicOr(&sorted.removed[position / kWarp], removed);
    } else {
      const uint64_t better = bits_below(position - row) & ~bits_below(start - row);
      words[(row_tile - first) * kTile] = word & better;
    }
  }
}

// Finds what is kept of a chunk. A block has an image, a warp a tile, a lane two boxes, kWarp apart.
// Tile after tile is resolved, and tells the later ones what it kept. Words are loaded two steps
// before they are asked for.
// Budget: resolve_kernel 520 instructions.
template <typename T>
__global__ void __launch_bounds__(kChunk * kWarp)
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

  bool low_gone = sorted.removed[tile * 2] >> lane & 1;
  bool high_gone = sorted.removed[tile * 2 + 1] >> lane & 1;
  uint64_t alive = 0;
  Pair now = load(0), next = load(1);
  const int tiles = static_cast<int>(blockDim.x) / kWarp;
  // By three, so that the three pairs change their names: to copy one would wait for its loads.
#pragma unroll 3
  for (int step = 0; step < tiles; ++step) {
    const Pair after = load(step + 2);
    if (step == warp) {
      // Who is kept depends on better boxes alone, so each round settles one more of a chain of
      // boxes that suppress each other, and what no longer changes is right.
      const uint64_t candidates = ~vote_twice(low_gone, high_gone);
      alive = candidates;
      for (uint64_t before = ~alive; before != alive;) {
        before = alive;
        alive = candidates & ~vote_twice(now.low & before, now.high & before);
      }
      if (lane == 0) kept[warp] = alive;
    }
    __syncthreads();
    low_gone |= (now.low & kept[step]) != 0;
    high_gone |= (now.high & kept[step]) != 0;
    now = next;
    next = after;
  }

  // Only now, since all wait for the warp whose turn it is.
  if (lane == 0) sorted.kept[tile] = alive;
  if (!sorted.groups) return;
  for (int half = 0; half < kTile; half += kWarp) {
    if (!(alive >> (lane + half) & 1)) continue;
    const int place = static_cast<int>(sorted.places[position + half]);
    atomicOr(&sorted.best[place / kWarp], 1u << place % kWarp);
  }
}

// Where the survivors go: index [images, limit] and, unless null, whether each place is taken and
// how many are.
struct Survivors {
  int limit;
  int64_t* index;
  bool* taken;
  int64_t* count;
};

// From bits in the order of scores to indices. A block has an image, a warp some words in a row, a
// lane a bit.
// Budget: collect_kernel 740 instructions.
template <typename T>
__global__ void __launch_bounds__(kMostWarps * kWarp)
    collect_kernel(Sorted<T> all, Survivors survivors) {
  __shared__ int sums[kMostWarps];
  const Sorted<T> sorted = all.of_image(blockIdx.x);
  const uint32_t* bits = sorted.groups ? sorted.best : reinterpret_cast<uint32_t*>(sorted.kept);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp, words = sorted.tiles * 2;
  const int share = (words + warps - 1) / warps, begin = warp * share;
  const int end = min(begin + share, words), limit = survivors.limit;
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
  if (!survivors.taken) return;
  bool* taken = survivors.taken + int64_t{blockIdx.x} * limit;
  for (int i = static_cast<int>(threadIdx.x); i < limit; i += static_cast<int>(blockDim.x)) {
    taken[i] = i < total;
    if (i >= total) index[i] = 0;
  }
}

}  // namespace detlite
