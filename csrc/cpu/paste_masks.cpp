// Pasting of box masks into an image as run lengths, on the CPU.
//
// The definition as scalar code, for a mask of cells_y x cells_x probabilities that fills a box of
// finite coordinates (x1, y1, x2, y2):
//
//   float cell(float mask[cells_y][cells_x], int y, int x) {
//     return y >= 0 && y < cells_y && x >= 0 && x < cells_x ? mask[y][x] : 0;
//   }
//
//   void paste(float mask[cells_y][cells_x], float box[4], bool image[height][width]) {
//     float cell_h = max(box[3] - box[1], 1e-6) / cells_y;
//     float cell_w = max(box[2] - box[0], 1e-6) / cells_x;
//     for (int y = 0; y < height; ++y)
//       for (int x = 0; x < width; ++x) {
//         float v = (y + 0.5 - box[1]) / cell_h - 0.5, u = (x + 0.5 - box[0]) / cell_w - 0.5;
//         int y0 = floor(v), x0 = floor(u);
//         float dy = v - y0, dx = u - x0;
//         float upper = cell(mask, y0, x0) * (1 - dx) + cell(mask, y0, x0 + 1) * dx;
//         float lower = cell(mask, y0 + 1, x0) * (1 - dx) + cell(mask, y0 + 1, x0 + 1) * dx;
//         image[y][x] = upper * (1 - dy) + lower * dy >= threshold;
//       }
//   }
//
// The kernel encodes the same pixels. Five changes lead from this code to the kernel:
//
// 1. Visit only the pixels that the mask covers: all others are 0, below every threshold.
// 2. Compute the cells and weights of each row and column of pixels once (pixel_axis()).
// 3. Separate the axes. All rows of cells are interpolated at 64 columns of pixels first
//    (resize_strip()); a pixel then costs two products.
// 4. Compare 64 pixels of a row with the threshold together, into the bits of one word
//    (threshold_row() in simd/loop_table.h).
// 5. Store no image. Bits that differ from the row above are boundaries of runs in their columns
//    (find_boundaries()), which are encoded column by column.
//
// The operations and their order are those of mask pasting in detlite/structures, so that results
// are equal to the last pixel.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "common/tensors.h"
#include "run_lengths.h"
#include "simd/inner_loops.h"

namespace detlite {
namespace {

constexpr int kStrip = 64;  // columns at a time

// The two mask cells that a pixel is interpolated from along one axis, and their weights.
struct PixelSample {
  int low, high;
  float low_weight, high_weight;
};

// The pixels along one axis that a mask covers, beginning with pixel `start`.
struct PixelAxis {
  int start = 0;
  std::vector<PixelSample> pixels;
};

PixelAxis pixel_axis(double low, double high, int cells, int limit) {
  PixelAxis axis;
  if (!std::isfinite(low) || !std::isfinite(high)) return axis;
  const double cell = std::max(high - low, 1e-6) / cells;
  const auto clip = [limit](double pixel, double least) {
    return static_cast<int>(std::clamp(pixel, least, static_cast<double>(limit)));
  };
  axis.start = clip(std::trunc(low - 0.5 * cell - 0.5), 0);
  const int stop = clip(std::trunc(high + 0.5 * cell + 0.5) + 1, axis.start);
  axis.pixels.reserve(stop - axis.start);
  for (int pixel = axis.start; pixel < stop; ++pixel) {
    const float centre = static_cast<float>(pixel) + 0.5f;
    const float position = (centre - static_cast<float>(low)) / static_cast<float>(cell) - 0.5f;
    const float index = std::floor(position), fraction = position - index;
    const auto inside = [cells](float i) { return i >= 0 && i < static_cast<float>(cells); };
    const auto clamped = [cells](float i) {
      return static_cast<int>(std::clamp(i, 0.0f, static_cast<float>(cells - 1)));
    };
    axis.pixels.push_back({clamped(index), clamped(index + 1), inside(index) ? 1 - fraction : 0.0f,
                           inside(index + 1) ? fraction : 0.0f});
  }
  return axis;
}

class Paster {
 public:
  Paster(int cells_high, int cells_wide, int height, int width, float threshold)
      : loops_(inner_loops()),
        cells_high_(cells_high),
        cells_wide_(cells_wide),
        height_(height),
        width_(width),
        threshold_(threshold) {}

  std::string paste(const float* prob, const float* box) {
    const PixelAxis rows = pixel_axis(box[1], box[3], cells_high_, height_);
    const PixelAxis columns = pixel_axis(box[0], box[2], cells_wide_, width_);
    const int pixels_wide = static_cast<int>(columns.pixels.size());
    boundaries_.clear();
    for (int first = 0; first < pixels_wide; first += kStrip) {
      const int count = std::min(kStrip, pixels_wide - first);
      resize_strip(prob, columns, first, count);
      find_boundaries(rows, count);
      for (int x = 0; x < count; ++x) {
        const int64_t column = columns.start + first + x;
        for (const int y : column_boundaries_[x]) boundaries_.add(column * height_ + y);
        column_boundaries_[x].clear();
      }
    }
    return boundaries_.encode(int64_t{height_} * width_);
  }

 private:
  // Interpolates every row of mask cells at the columns of a strip.
  void resize_strip(const float* prob, const PixelAxis& columns, int first, int count) {
    strip_.resize(static_cast<size_t>(cells_high_) * kStrip);
    for (int m = 0; m < cells_high_; ++m, prob += cells_wide_) {
      float* row = strip_.data() + m * kStrip;
      for (int x = 0; x < count; ++x) {
        const PixelSample& sample = columns.pixels[first + x];
        row[x] = prob[sample.low] * sample.low_weight + prob[sample.high] * sample.high_weight;
      }
    }
  }

  void find_boundaries(const PixelAxis& rows, int count) {
    const uint64_t strip = count == kStrip ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
    const auto mark = [this](uint64_t changed, int y) {
      for (; changed; changed &= changed - 1)
        column_boundaries_[__builtin_ctzll(changed)].push_back(y);
    };
    uint64_t above = 0;
    int y = rows.start;
    for (const PixelSample& sample : rows.pixels) {
      const uint64_t here =
          strip & loops_.threshold_row(strip_.data() + sample.low * kStrip, sample.low_weight,
                                       strip_.data() + sample.high * kStrip, sample.high_weight,
                                       threshold_);
      mark(above ^ here, y++);
      above = here;
    }
    mark(above, y);
  }

  const InnerLoops& loops_;
  int cells_high_, cells_wide_, height_, width_;
  float threshold_;
  std::vector<float> strip_;
  std::array<std::vector<int>, kStrip> column_boundaries_;
  RunBoundaries boundaries_;
};

std::tuple<Tensor, Tensor> paste_masks_rle(const Tensor& probs, const Tensor& boxes, int64_t height,
                                           int64_t width, double threshold) {
  constexpr const char* op = "paste_masks_rle";
  check(probs.dim() == 3, op, ": probs must have shape [N, M, M], got ", Shape{probs});
  const int64_t count = probs.size(0);
  check_shape(op, "boxes", boxes, {count, 4}, ", one for each mask");
  check_floating(op, "probs", probs);
  check_floating(op, "boxes", boxes);
  check_count(op, "height", height, 0);
  check_count(op, "width", width, 0);
  check(height * width <= std::numeric_limits<uint32_t>::max(), op, ": an image of ", height, " x ",
        width, " has too many pixels for run lengths");
  check(threshold > 0, op, ": threshold must be more than 0, got ", threshold);
  check_count(op, "a mask's height", probs.size(1), 1);
  check_count(op, "a mask's width", probs.size(2), 1);

  const Tensor all_probs = contiguous_as(probs, ScalarType::Float);
  const Tensor all_boxes = contiguous_as(boxes, ScalarType::Float);
  const float *prob = data<float>(all_probs), *box = data<float>(all_boxes);
  const int rows = static_cast<int>(probs.size(1)), columns = static_cast<int>(probs.size(2));
  std::vector<std::string> texts(count);
  torch::stable::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
    Paster paster(rows, columns, static_cast<int>(height), static_cast<int>(width),
                  static_cast<float>(threshold));
    for (int64_t i = first; i < last; ++i) {
      texts[i] = paster.paste(prob + i * rows * columns, box + i * 4);
    }
  });

  return join_texts(texts, probs);
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_FRAGMENT(detlite, m) {
  m.def(
      "paste_masks_rle(Tensor probs, Tensor boxes, int height, int width, float threshold) "
      "-> (Tensor data, Tensor ends)");
}

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("paste_masks_rle", TORCH_BOX(&detlite::paste_masks_rle));
}
