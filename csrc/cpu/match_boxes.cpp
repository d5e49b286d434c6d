// Matching of boxes on the CPU. Threads process tiles of candidates independently: a tile yields
// the best ground truth of each candidate and the highest IoU of each ground truth within the tile.
// Only tiles that contain the overall highest IoU of a ground truth are visited again, to mark the
// candidates that have it.
#include "common/match_boxes.h"

#include <algorithm>
#include <vector>

#include <torch/csrc/stable/library.h>

#include "box_columns.h"
#include "simd/inner_loops.h"

namespace detlite {
namespace {

// The valid ground-truth boxes of an image.
struct GroundTruth {
  std::vector<int64_t> indices;
  BoxColumns boxes;

  GroundTruth(const Box<float>* all, const bool* valid, int64_t count) {
    for (int64_t g = 0; g < count; ++g) {
      if (valid[g]) indices.push_back(g);
    }
    boxes.reset(round_up(size(), kBoxPadding));
    for (int64_t g = 0; g < size(); ++g) {
      const Box<float>& box = all[indices[g]];
      boxes.set(g, box, area_of_extent(box));
    }
  }

  int64_t size() const { return static_cast<int64_t>(indices.size()); }
};

class Matcher {
 public:
  explicit Matcher(const MatchCall& call)
      : loops_(inner_loops()),
        call_(call),
        // At least truth_count, so that highest_ with truth_count values per tile takes no more
        // memory than the boxes.
        tile_size_(round_up(std::max<int64_t>(1024, call.truth_count), kMatchBlock)),
        tiles_((call.count + tile_size_ - 1) / tile_size_),
        highest_(call.images * tiles_ * call.truth_count) {
    for (int64_t b = 0; b < call.images; ++b) {
      truth_.emplace_back(call.truth_of(b), call.valid_of(b), call.truth_count);
    }
  }

  void match(int64_t* index, float* iou) {
    for_each_tile([&](int64_t image, int64_t tile, BoxColumns& columns) {
      const GroundTruth& truth = truth_[image];
      const int64_t first = tile * tile_size_, count = size_of(tile);
      const int64_t at = image * call_.count + first;
      if (truth.size() == 0) {
        std::fill_n(index + at, count, -1);
        std::fill_n(iou + at, count, 0.0f);
        return;
      }
      load(image, tile, columns);
      std::vector<float> best(tile_size_);
      std::vector<int32_t> best_index(tile_size_);
      for (int64_t i = 0; i < count; i += kMatchBlock) {
        loops_.match_block(columns.from(i), truth.boxes.from(0), truth.size(), &best[i],
                           &best_index[i], highest_of(image, tile));
      }
      std::copy_n(best.begin(), count, iou + at);
      for (int64_t i = 0; i < count; ++i) index[at + i] = truth.indices[best_index[i]];
    });
  }

  // After match().
  void mark_best(bool* best) {
    std::vector<float> highest_of_all(call_.images * call_.truth_count);
    for (int64_t b = 0; b < call_.images; ++b) {
      float* all = highest_of_all.data() + b * call_.truth_count;
      for (int64_t tile = 0; tile < tiles_; ++tile) {
        const float* of_tile = highest_of(b, tile);
        for (int64_t g = 0; g < truth_[b].size(); ++g) all[g] = std::max(all[g], of_tile[g]);
      }
    }
    for_each_tile([&](int64_t image, int64_t tile, BoxColumns& columns) {
      const GroundTruth& truth = truth_[image];
      bool* marks = best + image * call_.count + tile * tile_size_;
      std::fill_n(marks, size_of(tile), false);
      const float* all = highest_of_all.data() + image * call_.truth_count;
      const float* of_tile = highest_of(image, tile);
      bool loaded = false;
      for (int64_t g = 0; g < truth.size(); ++g) {
        if (all[g] == 0 || of_tile[g] != all[g]) continue;
        if (!std::exchange(loaded, true)) load(image, tile, columns);
        loops_.mark_equal(columns.from(0), size_of(tile), truth.boxes.from(g), all[g], marks);
      }
    });
  }

 private:
  template <typename Visit>
  void for_each_tile(const Visit& visit) const {
    torch::stable::parallel_for(0, call_.images * tiles_, 1, [&](int64_t begin, int64_t end) {
      BoxColumns columns;
      for (int64_t i = begin; i < end; ++i) visit(i / tiles_, i % tiles_, columns);
    });
  }

  int64_t size_of(int64_t tile) const {
    return std::min(tile_size_, call_.count - tile * tile_size_);
  }

  float* highest_of(int64_t image, int64_t tile) {
    return highest_.data() + (image * tiles_ + tile) * call_.truth_count;
  }

  void load(int64_t image, int64_t tile, BoxColumns& columns) const {
    const Box<float>* boxes = call_.candidates_of(image) + tile * tile_size_;
    columns.reset(tile_size_);
    for (int64_t i = 0; i < size_of(tile); ++i) columns.set(i, boxes[i], area_of_extent(boxes[i]));
  }

  const InnerLoops& loops_;
  const MatchCall& call_;
  int64_t tile_size_, tiles_;
  std::vector<float> highest_;  // IoU of each valid ground truth, per tile
  std::vector<GroundTruth> truth_;
};

std::tuple<Tensor, Tensor, Tensor> match_boxes(const Tensor& truth, const Tensor& valid,
                                               const Tensor& candidates) {
  const MatchCall call = check_match_boxes(truth, valid, candidates);
  Matcher matcher(call);
  matcher.match(mutable_data<int64_t>(call.index), mutable_data<float>(call.iou));
  matcher.mark_best(mutable_data<bool>(call.best));
  return {call.index, call.iou, call.best};
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_FRAGMENT(detlite, m) {
  m.def(
      "match_boxes(Tensor truth, Tensor valid, Tensor candidates) "
      "-> (Tensor index, Tensor iou, Tensor best)");
}

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("match_boxes", TORCH_BOX(&detlite::match_boxes));
}
