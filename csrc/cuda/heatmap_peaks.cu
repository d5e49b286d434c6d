// Heatmap peaks on CUDA: one block per heatmap. The threads divide the pixels of the box among
// them.
#include <limits>

#include <torch/csrc/stable/library.h>

#include "common/heatmap_peaks.h"
#include "launch.h"

namespace detlite {
namespace {

// The weighted sum ((a + b) + c) + d, in the same order as on the CPU.
__device__ float interpolate(const float* values, const CubicSample& sample) {
  float sum = rounded_product(sample.weights[0], values[0]);
  for (int i = 1; i < kCubicCells; ++i) {
    sum += rounded_product(sample.weights[i], values[i]);
  }
  return sum;
}

struct Peak {
  float value;
  int place;

  // The first of equal values wins.
  __device__ void update(const Peak& other) {
    if (other.value > value || (other.value == value && other.place < place)) *this = other;
  }
};

// Searches rows [first_row, last_row) of one column of pixels. Consecutive rows often use the same
// cells, whose interpolated values are kept.
__device__ void search_column(const float* map, int height, int width, int rows, int columns, int x,
                              int first_row, int last_row, Peak& best) {
  const CubicSample along(x, columns, width);
  float column_values[kCubicCells] = {};
  int cell = -2;  // not a valid cell
  for (int y = first_row; y < last_row; ++y) {
    const CubicSample down(y, rows, height);
    if (down.cell != cell) {
      cell = down.cell;
      for (int row = 0; row < kCubicCells; ++row) {
        const float* cells = map + down.cell_at(row, height) * width;
        float values[kCubicCells];
        for (int i = 0; i < kCubicCells; ++i) values[i] = cells[along.cell_at(i, width)];
        column_values[row] = interpolate(values, along);
      }
    }
    best.update({interpolate(column_values, down), y * columns + x});
  }
}

// Budget: peak_kernel 1220 instructions.
__global__ void __launch_bounds__(kThreads)
    peak_kernel(const float* maps, const float* boxes, int64_t points, int height, int width,
                float* keypoints, float* scores) {
  __shared__ float values[kThreads];
  __shared__ int places[kThreads];
  __shared__ bool has_nonfinite;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t number = blockIdx.x;
  const float* map = maps + number * height * width;
  const float* box = boxes + number / points * 4;
  const PeakAxis columns(box[0], box[2]), rows(box[1], box[3]);

  if (thread == 0) has_nonfinite = false;
  __syncthreads();
  for (int i = thread; i < height * width; i += kThreads) {
    if (!std::isfinite(map[i])) has_nonfinite = true;
  }
  Peak best{-std::numeric_limits<float>::infinity(), 0};
  // With fewer columns than threads, columns are divided into parts.
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
      peak.update({values[thread + half], places[thread + half]});
      values[thread] = peak.value;
      places[thread] = peak.place;
    }
    __syncthreads();
  }
  if (thread == 0) {
    write_keypoint(rows, columns, has_nonfinite ? 0 : places[0], keypoints + number * 3);
    scores[number] = has_nonfinite ? std::numeric_limits<float>::quiet_NaN() : values[0];
  }
}

std::tuple<Tensor, Tensor> heatmap_peaks(const Tensor& maps, const Tensor& boxes) {
  const PeakCall call = check_heatmap_peaks(maps, boxes);
  const DeviceGuard guard(maps.get_device_index());
  const int64_t count = call.scores.numel();
  if (count > 0) {
    launch(maps, peak_kernel, dim3(static_cast<unsigned>(count)), kThreads, 0,
           data<float>(call.maps), data<float>(call.boxes), call.points(), call.height(),
           call.width(), mutable_data<float>(call.keypoints), mutable_data<float>(call.scores));
  }
  return {call.keypoints, call.scores};
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("heatmap_peaks", TORCH_BOX(&detlite::heatmap_peaks));
}
