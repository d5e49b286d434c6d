// Matching on the CPU. Threads take tiles of candidates, and know nothing of each other: each tile
// gets the best ground truth of its candidates and the highest overlap of each ground truth with
// them. Only tiles that hold a highest overlap of all are visited again, to mark who has it.
#include "match_boxes.h"

#include <algorithm>
#include <vector>

#include <torch/csrc/stable/library.h>

#include "box_columns.h"
#include "loops.h"

namespace detlite {
namespace {

// The valid ground truth of an image.
struct Truth {
  std::vector<int64_t> indices;
  BoxColumns boxes;

  Truth(const Box<float>* all, const bool* valid, int64_t count) {
    for (int64_t g = 0; g < count; ++g) {
      if (valid[g]) indices.push_back(g);
    }
    boxes.reset(round_up(size(), kBoxPadding));
    for (int64_t g = 0; g < size(); ++g) {
      const Box<float>& box = all[indices[g]];
      boxes.set(g, box, area_between(box));
    }
  }

  int64_t size() const { return static_cast<int64_t>(indices.size()); }
};

class Matcher {
 public:
  explicit Matcher(const Matching& matching)
      : loops_(loops()),
        matching_(matching),
        // Not smaller than the ground truth, so that the tiles' highest overlaps, a row of
        // truth_count for each, take no more memory than the boxes.
        tile_size_(round_up(std::max<int64_t>(1024, matching.truth_count), kMatchBlock)),
        tiles_((matching.count + tile_size_ - 1) / tile_size_),
        highest_(matching.images * tiles_ * matching.truth_count) {
    for (int64_t b = 0; b < matching.images; ++b) {
      truth_.emplace_back(matching.truth_of(b), matching.valid_of(b), matching.truth_count);
    }
  }

  void match(int64_t* index, float* iou) {
    for_each_tile([&](int64_t image, int64_t tile, BoxColumns& columns) {
      const Truth& truth = truth_[image];
      const int64_t first = tile * tile_size_, count = size_of(tile);
      const int64_t at = image * matching_.count + first;
      if (truth.size() == 0) {
        std::fill_n(index + at, count, -1);
        std::fill_n(iou + at, count, 0.0f);
        return;
      }
      load(image, tile, columns);
      std::vector<float> best(tile_size_);
      std::vector<int32_t> which(tile_size_);
      for (int64_t i = 0; i < count; i += kMatchBlock) {
        loops_.match_block(columns.from(i), truth.boxes.from(0), truth.size(), &best[i], &which[i],
                           highest_of(image, tile));
      }
      std::copy_n(best.begin(), count, iou + at);
      for (int64_t i = 0; i < count; ++i) index[at + i] = truth.indices[which[i]];
    });
  }

  // After match().
  void mark_best(bool* best) {
    std::vector<float> highest_of_all(matching_.images * matching_.truth_count);
    for (int64_t b = 0; b < matching_.images; ++b) {
      float* all = highest_of_all.data() + b * matching_.truth_count;
      for (int64_t tile = 0; tile < tiles_; ++tile) {
        const float* own = highest_of(b, tile);
        for (int64_t g = 0; g < truth_[b].size(); ++g) all[g] = std::max(all[g], own[g]);
      }
    }
    for_each_tile([&](int64_t image, int64_t tile, BoxColumns& columns) {
      const Truth& truth = truth_[image];
      bool* marks = best + image * matching_.count + tile * tile_size_;
      std::fill_n(marks, size_of(tile), false);
      const float* all = highest_of_all.data() + image * matching_.truth_count;
      const float* own = highest_of(image, tile);
      bool loaded = false;
      for (int64_t g = 0; g < truth.size(); ++g) {
        if (all[g] == 0 || own[g] != all[g]) continue;
        if (!std::exchange(loaded, true)) load(image, tile, columns);
        loops_.mark_equal(columns.from(0), size_of(tile), truth.boxes.from(g), all[g], marks);
      }
    });
  }

 private:
  template <typename Visit>
  void for_each_tile(const Visit& visit) const {
    torch::stable::parallel_for(0, matching_.images * tiles_, 1, [&](int64_t begin, int64_t end) {
      BoxColumns columns;
      for (int64_t i = begin; i < end; ++i) visit(i / tiles_, i % tiles_, columns);
    });
  }

  int64_t size_of(int64_t tile) const {
    return std::min(tile_size_, matching_.count - tile * tile_size_);
  }

  float* highest_of(int64_t image, int64_t tile) {
    return highest_.data() + (image * tiles_ + tile) * matching_.truth_count;
  }

  void load(int64_t image, int64_t tile, BoxColumns& columns) const {
    const Box<float>* boxes = matching_.candidates_of(image) + tile * tile_size_;
    columns.reset(tile_size_);
    for (int64_t i = 0; i < size_of(tile); ++i) columns.set(i, boxes[i], area_between(boxes[i]));
  }

  const Loops& loops_;
  const Matching& matching_;
  int64_t tile_size_, tiles_;
  std::vector<float> highest_;  // of each tile with each valid ground truth of its image
  std::vector<Truth> truth_;
};

std::tuple<Tensor, Tensor, Tensor> match_boxes(const Tensor& truth, const Tensor& valid,
                                               const Tensor& candidates) {
  const Matching matching = check_matching(truth, valid, candidates);
  const Matches matches(matching);
  Matcher matcher(matching);
  matcher.match(static_cast<int64_t*>(matches.index.mutable_data_ptr()),
                static_cast<float*>(matches.iou.mutable_data_ptr()));
  matcher.mark_best(static_cast<bool*>(matches.best.mutable_data_ptr()));
  return {matches.index, matches.iou, matches.best};
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("match_boxes", TORCH_BOX(&detlite::match_boxes));
}
