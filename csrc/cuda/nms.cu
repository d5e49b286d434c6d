// Greedy non-maximum suppression on CUDA. Boxes are sorted by group, then by score, and go by
// chunks: overlap_kernel compares those of a chunk with what was kept before and with each other,
// resolve_kernel finds what is kept of them. So memory grows with the number of boxes, not with its
// square, and what is suppressed early is not compared again. Nothing but the shape of nms's and
// batched_nms's result needs the host.
#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include <torch/csrc/stable/library.h>

#include "nms_kernels.h"

namespace detlite {
namespace {

// Each row's values sorted, equal ones in order, and their indices. torch's C++ wrappers are newer
// than the oldest torch supported; the operators are not.
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

// Fills `survivors` without waiting for the device. There is at least one candidate.
void suppress(const char* op, const Candidates& candidates, double iou_threshold,
              Survivors survivors) {
  const int64_t images = candidates.images;
  const int count = static_cast<int>(candidates.count), tiles = (count + kTile - 1) / kTile;
  constexpr int64_t most_images = 65535;  // of a grid along y or z
  check(images <= most_images, op, ": at most ", most_images, " images fit on CUDA, got ", images);

  const Tensor order = sort(candidates.scores, true).second;
  std::optional<Tensor> groups, places, starts;
  if (candidates.groups) {
    std::tie(groups, places) = sort(gather(*candidates.groups, order), false);
    starts = empty_of(ScalarType::Int, candidates, {images, tiles, kTile});
  }
  const int side = std::min(tiles, kChunk);
  const Tensor boxes =
      empty_of(candidates.boxes.scalar_type(), candidates, {images, tiles, kTile, 4});
  const Tensor bits = empty_of(ScalarType::Long, candidates, {3, images, tiles});
  const Tensor masks = empty_of(ScalarType::Long, candidates, {images, side, side, kTile});
  auto* words = static_cast<uint64_t*>(bits.mutable_data_ptr());
  auto* overlaps = static_cast<uint64_t*>(masks.mutable_data_ptr());
  const auto int64s = [](const std::optional<Tensor>& tensor) {
    return tensor ? static_cast<const int64_t*>(tensor->const_data_ptr()) : nullptr;
  };
  dispatch_accumulate(candidates.boxes.scalar_type(), [&](auto scalar) {
    using T = decltype(scalar);
    const Sorted<T> sorted{count,
                           tiles,
                           static_cast<Box<T>*>(boxes.mutable_data_ptr()),
                           starts ? static_cast<int*>(starts->mutable_data_ptr()) : nullptr,
                           reinterpret_cast<uint32_t*>(words),
                           words + images * tiles,
                           reinterpret_cast<uint32_t*>(words + 2 * images * tiles),
                           int64s(order),
                           int64s(groups),
                           int64s(places)};
    const T threshold = round_down<T>(iou_threshold), share = needed_share(threshold);
    const auto all = static_cast<unsigned>(images);
    const auto start = [&](auto kernel, dim3 blocks, int threads, auto... arguments) {
      launch(candidates.boxes, kernel, blocks, threads, 0, arguments...);
    };
    const unsigned blocks = static_cast<unsigned>((tiles * kTile + kThreads - 1) / kThreads);
    start(prepare_kernel<T>, dim3(blocks, all), kThreads, CandidateView<T>(candidates), sorted);
    for (int first = 0; first < tiles; first += kChunk) {
      const int here = std::min(kChunk, tiles - first);
      // A block for each tile of the chunk and each two before it, until there are enough to fill
      // a GPU; then they go on to further tiles.
      constexpr int most_along_y = 128;
      const dim3 grid(static_cast<unsigned>(here),
                      static_cast<unsigned>(std::min(first / 2 + here, most_along_y)), all);
      start(overlap_kernel<T>, grid, kTile, sorted, first, side, threshold, share, overlaps);
      start(resolve_kernel<T>, dim3(all), here * kWarp, sorted, first, side, overlaps);
    }
    start(collect_kernel<T>, dim3(all), kWarp * std::min(kMostWarps, 2 * tiles), sorted, survivors);
  });
}

// The host waits only to learn how many boxes were kept, which is the result's shape.
Tensor suppress_one_image(const char* op, const Candidates& candidates, double iou_threshold) {
  const int64_t count = candidates.count;
  if (count == 0) return empty_of(ScalarType::Long, candidates, {0});
  const DeviceGuard guard(candidates.boxes.get_device_index());
  // The last one is their number.
  Tensor kept = empty_of(ScalarType::Long, candidates, {count + 1});
  auto* index = static_cast<int64_t*>(kept.mutable_data_ptr());
  suppress(op, candidates, iou_threshold,
           {static_cast<int>(count), index, nullptr, index + count});

  int64_t kept_count = 0;
  const cudaStream_t stream = current_stream(candidates.boxes);
  check_status(cudaMemcpyAsync(&kept_count, index + count, sizeof(kept_count),
                               cudaMemcpyDeviceToHost, stream));
  check_status(cudaStreamSynchronize(stream));
  return torch::stable::clone(torch::stable::narrow(kept, 0, 0, kept_count));
}

Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
  constexpr const char* op = "nms";
  return suppress_one_image(op, check_candidates(op, boxes, scores, iou_threshold), iou_threshold);
}

Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                   double iou_threshold) {
  constexpr const char* op = "batched_nms";
  return suppress_one_image(op, check_candidates(op, boxes, scores, iou_threshold, idxs),
                            iou_threshold);
}

std::tuple<Tensor, Tensor> padded_nms(const Tensor& boxes, const Tensor& scores,
                                      const Tensor& groups, const Tensor& valid,
                                      double iou_threshold, int64_t limit) {
  constexpr const char* op = "padded_nms";
  const Candidates candidates = check_candidates(op, boxes, scores, iou_threshold, groups, valid);
  check_count(op, "limit", limit, 0);
  const DeviceGuard guard(boxes.get_device_index());
  Tensor index = empty_of(ScalarType::Long, candidates, {candidates.images, limit});
  Tensor taken = empty_of(ScalarType::Bool, candidates, {candidates.images, limit});
  if (candidates.count == 0) {
    torch::stable::zero_(index);
    torch::stable::zero_(taken);
  } else if (index.numel() > 0) {
    suppress(op, candidates, iou_threshold,
             {static_cast<int>(limit), static_cast<int64_t*>(index.mutable_data_ptr()),
              static_cast<bool*>(taken.mutable_data_ptr()), nullptr});
  }
  return {index, taken};
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("nms", TORCH_BOX(&detlite::nms));
  m.impl("batched_nms", TORCH_BOX(&detlite::batched_nms));
  m.impl("padded_nms", TORCH_BOX(&detlite::padded_nms));
}
