// Matching of boxes on CUDA: one thread per candidate, with tiles of ground-truth boxes in shared
// memory. A warp compares only boxes that overlap the bounding box of its candidates. The highest
// IoU of each ground truth is found by an integer atomic maximum: non-negative floats are ordered
// like their bits. The result does not depend on the order of threads.
#include "common/match_boxes.h"

#include <torch/csrc/stable/library.h>

#include "launch.h"
#include "warp.h"

namespace detlite {
namespace {

// Each thread of a block loads one ground-truth box.
constexpr int kTile = kThreads;

struct MatchBoxes {
  const Box<float>* truth;
  const bool* valid;
  const Box<float>* candidates;
  int truth_count, count;
  int64_t candidate_step;

  // A candidate of the block's image. After the last one, a box that overlaps nothing.
  __device__ Box<float> candidate(int i) const {
    if (i < count) return candidates[blockIdx.y * candidate_step + i];
    return {NAN, NAN, NAN, NAN};
  }
};

// A tile of ground-truth boxes, in order.
struct Tile {
  Box<float> boxes[kTile];
  float areas[kTile];
  int numbers[kTile];
  int highest[kTile];  // bits of IoUs
  unsigned chosen[kTile / kWarp];

  // Loads the boxes from `first` on for which the corresponding thread passes `choose`. Returns
  // their number. The first barrier waits for threads that still read the previous tile.
  __device__ int load(const Box<float>* truth, int first, bool choose, int iou_bits) {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
    const unsigned word = vote(choose);
    if (thread % kWarp == 0) chosen[warp] = word;
    __syncthreads();
    int before = __popc(word & lanes_before(thread % kWarp)), count = 0;
    for (int w = 0; w < kTile / kWarp; ++w) {
      if (w < warp) before += __popc(chosen[w]);
      count += __popc(chosen[w]);
    }
    if (choose) {
      const Box<float> box = truth[first + thread];
      boxes[before] = box;
      areas[before] = area_of_extent(box);
      numbers[before] = first + thread;
      highest[before] = iou_bits;
    }
    __syncthreads();
    return count;
  }
};

// The IoU, or zero if it is NaN.
__device__ float iou_or_zero(const Box<float>& a, float area_a, const Box<float>& b, float area_b) {
  const float quotient = iou(a, area_a, b, area_b);
  return quotient > 0 ? quotient : 0.0f;
}

// False only if the IoU is zero.
__device__ bool may_overlap(const Box<float>& a, const Box<float>& b) {
  return a.x1 < b.x2 && b.x1 < a.x2 && a.y1 < b.y2 && b.y1 < a.y2;
}

// The bounding box of the boxes of a warp, ignoring NaN.
__device__ Box<float> bounding_box_of_warp(Box<float> box) {
  for (int bit = kWarp / 2; bit > 0; bit /= 2) {
    box.x1 = std::fmin(box.x1, from_lane_xor(box.x1, bit));
    box.y1 = std::fmin(box.y1, from_lane_xor(box.y1, bit));
    box.x2 = std::fmax(box.x2, from_lane_xor(box.x2, bit));
    box.y2 = std::fmax(box.y2, from_lane_xor(box.y2, bit));
  }
  return box;
}

// Writes index and best_iou [images, count] and updates highest [images, truth_count], the bits of
// floats that start at zero.
// Budget: match_kernel 450 instructions.
__global__ void __launch_bounds__(kThreads)
    match_kernel(MatchBoxes all, int64_t* index, float* best_iou, int* highest) {
  alignas(16) __shared__ Tile tile;
  const int64_t image = blockIdx.y, image_truth = image * all.truth_count;
  const int thread = static_cast<int>(threadIdx.x);
  const int i = static_cast<int>(blockIdx.x) * kThreads + thread;
  const Box<float> own = all.candidate(i);
  const Box<float> bounding = bounding_box_of_warp(own);
  const float own_area = area_of_extent(own);
  int best = -1;
  float max_iou = 0;
  for (int first = 0; first < all.truth_count; first += kTile) {
    const int loaded = first + thread;
    const bool valid = loaded < all.truth_count && all.valid[image_truth + loaded];
    const int count = tile.load(all.truth + image_truth, first, valid, 0);
    if (best < 0 && count > 0) best = tile.numbers[0];
    for (int part = 0; part < count; part += kWarp) {
      // One ground-truth box per lane. Neighbouring candidates overlap the same few boxes.
      const int lane_box = part + thread % kWarp;
      const bool overlaps = lane_box < count && may_overlap(tile.boxes[lane_box], bounding);
      for (unsigned left = vote(overlaps); left; left &= left - 1) {
        const int k = part + __ffs(static_cast<int>(left)) - 1;
        const float here = iou_or_zero(tile.boxes[k], tile.areas[k], own, own_area);
        if (here > max_iou) {
          max_iou = here;
          best = tile.numbers[k];
        }
        // From sm_80 on, the compiler combines the atomics of a warp.
        if (here > 0) atomicMax(&tile.highest[k], __float_as_int(here));
      }
    }
    __syncthreads();
    if (thread < count && tile.highest[thread] > 0) {
      atomicMax(&highest[image_truth + tile.numbers[thread]], tile.highest[thread]);
    }
  }
  if (i < all.count) {
    index[image * all.count + i] = best;
    best_iou[image * all.count + i] = max_iou;
  }
}

// Marks candidates that have the highest IoU of any ground truth.
// Budget: mark_kernel 330 instructions.
__global__ void __launch_bounds__(kThreads)
    mark_kernel(MatchBoxes all, const float* best_iou, const int* highest, bool* marks) {
  alignas(16) __shared__ Tile tile;
  const int64_t image = blockIdx.y, image_truth = image * all.truth_count;
  const int thread = static_cast<int>(threadIdx.x);
  const int i = static_cast<int>(blockIdx.x) * kThreads + thread;
  const Box<float> own = all.candidate(i);
  const float own_area = area_of_extent(own);
  const int max_bits = i < all.count ? __float_as_int(best_iou[image * all.count + i]) : 0;
  bool marked = false;
  for (int first = 0; first < all.truth_count; first += kTile) {
    const int loaded = first + thread;
    const int target = loaded < all.truth_count ? highest[image_truth + loaded] : 0;
    const int count = tile.load(all.truth + image_truth, first, target > 0, target);
    for (int k = 0; k < count && !marked; ++k) {
      if (tile.highest[k] > max_bits) continue;  // above every IoU of the candidate
      const float here = iou_or_zero(tile.boxes[k], tile.areas[k], own, own_area);
      marked = __float_as_int(here) == tile.highest[k];
    }
  }
  if (i < all.count) marks[image * all.count + i] = marked;
}

std::tuple<Tensor, Tensor, Tensor> match_boxes(const Tensor& truth, const Tensor& valid,
                                               const Tensor& candidates) {
  const MatchCall call = check_match_boxes(truth, valid, candidates);
  constexpr int64_t max_images = 65535;  // of a grid along y
  check(call.images <= max_images, "match_boxes: CUDA supports at most ", max_images,
        " images, got ", call.images);
  const DeviceGuard guard(truth.get_device_index());
  if (call.images == 0 || call.count == 0) return {call.index, call.iou, call.best};

  Tensor highest = empty(truth, ScalarType::Int, {call.images, call.truth_count});
  torch::stable::zero_(highest);
  int* bits = mutable_data<int>(highest);
  float* iou = mutable_data<float>(call.iou);
  const MatchBoxes boxes{call.truth_of(0),
                         call.valid_of(0),
                         call.candidates_of(0),
                         static_cast<int>(call.truth_count),
                         static_cast<int>(call.count),
                         call.candidate_step};
  const dim3 grid(static_cast<unsigned>((call.count + kThreads - 1) / kThreads),
                  static_cast<unsigned>(call.images));
  launch(truth, match_kernel, grid, kThreads, 0, boxes, mutable_data<int64_t>(call.index), iou,
         bits);
  launch(truth, mark_kernel, grid, kThreads, 0, boxes, iou, bits, mutable_data<bool>(call.best));
  return {call.index, call.iou, call.best};
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("match_boxes", TORCH_BOX(&detlite::match_boxes));
}
