// Matching on CUDA: a thread for each candidate, the ground truth a tile at a time in shared memory.
// The highest overlap of each ground truth is a maximum of integers, since floats of zero or more
// are ordered as their bits are: the order in which threads arrive does not matter.
#include "match_boxes.h"

#include <torch/csrc/stable/library.h>

#include "launch.h"

namespace detlite {
namespace {

// As many as a block has threads, each of which loads one.
constexpr int kTile = kThreads;

struct Boxes {
  const Box<float>* truth;
  const bool* valid;
  const Box<float>* candidates;
  int64_t truth_count, count, candidate_step;
};

// Zero where either is NaN or neither has an area.
__device__ float overlap(const Box<float>& a, float area_a, const Box<float>& b, float area_b) {
  const float quotient = iou(a, area_a, b, area_b);
  return quotient > 0 ? quotient : 0.0f;
}

// index and best_iou [images, count]; highest [images, truth_count], bits of floats, zero before.
__global__ void __launch_bounds__(kThreads)
    match_kernel(Boxes boxes, int64_t* index, float* best_iou, int* highest) {
  __shared__ Box<float> truth[kTile];
  __shared__ float areas[kTile];
  __shared__ bool valid[kTile];
  __shared__ int tile_highest[kTile];
  const int64_t image = blockIdx.y, i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const bool inside = i < boxes.count;
  const Box<float> none{0, 0, 0, 0};
  const Box<float> own = inside ? boxes.candidates[image * boxes.candidate_step + i] : none;
  const float own_area = area_between(own);
  int64_t best = -1;
  float most = 0;
  for (int64_t first = 0; first < boxes.truth_count; first += kTile) {
    const int size = static_cast<int>(min(int64_t{kTile}, boxes.truth_count - first));
    const int64_t loaded = image * boxes.truth_count + first + threadIdx.x;
    if (threadIdx.x < size) {
      truth[threadIdx.x] = boxes.truth[loaded];
      areas[threadIdx.x] = area_between(boxes.truth[loaded]);
      valid[threadIdx.x] = boxes.valid[loaded];
      tile_highest[threadIdx.x] = 0;
    }
    __syncthreads();
    for (int j = 0; j < size; ++j) {
      if (!valid[j]) continue;
      const float here = overlap(truth[j], areas[j], own, own_area);
      if (here > most || best < 0) {
        most = here;
        best = first + j;
      }
      const int bits = __float_as_int(here);
      // Asked first, since a maximum is seldom a new one. A late answer is only too low.
      if (bits > tile_highest[j]) atomicMax(&tile_highest[j], bits);
    }
    __syncthreads();
    if (threadIdx.x < size && tile_highest[threadIdx.x] > 0) {
      atomicMax(&highest[loaded], tile_highest[threadIdx.x]);
    }
    __syncthreads();
  }
  if (inside) {
    index[image * boxes.count + i] = best;
    best_iou[image * boxes.count + i] = most;
  }
}

// Whether the candidate has the highest overlap of any ground truth.
__global__ void __launch_bounds__(kThreads)
    mark_kernel(Boxes boxes, const float* best_iou, const int* highest, bool* marks) {
  __shared__ Box<float> truth[kTile];
  __shared__ float areas[kTile];
  __shared__ int tile_highest[kTile];
  const int64_t image = blockIdx.y, i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const bool inside = i < boxes.count;
  const Box<float> none{0, 0, 0, 0};
  const Box<float> own = inside ? boxes.candidates[image * boxes.candidate_step + i] : none;
  const float own_area = area_between(own);
  const int most = inside ? __float_as_int(best_iou[image * boxes.count + i]) : 0;
  bool marked = false;
  for (int64_t first = 0; first < boxes.truth_count; first += kTile) {
    const int size = static_cast<int>(min(int64_t{kTile}, boxes.truth_count - first));
    const int64_t loaded = image * boxes.truth_count + first + threadIdx.x;
    if (threadIdx.x < size) {
      truth[threadIdx.x] = boxes.truth[loaded];
      areas[threadIdx.x] = area_between(boxes.truth[loaded]);
      tile_highest[threadIdx.x] = highest[loaded];
    }
    __syncthreads();
    for (int j = 0; j < size && !marked; ++j) {
      const int wanted = tile_highest[j];
      if (wanted == 0 || wanted > most) continue;  // above any overlap of the candidate
      marked = __float_as_int(overlap(truth[j], areas[j], own, own_area)) == wanted;
    }
    __syncthreads();
  }
  if (inside) marks[image * boxes.count + i] = marked;
}

std::tuple<Tensor, Tensor, Tensor> match_boxes(const Tensor& truth, const Tensor& valid,
                                               const Tensor& candidates) {
  const Matching matching = check_matching(truth, valid, candidates);
  constexpr int64_t most_images = 65535;  // of a grid along y
  check(matching.images <= most_images, "match_boxes: at most ", most_images,
        " images fit on CUDA, got ", matching.images);
  const DeviceGuard guard(truth.get_device_index());
  const Matches matches(matching);
  if (matching.images == 0 || matching.count == 0) return {matches.index, matches.iou, matches.best};

  const std::array<int64_t, 2> shape{matching.images, matching.truth_count};
  Tensor highest = torch::stable::empty({shape.data(), shape.size()}, ScalarType::Int, std::nullopt,
                                        truth.device());
  torch::stable::zero_(highest);
  auto* bits = static_cast<int*>(highest.mutable_data_ptr());
  auto* iou = static_cast<float*>(matches.iou.mutable_data_ptr());
  const Boxes boxes{matching.truth_of(0),  matching.valid_of(0), matching.candidates_of(0),
                    matching.truth_count, matching.count,       matching.candidate_step};
  const dim3 grid(static_cast<unsigned>((matching.count + kThreads - 1) / kThreads),
                  static_cast<unsigned>(matching.images));
  launch(truth, match_kernel, grid, kThreads, 0, boxes,
         static_cast<int64_t*>(matches.index.mutable_data_ptr()), iou, bits);
  launch(truth, mark_kernel, grid, kThreads, 0, boxes, iou, bits,
         static_cast<bool*>(matches.best.mutable_data_ptr()));
  return {matches.index, matches.iou, matches.best};
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("match_boxes", TORCH_BOX(&detlite::match_boxes));
}
