// The highest points of heat maps that are enlarged to their boxes, on CUDA: a block for each map,
// whose threads share the pixels of the box.
#include <limits>

#include <torch/csrc/stable/library.h>

#include "heatmap_peaks.h"
#include "launch.h"

namespace detlite {
namespace {

// ((a + b) + c) + d, as the CPU adds them.
__device__ float blend(const float* values, const CubicSample& sample) {
  float sum = rounded_product(sample.weights[0], values[0]);
  for (int tap = 1; tap < kCubicTaps; ++tap) {
    sum += rounded_product(sample.weights[tap], values[tap]);
  }
  return sum;
}

struct Peak {
  float value;
  int place;

  // The first of equals wins.
  __device__ void take(const Peak& other) {
    if (other.value > value || (other.value == value && other.place < place)) *this = other;
  }
};

// Walks down some rows of one column of pixels. Neighbouring rows lie between the same cells, whose
// interpolated columns are kept.
__device__ void search_column(const float* map, int height, int width, int rows, int columns, int x,
                              int first_row, int last_row, Peak& best) {
  const CubicSample along(x, columns, width);
  float stretched[kCubicTaps] = {};
  int cell = -2;  // none is
  for (int y = first_row; y < last_row; ++y) {
    const CubicSample down(y, rows, height);
    if (down.cell != cell) {
      cell = down.cell;
      for (int line = 0; line < kCubicTaps; ++line) {
        const float* cells = map + down.from(line, height) * width;
        float values[kCubicTaps];
        for (int tap = 0; tap < kCubicTaps; ++tap) values[tap] = cells[along.from(tap, width)];
        stretched[line] = blend(values, along);
      }
    }
    best.take({blend(stretched, down), y * columns + x});
  }
}

// Budget: peak_kernel 1220 instructions.
__global__ void __launch_bounds__(kThreads)
    peak_kernel(const float* maps, const float* boxes, int64_t points, int height, int width,
                float* keypoints, float* scores) {
  __shared__ float values[kThreads];
  __shared__ int places[kThreads];
  __shared__ bool unusable;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t number = blockIdx.x;
  const float* map = maps + number * height * width;
  const float* box = boxes + number / points * 4;
  const PeakAxis columns(box[0], box[2]), rows(box[1], box[3]);

  if (thread == 0) unusable = false;
  __syncthreads();
  for (int i = thread; i < height * width; i += kThreads) {
    if (!std::isfinite(map[i])) unusable = true;
  }
  Peak best{-std::numeric_limits<float>::infinity(), 0};
  // Columns are cut where there are fewer of them than threads.
  const int parts = (kThreads + columns.pixels - 1) / columns.pixels;
  const int part_rows = (rows.pixels + parts - 1) / parts;
  for (int i = thread; i < columns.pixels * parts; i += kThreads) {
    const int first = i / columns.pixels * part_rows;
    search_column(map, height, width, rows.pixels, columns.pixels, i % columns.pixels, first,
                  min(first + part_rows, rows.pixels), best);
  }
  values[thread] = best.value;
  places[thread] = best.place;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (thread < half) {
      Peak peak{values[thread], places[thread]};
      peak.take({values[thread + half], places[thread + half]});
      values[thread] = peak.value;
      places[thread] = peak.place;
    }
    __syncthreads();
  }
  if (thread == 0) {
    write_keypoint(rows, columns, unusable ? 0 : places[0], keypoints + number * 3);
    scores[number] = unusable ? std::numeric_limits<float>::quiet_NaN() : values[0];
  }
}

std::tuple<Tensor, Tensor> heatmap_peaks(const Tensor& maps, const Tensor& boxes) {
  const PeakArguments arguments = check_peaks("heatmap_peaks", maps, boxes);
  const DeviceGuard guard(arguments.maps.get_device_index());
  const auto [keypoints, scores] = empty_peaks(arguments);
  if (scores.numel() > 0) {
    launch(arguments.maps, peak_kernel, dim3(static_cast<unsigned>(scores.numel())), kThreads, 0,
           static_cast<const float*>(arguments.maps.const_data_ptr()),
           static_cast<const float*>(arguments.boxes.const_data_ptr()), arguments.points(),
           arguments.height(), arguments.width(), static_cast<float*>(keypoints.mutable_data_ptr()),
           static_cast<float*>(scores.mutable_data_ptr()));
  }
  return {keypoints, scores};
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("heatmap_peaks", TORCH_BOX(&detlite::heatmap_peaks));
}
