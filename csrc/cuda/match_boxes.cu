// Matching on CUDA: a thread for each candidate, the ground truth a tile at a time in shared
// memory, of which a warp looks only at what meets the box around its candidates. The highest
// overlap of each ground truth is a maximum of integers, since floats of zero or more are ordered
// as their bits are: the order in which threads arrive does not matter.
#include "match_boxes.h"

#include <torch/csrc/stable/library.h>

#include "launch.h"
#include "warp.h"

namespace detlite {
namespace {

// As many as a block has threads, each of which loads one.
constexpr int kTile = kThreads;

struct Boxes {
  const Box<float>* truth;
  const bool* valid;
  const Box<float>* candidates;
  int truth_count, count;
  int64_t candidate_step;

  // The image's candidate; beyond the last, one that overlaps nothing.
  __device__ Box<float> candidate(int i) const {
    if (i < count) return candidates[blockIdx.y * candidate_step + i];
    return {NAN, NAN, NAN, NAN};
  }
};

// Some ground truth, in order.
struct Tile {
  Box<float> boxes[kTile];
  float areas[kTile];
  int numbers[kTile];
  int highest[kTile];  // bits of overlaps
  unsigned chosen[kTile / kWarp];

  // Takes that of the block's threads for which `choose`, from `first` on, and returns how many
  // there are. Its first barrier waits for who still reads what was here.
  __device__ int load(const Box<float>* truth, int first, bool choose, int overlap) {
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
      areas[before] = area_between(box);
      numbers[before] = first + thread;
      highest[before] = overlap;
    }
    __syncthreads();
    return count;
  }
};

// Zero where either is NaN or neither has an area.
__device__ float overlap(const Box<float>& a, float area_a, const Box<float>& b, float area_b) {
  const float quotient = iou(a, area_a, b, area_b);
  return quotient > 0 ? quotient : 0.0f;
}

// False only where the overlap is zero.
__device__ bool may_meet(const Box<float>& a, const Box<float>& b) {
  return a.x1 < b.x2 && b.x1 < a.x2 && a.y1 < b.y2 && b.y1 < a.y2;
}

// The smallest box around those of the warp; NaN is left out.
__device__ Box<float> around_warp(Box<float> box) {
  for (int bit = kWarp / 2; bit > 0; bit /= 2) {
    box.x1 = std::fmin(box.x1, from_lane_across(box.x1, bit));
    box.y1 = std::fmin(box.y1, from_lane_across(box.y1, bit));
    box.x2 = std::fmax(box.x2, from_lane_across(box.x2, bit));
    box.y2 = std::fmax(box.y2, from_lane_across(box.y2, bit));
  }
  return box;
}

// index and best_iou [images, count]; highest [images, truth_count], bits of floats, zero before.
// Budget: match_kernel 450 instructions.
__global__ void __launch_bounds__(kThreads)
    match_kernel(Boxes all, int64_t* index, float* best_iou, int* highest) {
  alignas(16) __shared__ Tile tile;
  const int64_t image = blockIdx.y, image_truth = image * all.truth_count;
  const int thread = static_cast<int>(threadIdx.x);
  const int i = static_cast<int>(blockIdx.x) * kThreads + thread;
  const Box<float> own = all.candidate(i);
  const Box<float> around = around_warp(own);
  const float own_area = area_between(own);
  int best = -1;
  float most = 0;
  for (int first = 0; first < all.truth_count; first += kTile) {
    const int loaded = first + thread;
    const bool valid = loaded < all.truth_count && all.valid[image_truth + loaded];
    const int count = tile.load(all.truth + image_truth, first, valid, 0);
    if (best < 0 && count > 0) best = tile.numbers[0];
    for (int part = 0; part < count; part += kWarp) {
      // A lane for each ground truth: neighbouring candidates meet the same few.
      const int asked = part + thread % kWarp;
      const bool meets = asked < count && may_meet(tile.boxes[asked], around);
      for (unsigned left = vote(meets); left; left &= left - 1) {
        const int k = part + __ffs(static_cast<int>(left)) - 1;
        const float here = overlap(tile.boxes[k], tile.areas[k], own, own_area);
        if (here > most) {
          most = here;
          best = tile.numbers[k];
        }
        // The compiler makes of it one for the whole warp, from sm_80 on.
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
    best_iou[image * all.count + i] = most;
  }
}

// Whether the candidate has the highest overlap of any ground truth.
// Budget: mark_kernel 330 instructions.
__global__ void __launch_bounds__(kThreads)
    mark_kernel(Boxes all, const float* best_iou, const int* highest, bool* marks) {
  alignas(16) __shared__ Tile tile;
  const int64_t image = blockIdx.y, image_truth = image * all.truth_count;
  const int thread = static_cast<int>(threadIdx.x);
  const int i = static_cast<int>(blockIdx.x) * kThreads + thread;
  const Box<float> own = all.candidate(i);
  const float own_area = area_between(own);
  const int most = i < all.count ? __float_as_int(best_iou[image * all.count + i]) : 0;
  bool marked = false;
  for (int first = 0; first < all.truth_count; first += kTile) {
    const int loaded = first + thread;
    const int wanted = loaded < all.truth_count ? highest[image_truth + loaded] : 0;
    const int count = tile.load(all.truth + image_truth, first, wanted > 0, wanted);
    for (int k = 0; k < count && !marked; ++k) {
      if (tile.highest[k] > most) continue;  // above any overlap of the candidate
      const float here = overlap(tile.boxes[k], tile.areas[k], own, own_area);
      marked = __float_as_int(here) == tile.highest[k];
    }
  }
  if (i < all.count) marks[image * all.count + i] = marked;
}

std::tuple<Tensor, Tensor, Tensor> match_boxes(const Tensor& truth, const Tensor& valid,
                                               const Tensor& candidates) {
  const Matching matching = check_matching(truth, valid, candidates);
  constexpr int64_t most_images = 65535;  // of a grid along y
  check(matching.images <= most_images, "match_boxes: at most ", most_images,
        " images fit on CUDA, got ", matching.images);
  const DeviceGuard guard(truth.get_device_index());
  const Matches matches(matching);
  if (matching.images == 0 || matching.count == 0) {
    return {matches.index, matches.iou, matches.best};
  }

  const std::array<int64_t, 2> shape{matching.images, matching.truth_count};
  Tensor highest = torch::stable::empty({shape.data(), shape.size()}, ScalarType::Int, std::nullopt,
                                        truth.device());
  torch::stable::zero_(highest);
  auto* bits = static_cast<int*>(highest.mutable_data_ptr());
  auto* iou = static_cast<float*>(matches.iou.mutable_data_ptr());
  const Boxes boxes{matching.truth_of(0),
                    matching.valid_of(0),
                    matching.candidates_of(0),
                    static_cast<int>(matching.truth_count),
                    static_cast<int>(matching.count),
                    matching.candidate_step};
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
