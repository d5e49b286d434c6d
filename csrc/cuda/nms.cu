// Greedy non-maximum suppression on CUDA: all pairs to a bit mask, then one block walks the mask in
// score order. The host waits only to learn how many boxes were kept, which is the result's shape.
#include <array>

#include <torch/csrc/stable/library.h>

#include "iou.h"
#include "launch.h"
#include "nms.h"

namespace detlite {
namespace {

// Candidates are handled in blocks of as many as one word has bits.
constexpr int kWord = 64;

// mask[i * words + w], bit j: candidate i, if kept, suppresses candidate w * 64 + j, both counted
// in score order. Bits on and before the diagonal stay zero.
template <typename T>
__global__ void overlap_kernel(int64_t count, const Box<T>* boxes, const int64_t* order,
                               const int64_t* idxs, T threshold, uint64_t* mask) {
  const int64_t row_block = blockIdx.y, column_block = blockIdx.x;
  const int64_t words = (count + kWord - 1) / kWord;
  const int64_t row = row_block * kWord + threadIdx.x;
  const int64_t first_column = column_block * kWord;
  const int columns = static_cast<int>(min(int64_t{kWord}, count - first_column));

  __shared__ Box<T> column_boxes[kWord];
  __shared__ int64_t column_groups[kWord];
  // The choice is the same for the whole block, so all of it meets at the barrier.
  uint64_t word = 0;
  if (column_block >= row_block) {
    if (threadIdx.x < columns) {
      const int64_t box = order[first_column + threadIdx.x];
      column_boxes[threadIdx.x] = boxes[box];
      column_groups[threadIdx.x] = idxs ? idxs[box] : 0;
    }
    __syncthreads();
    if (row < count) {
      const int64_t index = order[row];
      const Box<T> box = boxes[index];
      const T area = box.area();
      const int64_t group = idxs ? idxs[index] : 0;
      for (int j = 0; j < columns; ++j) {
        if (first_column + j > row && column_groups[j] == group &&
            iou(box, area, column_boxes[j], column_boxes[j].area()) > threshold) {
          word |= uint64_t{1} << j;
        }
      }
    }
  }
  if (row < count) mask[row * words + column_block] = word;
}

// One block. `removed` holds a bit for each candidate; kept and kept_count are the result.
template <typename T>
__global__ void gather_kernel(int64_t count, const Box<T>* boxes, const T* scores,
                              const int64_t* order, const uint64_t* mask, uint64_t* removed,
                              int64_t* kept, int64_t* kept_count) {
  const int64_t words = (count + kWord - 1) / kWord;
  for (int64_t w = threadIdx.x; w < words; w += blockDim.x) {
    uint64_t invalid = 0;
    for (int j = 0; j < kWord; ++j) {
      const int64_t i = w * kWord + j;
      if (i >= count || isnan(scores[order[i]]) || boxes[order[i]].has_nan()) {
        invalid |= uint64_t{1} << j;
      }
    }
    removed[w] = invalid;
  }
  __syncthreads();

  __shared__ uint64_t survivors;
  __shared__ uint64_t among_themselves[kWord];  // the word's own candidates, loaded at once
  int64_t total = 0;
  for (int64_t w = 0; w < words; ++w) {
    if (threadIdx.x < kWord) {
      const int64_t i = w * kWord + threadIdx.x;
      among_themselves[threadIdx.x] = i < count ? mask[i * words + w] : 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      uint64_t gone = removed[w], alive = 0;
      for (int j = 0; j < kWord; ++j) {
        if (gone >> j & 1) continue;
        alive |= uint64_t{1} << j;
        gone |= among_themselves[j];
      }
      survivors = alive;
    }
    __syncthreads();
    const uint64_t alive = survivors;
    if (threadIdx.x < kWord && (alive >> threadIdx.x & 1)) {
      const int before = __popcll(alive & ((uint64_t{1} << threadIdx.x) - 1));
      kept[total + before] = order[w * kWord + threadIdx.x];
    }
    total += __popcll(alive);
    for (int64_t v = w + 1 + threadIdx.x; v < words; v += blockDim.x) {
      uint64_t gone = 0;
      for (uint64_t left = alive; left; left &= left - 1) {
        gone |= mask[(w * kWord + __ffsll(static_cast<long long>(left)) - 1) * words + v];
      }
      removed[v] |= gone;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *kept_count = total;
}

// Indices by decreasing score, equal ones in order. torch's C++ wrapper is newer than the oldest
// torch supported; the operator is not.
Tensor order_by_score(const Tensor& scores) {
  using torch::stable::detail::from;
  std::array<StableIValue, 4> stack{from(scores), from(std::optional<bool>(true)), from(int64_t{0}),
                                    from(true)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::sort", "stable", stack.data(), TORCH_ABI_VERSION));
  torch::stable::detail::to<Tensor>(stack[0]);  // takes the sorted scores, to free them
  return torch::stable::detail::to<Tensor>(stack[1]);
}

Tensor suppress(const Candidates& candidates, double iou_threshold) {
  const int64_t count = candidates.count();
  if (count == 0) return empty_indices(candidates.boxes, 0);
  const DeviceGuard guard(candidates.boxes.get_device_index());
  const int64_t words = (count + kWord - 1) / kWord;
  check(words <= 65535, "nms: at most ", 65535 * kWord, " boxes fit on CUDA, got ", count);

  const Tensor order = order_by_score(candidates.scores);
  const Tensor mask = empty_indices(candidates.boxes, count * words);
  const Tensor removed = empty_indices(candidates.boxes, words);
  const Tensor kept = empty_indices(candidates.boxes, count + 1);  // the last one is their number
  auto* kept_indices = static_cast<int64_t*>(kept.mutable_data_ptr());
  const auto* sorted = static_cast<const int64_t*>(order.const_data_ptr());
  const auto* idxs = candidates.idxs
                         ? static_cast<const int64_t*>(candidates.idxs->const_data_ptr())
                         : nullptr;
  dispatch_accumulate(candidates.boxes.scalar_type(), [&](auto scalar) {
    using T = decltype(scalar);
    const auto* boxes = static_cast<const Box<T>*>(candidates.boxes.const_data_ptr());
    auto* bits = static_cast<uint64_t*>(mask.mutable_data_ptr());
    const dim3 grid(static_cast<unsigned>(words), static_cast<unsigned>(words));
    launch(candidates.boxes, overlap_kernel<T>, grid, kWord, 0, count, boxes, sorted, idxs,
           round_down<T>(iou_threshold), bits);
    launch(candidates.boxes, gather_kernel<T>, 1, 1024, 0, count, boxes,
           static_cast<const T*>(candidates.scores.const_data_ptr()), sorted, bits,
           static_cast<uint64_t*>(removed.mutable_data_ptr()), kept_indices, kept_indices + count);
  });

  int64_t kept_count = 0;
  const cudaStream_t stream = current_stream(candidates.boxes);
  STD_CUDA_CHECK(cudaMemcpyAsync(&kept_count, kept_indices + count, sizeof(kept_count),
                                 cudaMemcpyDeviceToHost, stream));
  STD_CUDA_CHECK(cudaStreamSynchronize(stream));
  Tensor all = kept;
  return torch::stable::clone(torch::stable::narrow(all, 0, 0, kept_count));
}

Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
  return suppress(check_candidates("nms", boxes, scores, std::nullopt, iou_threshold),
                  iou_threshold);
}

Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                   double iou_threshold) {
  return suppress(check_candidates("batched_nms", boxes, scores, idxs, iou_threshold),
                  iou_threshold);
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("nms", TORCH_BOX(&detlite::nms));
  m.impl("batched_nms", TORCH_BOX(&detlite::batched_nms));
}
