// Greedy non-maximum suppression on CUDA.
//
// The plain kernels, for boxes in order of decreasing score; cpu/nms.cpp defines iou():
//
//   // One thread per pair of boxes.
//   __global__ void overlap(float boxes[][4], int count, float threshold, bool overlaps[]) {
//     int pair = blockIdx.x * blockDim.x + threadIdx.x, i = pair / count, j = pair % count;
//     if (i < count) overlaps[pair] = j < i && iou(boxes[j], boxes[i]) > threshold;
//   }
//
//   // A single thread.
//   __global__ void resolve(bool overlaps[], int count, bool kept[]) {
//     for (int i = 0; i < count; ++i) {
//       kept[i] = true;
//       for (int j = 0; j < i; ++j)
//         if (kept[j] && overlaps[i * count + j]) kept[i] = false;
//     }
//   }
//
// The kernels keep the same boxes. Five changes lead from this code to nms_kernels.h:
//
// 1. Store overlaps as bits. 64 boxes are a tile: a thread of overlap_kernel compares its box with
//    the boxes of a tile and writes one word. Most pairs are rejected without a division
//    (nms_overlap.h).
// 2. Process boxes in chunks of 32 tiles. A chunk is compared with the boxes kept so far and with
//    itself, so memory grows linearly, and suppressed boxes are not compared again.
// 3. Resolve a chunk by 32 warps instead of one thread. They wait for one tile after the other, and
//    the boxes of a tile are decided in a few rounds of votes (resolve_kernel).
// 4. Sort by group, then by score (prepare_kernel). A box is compared only with its own group.
//    Images are a dimension of the grid.
// 5. Leave the results on the device: collect_kernel writes the indices of the kept boxes. The host
//    reads only the size of the result of nms and batched_nms.
#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include <torch/csrc/stable/library.h>

#include "nms_kernels.h"

namespace detlite {
namespace {

// Stable sort along the last dimension; returns values and indices. The oldest supported torch has
// this operator, but no C++ wrapper for it.
std::pair<Tensor, Tensor> sort(const Tensor& values, bool descending) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  std::array<StableIValue, 4> stack{from(values), from(std::optional<bool>(true)),
                                    from(int64_t{-1}), from(descending)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::sort", "stable", stack.data(), TORCH_ABI_VERSION));
  return {to<Tensor>(stack[0]), to<Tensor>(stack[1])};
}

Tensor gather(const Tensor& values, const Tensor& index) {
  using torch::stable::detail::from;
  std::array<StableIValue, 4> stack{from(values), from(int64_t{-1}), from(index), from(false)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::gather", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// Launches the kernels that fill `survivors`. There must be at least one candidate.
void suppress(const char* op, const Candidates& candidates, double iou_threshold,
              Survivors survivors) {
  const int64_t images = candidates.images;
  const int count = static_cast<int>(candidates.count), tiles = (count + kTile - 1) / kTile;
  constexpr int64_t max_images = 65535;  // of a grid along y or z
  check(images <= max_images, op, ": CUDA supports at most ", max_images, " images, got ", images);

  const Tensor order = sort(candidates.scores, true).second;
  std::optional<Tensor> groups, places, starts;
  if (candidates.groups) {
    std::tie(groups, places) = sort(gather(*candidates.groups, order), false);
    starts = empty(order, ScalarType::Int, {images, tiles, kTile});
  }
  const int side = std::min(tiles, kChunk);
  const Tensor boxes = empty(order, candidates.boxes.scalar_type(), {images, tiles, kTile, 4});
  const Tensor bits = empty(order, ScalarType::Long, {3, images, tiles});
  const Tensor masks = empty(order, ScalarType::Long, {images, side, side, kTile});
  auto* words = mutable_data<uint64_t>(bits);
  auto* overlaps = mutable_data<uint64_t>(masks);
  dispatch_accumulate(candidates.boxes.scalar_type(), [&](auto scalar) {
    using T = decltype(scalar);
    const Sorted<T> sorted{count,
                           tiles,
                           mutable_data<Box<T>>(boxes),
                           starts ? mutable_data<int>(*starts) : nullptr,
                           reinterpret_cast<uint32_t*>(words),
                           words + images * tiles,
                           reinterpret_cast<uint32_t*>(words + 2 * images * tiles),
                           data<int64_t>(order),
                           groups ? data<int64_t>(*groups) : nullptr,
                           places ? data<int64_t>(*places) : nullptr};
    const T threshold = round_down<T>(iou_threshold), fraction = area_fraction(threshold);
    const auto image_blocks = static_cast<unsigned>(images);
    const auto start = [&](auto kernel, dim3 blocks, int threads, auto... arguments) {
      launch(candidates.boxes, kernel, blocks, threads, 0, arguments...);
    };
    const unsigned blocks = static_cast<unsigned>((tiles * kTile + kThreads - 1) / kThreads);
    start(prepare_kernel<T>, dim3(blocks, image_blocks), kThreads, CandidateView<T>(candidates),
          sorted);
    for (int first = 0; first < tiles; first += kChunk) {
      const int here = std::min(kChunk, tiles - first);
      // A block per tile of the chunk and two earlier tiles. Enough blocks to fill a GPU are
      // launched; each then processes several pairs of tiles.
      constexpr int max_blocks_y = 128;
      const dim3 grid(static_cast<unsigned>(here),
                      static_cast<unsigned>(std::min(first / 2 + here, max_blocks_y)),
                      image_blocks);
      start(overlap_kernel<T>, grid, kTile, sorted, first, side, threshold, fraction, overlaps);
      start(resolve_kernel<T>, dim3(image_blocks), here * kWarp, sorted, first, side, overlaps);
    }
    start(collect_kernel<T>, dim3(image_blocks), kWarp * std::min(kMaxWarps, 2 * tiles), sorted,
          survivors);
  });
}

// The host waits only for the number of kept boxes, which is the shape of the result.
Tensor suppress_one_image(const char* op, const Candidates& candidates, double iou_threshold) {
  const int64_t count = candidates.count;
  if (count == 0) return empty(candidates.boxes, ScalarType::Long, {0});
  const DeviceGuard guard(candidates.boxes.get_device_index());
  // The last element is the number of kept boxes.
  Tensor kept = empty(candidates.boxes, ScalarType::Long, {count + 1});
  int64_t* index = mutable_data<int64_t>(kept);
  suppress(op, candidates, iou_threshold, {static_cast<int>(count), index, nullptr, index + count});

  int64_t kept_count = 0;
  const cudaStream_t stream = current_stream(candidates.boxes);
  check_status(cudaMemcpyAsync(&kept_count, index + count, sizeof(kept_count),
                               cudaMemcpyDeviceToHost, stream));
  check_status(cudaStreamSynchronize(stream));
  return torch::stable::clone(torch::stable::narrow(kept, 0, 0, kept_count));
}

void suppress_padded(const Candidates& candidates, double iou_threshold, Tensor& index,
                     Tensor& kept) {
  const DeviceGuard guard(candidates.boxes.get_device_index());
  if (candidates.count == 0) {
    torch::stable::zero_(index);
    torch::stable::zero_(kept);
  } else if (index.numel() > 0) {
    suppress("padded_nms", candidates, iou_threshold,
             {static_cast<int>(index.size(1)), mutable_data<int64_t>(index),
              mutable_data<bool>(kept), nullptr});
  }
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("nms", TORCH_BOX(&detlite::nms<detlite::suppress_one_image>));
  m.impl("batched_nms", TORCH_BOX(&detlite::batched_nms<detlite::suppress_one_image>));
  m.impl("padded_nms", TORCH_BOX(&detlite::padded_nms<detlite::suppress_padded>));
}
