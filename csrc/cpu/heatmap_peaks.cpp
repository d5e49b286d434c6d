// Heatmap peaks on the CPU. The resized heatmap is never stored: the columns of a map are
// interpolated first, then one row of pixels at a time.
#include <algorithm>
#include <limits>
#include <vector>

#include <torch/csrc/stable/library.h>

#include "common/heatmap_peaks.h"
#include "simd/inner_loops.h"

namespace detlite {
namespace {

class PeakFinder {
 public:
  PeakFinder(int height, int width) : loops_(inner_loops()), height_(height), width_(width) {}

  void set_box(const float* box) {
    columns_ = PeakAxis(box[0], box[2]);
    rows_ = PeakAxis(box[1], box[3]);
    sample(columns_.pixels, width_, column_samples_);
    sample(rows_.pixels, height_, row_samples_);
  }

  void find(const float* map, float* keypoint, float* score) {
    const int64_t cells = int64_t{height_} * width_;
    // An infinite value times a zero weight would be NaN.
    if (std::any_of(map, map + cells, [](float value) { return !std::isfinite(value); })) {
      write_keypoint(rows_, columns_, 0, keypoint);
      *score = std::numeric_limits<float>::quiet_NaN();
      return;
    }
    resize_columns(map);
    float best = -std::numeric_limits<float>::infinity();
    int place = 0;
    row_.resize(columns_.pixels);
    for (int y = 0; y < rows_.pixels; ++y) {
      const float highest =
          interpolate(row_samples_[y], height_, resized_.data(), columns_.pixels, row_.data());
      if (!(highest > best)) continue;
      best = highest;
      const auto at = std::find(row_.begin(), row_.end(), highest) - row_.begin();
      place = y * columns_.pixels + static_cast<int>(at);
    }
    write_keypoint(rows_, columns_, place, keypoint);
    *score = best;
  }

 private:
  static void sample(int pixels, int cells, std::vector<CubicSample>& samples) {
    samples.clear();
    for (int i = 0; i < pixels; ++i) samples.emplace_back(i, pixels, cells);
  }

  // Writes the weighted sum of the four rows of a sample. Returns its maximum.
  float interpolate(const CubicSample& sample, int cells, const float* rows, int64_t length,
                    float* result) const {
    const float* four_rows[kCubicCells];
    for (int i = 0; i < kCubicCells; ++i) four_rows[i] = rows + sample.cell_at(i, cells) * length;
    return loops_.blend_rows(four_rows, sample.weights, length, result);
  }

  // Computes resized_ [height, pixels], the map after resizing along its rows. Works on the
  // transposed map, where whole columns are contiguous.
  void resize_columns(const float* map) {
    const auto& transpose = loops_.of_float.gather;
    const int64_t pixels = columns_.pixels;
    transposed_.resize(int64_t{width_} * height_);
    transpose(map, width_, height_, width_, transposed_.data(), height_);
    wide_.resize(pixels * height_);
    for (int64_t x = 0; x < pixels; ++x) {
      interpolate(column_samples_[x], width_, transposed_.data(), height_,
                  wide_.data() + x * height_);
    }
    resized_.resize(pixels * height_);
    transpose(wide_.data(), height_, pixels, height_, resized_.data(), pixels);
  }

  const InnerLoops& loops_;
  int height_, width_;
  PeakAxis rows_{0, 0}, columns_{0, 0};
  std::vector<CubicSample> row_samples_, column_samples_;
  std::vector<float> transposed_, wide_, resized_, row_;
};

std::tuple<Tensor, Tensor> heatmap_peaks(const Tensor& maps, const Tensor& boxes) {
  const PeakCall call = check_heatmap_peaks(maps, boxes);
  const float *map = data<float>(call.maps), *box = data<float>(call.boxes);
  auto* keypoint = mutable_data<float>(call.keypoints);
  auto* score = mutable_data<float>(call.scores);
  const int height = call.height(), width = call.width();
  const int64_t points = call.points();
  torch::stable::parallel_for(0, call.scores.numel(), 1, [&](int64_t first, int64_t last) {
    PeakFinder finder(height, width);
    for (int64_t i = first; i < last; ++i) {
      if (i == first || i % points == 0) finder.set_box(box + i / points * 4);
      finder.find(map + i * height * width, keypoint + i * 3, score + i);
    }
  });
  return {call.keypoints, call.scores};
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_FRAGMENT(detlite, m) {
  m.def("heatmap_peaks(Tensor maps, Tensor boxes) -> (Tensor keypoints, Tensor scores)");
}

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("heatmap_peaks", TORCH_BOX(&detlite::heatmap_peaks));
}
