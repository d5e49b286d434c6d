// Pastes box masks into an image, thresholds and encodes them, without the image: only the edges of
// each column's runs are ever stored. The arithmetic is that of structures/masks.py, operation by
// operation, so that the masks are equal to the last pixel.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "checks.h"
#include "loops.h"

namespace detlite {
namespace {

constexpr int kStrip = 64;  // columns at a time

// The mask cells that a pixel's centre lies between, along one axis, and their weights.
struct PixelTaps {
  int low, high;
  float low_weight, high_weight;
};

// The pixels along one axis that a mask reaches: from number `start`.
struct AxisTaps {
  int start = 0;
  std::vector<PixelTaps> pixels;
};

AxisTaps axis_taps(double low, double high, int cells, int limit) {
  AxisTaps axis;
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

// COCO's run lengths as text: each count, from the third on less the one before the last, in groups
// of five bits from the lowest, with a sixth for "more follow", offset to printable characters.
std::string encode(const std::vector<int64_t>& counts) {
  std::string text;
  for (size_t i = 0; i < counts.size(); ++i) {
    int64_t value = i > 2 ? counts[i] - counts[i - 2] : counts[i];
    for (bool more = true; more;) {
      int64_t group = value & 0x1f;
      value >>= 5;
      more = group & 0x10 ? value != -1 : value != 0;
      if (more) group |= 0x20;
      text.push_back(static_cast<char>(group + 48));
    }
  }
  return text;
}

class Paster {
 public:
  Paster(int cells_high, int cells_wide, int height, int width, float threshold)
      : loops_(loops()),
        cells_high_(cells_high),
        cells_wide_(cells_wide),
        height_(height),
        width_(width),
        threshold_(threshold) {}

  std::string paste(const float* prob, const float* box) {
    const AxisTaps rows = axis_taps(box[1], box[3], cells_high_, height_);
    const AxisTaps columns = axis_taps(box[0], box[2], cells_wide_, width_);
    const int pixels_wide = static_cast<int>(columns.pixels.size());
    // Pixels down the columns, where the mask begins or ends.
    edges_.clear();
    for (int first = 0; first < pixels_wide; first += kStrip) {
      const int count = std::min(kStrip, pixels_wide - first);
      stretch(prob, columns, first, count);
      find_edges(rows, count);
      for (int x = 0; x < count; ++x) {
        const int64_t column = columns.start + first + x;
        for (const int y : column_edges_[x]) add_edge(column * height_ + y);
        column_edges_[x].clear();
      }
    }
    return encode(counts());
  }

 private:
  // Interpolates every mask row along the columns of a strip.
  void stretch(const float* prob, const AxisTaps& columns, int first, int count) {
    strip_.resize(static_cast<size_t>(cells_high_) * kStrip);
    for (int m = 0; m < cells_high_; ++m, prob += cells_wide_) {
      float* line = strip_.data() + m * kStrip;
      for (int x = 0; x < count; ++x) {
        const PixelTaps& taps = columns.pixels[first + x];
        line[x] = prob[taps.low] * taps.low_weight + prob[taps.high] * taps.high_weight;
      }
    }
  }

  void find_edges(const AxisTaps& rows, int count) {
    const uint64_t strip = count == kStrip ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
    const auto mark = [this](uint64_t changed, int y) {
      for (; changed; changed &= changed - 1) column_edges_[__builtin_ctzll(changed)].push_back(y);
    };
    uint64_t above = 0;
    int y = rows.start;
    for (const PixelTaps& taps : rows.pixels) {
      const uint64_t here =
          strip & loops_.threshold_row(strip_.data() + taps.low * kStrip, taps.low_weight,
                                       strip_.data() + taps.high * kStrip, taps.high_weight,
                                       threshold_);
      mark(above ^ here, y++);
      above = here;
    }
    mark(above, y);
  }

  // A run that reaches the bottom goes on where the next column begins at the top.
  void add_edge(int64_t edge) {
    if (!edges_.empty() && edges_.back() == edge) {
      edges_.pop_back();
    } else {
      edges_.push_back(edge);
    }
  }

  const std::vector<int64_t>& counts() {
    const int64_t end = int64_t{height_} * width_;
    if (!edges_.empty() && edges_.back() == end) edges_.pop_back();
    counts_.clear();
    int64_t last = 0;
    for (const int64_t edge : edges_) {
      counts_.push_back(edge - last);
      last = edge;
    }
    counts_.push_back(end - last);
    return counts_;
  }

  const Loops& loops_;
  int cells_high_, cells_wide_, height_, width_;
  float threshold_;
  std::vector<float> strip_;
  std::array<std::vector<int>, kStrip> column_edges_;
  std::vector<int64_t> edges_, counts_;
};

std::tuple<Tensor, Tensor> paste_masks_rle(const Tensor& probs, const Tensor& boxes,
                                           int64_t height, int64_t width, double threshold) {
  constexpr const char* op = "paste_masks_rle";
  check(probs.dim() == 3, op, ": probs must have shape [N, M, M], got ", Shape{probs});
  const int64_t count = probs.size(0);
  check(boxes.dim() == 2 && boxes.size(0) == count && boxes.size(1) == 4, op,
        ": boxes must have shape [", count, ", 4], one for each mask, got ", Shape{boxes});
  check(is_floating(probs.scalar_type()), op, ": probs must be floating point, got ",
        dtype_name(probs.scalar_type()));
  check(is_floating(boxes.scalar_type()), op, ": boxes must be floating point, got ",
        dtype_name(boxes.scalar_type()));
  check_count(op, "height", height, 0);
  check_count(op, "width", width, 0);
  check(height * width <= std::numeric_limits<uint32_t>::max(), op, ": an image of ", height, " x ",
        width, " has too many pixels for run lengths");
  check(threshold > 0, op, ": threshold must be more than 0, got ", threshold);
  check_count(op, "a mask's height", probs.size(1), 1);
  check_count(op, "a mask's width", probs.size(2), 1);

  const auto as_float = [](const Tensor& tensor) {
    return torch::stable::contiguous(torch::stable::to(tensor, ScalarType::Float));
  };
  const Tensor all_probs = as_float(probs), all_boxes = as_float(boxes);
  const auto* prob = static_cast<const float*>(all_probs.const_data_ptr());
  const auto* box = static_cast<const float*>(all_boxes.const_data_ptr());
  const int rows = static_cast<int>(probs.size(1)), columns = static_cast<int>(probs.size(2));
  std::vector<std::string> texts(count);
  torch::stable::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
    Paster paster(rows, columns, static_cast<int>(height), static_cast<int>(width),
                  static_cast<float>(threshold));
    for (int64_t i = first; i < last; ++i) {
      texts[i] = paster.paste(prob + i * rows * columns, box + i * 4);
    }
  });

  int64_t bytes = 0;
  for (const std::string& text : texts) bytes += static_cast<int64_t>(text.size());
  Tensor data = torch::stable::empty({&bytes, 1}, ScalarType::Byte);
  Tensor ends = torch::stable::empty({&count, 1}, ScalarType::Long);
  auto* byte = static_cast<char*>(data.mutable_data_ptr());
  auto* end = static_cast<int64_t*>(ends.mutable_data_ptr());
  int64_t written = 0;
  for (const std::string& text : texts) {
    byte = std::copy(text.begin(), text.end(), byte);
    *end++ = written += static_cast<int64_t>(text.size());
  }
  return {data, ends};
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("paste_masks_rle", TORCH_BOX(&detlite::paste_masks_rle));
}
