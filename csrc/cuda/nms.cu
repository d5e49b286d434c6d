// Greedy non-maximum suppression on CUDA: all pairs to a bit mask, then one block walks the mask in
// score order. Nothing but the shape of nms's and batched_nms's result needs the host.
#include <array>

#include <torch/csrc/stable/library.h>

#include "iou.h"
#include "launch.h"
#include "nms.h"

namespace detlite {
namespace {

// Candidates are handled in blocks of as many as one word has bits.
constexpr int kWord = 64;

// Where the survivors go: index [images, limit] and, unless null, whether each place is taken and how
// many are.
struct Survivors {
  int64_t limit;
  int64_t* index;
  bool* taken;
  int64_t* count;
};

C10_HOST_DEVICE inline int64_t words_for(int64_t count) { return (count + kWord - 1) / kWord; }

// mask[i * words + w], bit j: candidate i, if kept, suppresses candidate w * 64 + j, both counted
// in score order. Bits on and before the diagonal stay zero. Images lie along the grid's z.
template <typename T>
__global__ void overlap_kernel(int64_t count, CandidateView<T> images, const int64_t* orders,
                               T threshold, uint64_t* masks) {
  const int64_t row_block = blockIdx.y, column_block = blockIdx.x, image = blockIdx.z;
  const int64_t words = words_for(count);
  const CandidateView<T> candidates = images.from(image * count);
  const int64_t* order = orders + image * count;
  const int64_t row = row_block * kWord + threadIdx.x;
  const int64_t first_column = column_block * kWord;
  const int columns = static_cast<int>(min(int64_t{kWord}, count - first_column));
  const auto group_of = [&](int64_t i) { return candidates.groups ? candidates.groups[i] : 0; };

  __shared__ Box<T> column_boxes[kWord];
  __shared__ int64_t column_groups[kWord];
  // The choice is the same for the whole block, so all of it meets at the barrier.
  uint64_t word = 0;
  if (column_block >= row_block) {
    if (threadIdx.x < columns) {
      const int64_t index = order[first_column + threadIdx.x];
      column_boxes[threadIdx.x] = candidates.boxes[index];
      column_groups[threadIdx.x] = group_of(index);
    }
    __syncthreads();
    if (row < count) {
      const int64_t index = order[row];
      const Box<T> box = candidates.boxes[index];
      const T area = box.area();
      const int64_t group = group_of(index);
      for (int j = 0; j < columns; ++j) {
        if (first_column + j > row && column_groups[j] == group &&
            iou(box, area, column_boxes[j], column_boxes[j].area()) > threshold) {
          word |= uint64_t{1} << j;
        }
      }
    }
  }
  if (row < count) masks[(image * count + row) * words + column_block] = word;
}

constexpr int kGatherThreads = 1024;

// One block an image. `removed_words` holds a bit for each candidate.
template <typename T>
__global__ void __launch_bounds__(kGatherThreads)
    gather_kernel(int64_t count, CandidateView<T> images, const int64_t* orders,
                  const uint64_t* masks, uint64_t* removed_words, Survivors survivors) {
  const int64_t words = words_for(count), image = blockIdx.x, limit = survivors.limit;
  const CandidateView<T> candidates = images.from(image * count);
  const int64_t* order = orders + image * count;
  const uint64_t* mask = masks + image * count * words;
  uint64_t* removed = removed_words + image * words;
  int64_t* kept = survivors.index + image * limit;
  for (int64_t w = threadIdx.x; w < words; w += blockDim.x) {
    uint64_t invalid = 0;
    for (int j = 0; j < kWord; ++j) {
      const int64_t i = w * kWord + j;
      if (i >= count || !candidates.takes_part(order[i])) invalid |= uint64_t{1} << j;
    }
    removed[w] = invalid;
  }
  __syncthreads();

  __shared__ uint64_t shared_alive;
  __shared__ uint64_t among_themselves[kWord];  // the word's own candidates, loaded at once
  int64_t total = 0;
  for (int64_t w = 0; w < words && total < limit; ++w) {
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
      shared_alive = alive;
    }
    __syncthreads();
    const uint64_t alive = shared_alive;
    if (threadIdx.x < kWord && (alive >> threadIdx.x & 1)) {
      const int64_t place = total + __popcll(alive & ((uint64_t{1} << threadIdx.x) - 1));
      if (place < limit) kept[place] = order[w * kWord + threadIdx.x];
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
  if (survivors.count && threadIdx.x == 0) survivors.count[image] = min(total, limit);
  if (!survivors.taken) return;
  for (int64_t i = threadIdx.x; i < limit; i += blockDim.x) {
    survivors.taken[image * limit + i] = i < total;
    if (i >= total) kept[i] = 0;
  }
}

// Each image's indices by decreasing score, equal ones in order. torch's C++ wrapper is newer than
// the oldest torch supported; the operator is not.
Tensor order_by_score(const Tensor& scores) {
  using torch::stable::detail::from;
  std::array<StableIValue, 4> stack{from(scores), from(std::optional<bool>(true)),
                                    from(int64_t{-1}), from(true)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::sort", "stable", stack.data(), TORCH_ABI_VERSION));
  torch::stable::detail::to<Tensor>(stack[0]);  // takes the sorted scores, to free them
  return torch::stable::detail::to<Tensor>(stack[1]);
}

// Fills `survivors` without waiting for the device. There is at least one candidate.
void suppress(const char* op, const Candidates& candidates, double iou_threshold,
              Survivors survivors) {
  const int64_t images = candidates.images, count = candidates.count, words = words_for(count);
  constexpr int64_t most_blocks = 65535;  // of a grid along y or z
  check(words <= most_blocks, op, ": at most ", most_blocks * kWord, " boxes fit on CUDA, got ",
        count);
  check(images <= most_blocks, op, ": at most ", most_blocks, " images fit on CUDA, got ", images);

  const Tensor order = order_by_score(candidates.scores);
  const Tensor mask = empty_of(ScalarType::Long, candidates, {images, count, words});
  const Tensor removed = empty_of(ScalarType::Long, candidates, {images, words});
  const auto* sorted = static_cast<const int64_t*>(order.const_data_ptr());
  auto* bits = static_cast<uint64_t*>(mask.mutable_data_ptr());
  dispatch_accumulate(candidates.boxes.scalar_type(), [&](auto scalar) {
    using T = decltype(scalar);
    const CandidateView<T> all(candidates);
    const auto side = static_cast<unsigned>(words);
    launch(candidates.boxes, overlap_kernel<T>, dim3(side, side, static_cast<unsigned>(images)),
           kWord, 0, count, all, sorted, round_down<T>(iou_threshold), bits);
    launch(candidates.boxes, gather_kernel<T>, static_cast<unsigned>(images), kGatherThreads, 0,
           count, all, sorted, bits, static_cast<uint64_t*>(removed.mutable_data_ptr()), survivors);
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
  suppress(op, candidates, iou_threshold, {count, index, nullptr, index + count});

  int64_t kept_count = 0;
  const cudaStream_t stream = current_stream(candidates.boxes);
  STD_CUDA_CHECK(cudaMemcpyAsync(&kept_count, index + count, sizeof(kept_count),
                                 cudaMemcpyDeviceToHost, stream));
  STD_CUDA_CHECK(cudaStreamSynchronize(stream));
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
             {limit, static_cast<int64_t*>(index.mutable_data_ptr()),
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
