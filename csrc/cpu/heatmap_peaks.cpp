// The highest points of heat maps that are enlarged to their boxes, without the enlarged maps: all
// columns of a map are interpolated, and then one row at a time.
#include <algorithm>
#include <limits>
#include <vector>

#include <torch/csrc/stable/library.h>

#include "heatmap_peaks.h"
#include "loops.h"

namespace detlite {
namespace {

class PeakFinder {
 public:
  PeakFinder(int height, int width) : loops_(loops()), height_(height), width_(width) {}

  void set_box(const float* box) {
    columns_ = PeakAxis(box[0], box[2]);
    rows_ = PeakAxis(box[1], box[3]);
    sample(columns_.pixels, width_, column_samples_);
    sample(rows_.pixels, height_, row_samples_);
  }

  void find(const float* map, float* keypoint, float* score) {
    const int64_t cells = int64_t{height_} * width_;
    // Infinity times a weight of zero is NaN too.
    if (std::any_of(map, map + cells, [](float value) { return !std::isfinite(value); })) {
      write_keypoint(rows_, columns_, 0, keypoint);
      *score = std::numeric_limits<float>::quiet_NaN();
      return;
    }
    stretch(map);
    float best = -std::numeric_limits<float>::infinity();
    int place = 0;
    row_.resize(columns_.pixels);
    for (int y = 0; y < rows_.pixels; ++y) {
      const float highest = blend(row_samples_[y], height_, stretched_.data(), columns_.pixels,
                                  row_.data());
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

  // The rows of `lines` at a sample's cells, weighted; and the highest value.
  float blend(const CubicSample& sample, int cells, const float* lines, int64_t length,
              float* result) const {
    const float* taps[kCubicTaps];
    for (int tap = 0; tap < kCubicTaps; ++tap) taps[tap] = lines + sample.from(tap, cells) * length;
    return loops_.blend_rows(taps, sample.weights, length, result);
  }

  // stretched_ [height, pixels]: the map's rows with their columns interpolated, upright so that
  // whole columns are added up.
  void stretch(const float* map) {
    const auto& transpose = loops_.of_float.gather;
    const int64_t pixels = columns_.pixels;
    upright_.resize(int64_t{width_} * height_);
    transpose(map, width_, height_, width_, upright_.data(), height_);
    wide_.resize(pixels * height_);
    for (int64_t x = 0; x < pixels; ++x) {
      blend(column_samples_[x], width_, upright_.data(), height_, wide_.data() + x * height_);
    }
    stretched_.resize(pixels * height_);
    transpose(wide_.data(), height_, pixels, height_, stretched_.data(), pixels);
  }

  const Loops& loops_;
  int height_, width_;
  PeakAxis rows_{0, 0}, columns_{0, 0};
  std::vector<CubicSample> row_samples_, column_samples_;
  std::vector<float> upright_, wide_, stretched_, row_;
};

std::tuple<Tensor, Tensor> heatmap_peaks(const Tensor& maps, const Tensor& boxes) {
  const PeakArguments arguments = check_peaks("heatmap_peaks", maps, boxes);
  const auto [keypoints, scores] = empty_peaks(arguments);
  const auto* map = static_cast<const float*>(arguments.maps.const_data_ptr());
  const auto* box = static_cast<const float*>(arguments.boxes.const_data_ptr());
  auto* keypoint = static_cast<float*>(keypoints.mutable_data_ptr());
  auto* score = static_cast<float*>(scores.mutable_data_ptr());
  const int height = arguments.height(), width = arguments.width();
  const int64_t points = arguments.points();
  torch::stable::parallel_for(0, scores.numel(), 1, [&](int64_t first, int64_t last) {
    PeakFinder finder(height, width);
    for (int64_t i = first; i < last; ++i) {
      if (i == first || i % points == 0) finder.set_box(box + i / points * 4);
      finder.find(map + i * height * width, keypoint + i * 3, score + i);
    }
  });
  return {keypoints, scores};
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("heatmap_peaks", TORCH_BOX(&detlite::heatmap_peaks));
}
