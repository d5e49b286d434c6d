// Cropping of ground-truth masks to boxes on CUDA: one block per crop. The host does not read the
// offsets; the kernel clamps them to their arrays.
#include <torch/csrc/stable/library.h>

#include "roi_align_plan.h"
#include "common/crop_masks.h"
#include "launch.h"

namespace detlite {
namespace {

constexpr int kWord = 32;

struct Range {
  int64_t begin, end;
};
__device__ Range clamped_range(const int64_t* offsets, int64_t i, int64_t max) {
  const auto clamp = [max](int64_t value, int64_t min) {
    return value < min ? min : value < max ? value : max;
  };
  const int64_t begin = clamp(offsets[i], 0);
  return {begin, clamp(offsets[i + 1], begin)};
}

// ---- Polygons

// `edges` and `mask` have one bit per cell, stored by columns of whole words. The threads of the
// block divide first the edges of each polygon, then the columns, among them.
__device__ void crop_polygons(const MaskArrays& masks, Range pieces, const float* box,
                              int resolution, unsigned* edges, unsigned* mask, float* cells) {
  const FineGrid grid(box, resolution);
  const int words = (resolution + kWord - 1) / kWord, thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < resolution * words; i += kThreads) edges[i] = mask[i] = 0;
  __syncthreads();
  for (int64_t piece = pieces.begin; piece < pieces.end; ++piece) {
    const Range range = clamped_range(masks.pieces, piece, masks.value_count);
    const double* xy = masks.values + range.begin;
    const int64_t corners = (range.end - range.begin) / 2;
    for (int64_t i = thread; i < corners; i += kThreads) {
      const FinePoint from(xy + 2 * (i ? i - 1 : corners - 1), grid), to(xy + 2 * i, grid);
      cross_columns(from, to, resolution, resolution, [&](int column, int row) {
        if (row < resolution) {
          atomicXor(edges + column * words + row / kWord, 1u << (row % kWord));
        }
      });
    }
    __syncthreads();
    for (int x = thread; x < resolution; x += kThreads) {
      unsigned above = 0;
      for (int w = x * words; w < (x + 1) * words; ++w) {
        unsigned bits = edges[w];
        for (int shift = 1; shift < kWord; shift *= 2) bits ^= bits << shift;
        bits ^= above;
        above = bits >> (kWord - 1) ? ~0u : 0;
        mask[w] |= bits;
        edges[w] = 0;
      }
    }
    __syncthreads();
  }
  for (int i = thread; i < resolution * resolution; i += kThreads) {
    const int y = i / resolution, x = i % resolution;
    cells[i] = static_cast<float>(mask[x * words + y / kWord] >> (y % kWord) & 1);
  }
}

// ---- Run lengths

// Returns the index of the first element of a sorted range that is greater than the value.
__device__ int64_t first_above(const double* sorted, Range range, int64_t value) {
  while (range.begin < range.end) {
    const int64_t middle = range.begin + (range.end - range.begin) / 2;
    if (sorted[middle] <= static_cast<double>(value)) range.begin = middle + 1;
    else range.end = middle;
  }
  return range.begin;
}

// Returns the cell at or below a position, clamped to the map.
__device__ int cell_below(float position, int64_t size) {
  const auto last = static_cast<float>(size - 1);
  return static_cast<int>(position > 0 ? (position < last ? position : last) : 0.0f);
}

// The average of the mask over one bin, with sums in the same order as in the RoIAlign kernel.
__device__ float bin_of_runs(const double* boundaries, int64_t count, const NearestAxis& row_map,
                             const NearestAxis& column_map, const AlignAxis<float>& rows, int row,
                             const AlignAxis<float>& columns, int column) {
  const int height = static_cast<int>(row_map.target), width = static_cast<int>(column_map.target);
  const SampleRange xs = samples_near_map(columns, column, width);
  if (xs.begin >= xs.end) return 0;
  // Search only the run boundaries in the columns of the bin.
  const int64_t left = column_map(cell_below(columns.position(column, xs.begin), width));
  const int64_t right = column_map(cell_below(columns.position(column, xs.end - 1) + 1, width));
  const int64_t first = left < right ? left : right, last = left < right ? right : left;
  const Range near{first_above(boundaries, {0, count}, first * row_map.source - 1),
                   first_above(boundaries, {0, count}, (last + 1) * row_map.source - 1)};
  float value = 0;
  for_each_cell(rows, row, height, [&](int y, float down) {
    float row_sum = 0;
    for_each_cell(columns, column, width, [&](int x, float across) {
      if (first_above(boundaries, near, column_map(x) * row_map.source + row_map(y)) % 2)
        row_sum += across;
    });
    value += down * row_sum;
  });
  return value;
}

__device__ void crop_runs(const double* boundaries, int64_t count, const NearestAxis& row_map,
                          const NearestAxis& column_map, const float* box, int resolution,
                          bool soft, float* cells) {
  const auto rows = align_axis(box[1], box[3], 1.0f, resolution, 0, !soft);
  const auto columns = align_axis(box[0], box[2], 1.0f, resolution, 0, !soft);
  for (int i = static_cast<int>(threadIdx.x); i < resolution * resolution; i += kThreads) {
    const float value = bin_of_runs(boundaries, count, row_map, column_map, rows, i / resolution,
                                    columns, i % resolution);
    cells[i] = soft ? value : static_cast<float>(value >= 0.5f);
  }
}

// An index outside of the instances, and polygons with `soft`, fail torch's device assertion, which
// torch reports at the next synchronization. A check on the host would stall the stream. The launch
// bounds ask for two blocks, because the compiler's own choice spills registers.
// Budget: crop_kernel 3010 instructions.
__global__ void __launch_bounds__(kThreads, 2)
    crop_kernel(MaskArrays masks, const int64_t* index, const float* boxes, int resolution,
                bool soft, float* crops) {
  DETLITE_DYNAMIC_SHARED(shared);
  auto* edges = reinterpret_cast<unsigned*>(shared);
  unsigned* mask = edges + resolution * ((resolution + kWord - 1) / kWord);
  const int64_t row = blockIdx.x, instance = index[row];
  const float* box = boxes + row * 4;
  float* cells = crops + row * resolution * resolution;
  CUDA_KERNEL_ASSERT_MSG(instance >= -1 && instance < masks.instance_count,
                         "crop_masks: an index is outside of the instances");
  const Range pieces =
      instance < 0 ? Range{0, 0} : clamped_range(masks.instances, instance, masks.piece_count);
  if (pieces.begin < pieces.end) {
    const int64_t* frame = masks.frames + instance * kFrameSize;
    if (frame[0] == 0) {
      CUDA_KERNEL_ASSERT_MSG(!soft, "crop_masks: soft crops need run lengths, not polygons");
      crop_polygons(masks, pieces, box, resolution, edges, mask, cells);
      return;
    }
    if (rows_of(frame).is_valid() && columns_of(frame).is_valid()) {
      const Range range = clamped_range(masks.pieces, pieces.begin, masks.value_count);
      crop_runs(masks.values + range.begin, range.end - range.begin, rows_of(frame),
                columns_of(frame), box, resolution, soft, cells);
      return;
    }
  }
  for (int i = static_cast<int>(threadIdx.x); i < resolution * resolution; i += kThreads) {
    cells[i] = 0;
  }
}

Tensor crop_masks(const Tensor& values, const Tensor& pieces, const Tensor& instances,
                  const Tensor& frames, const Tensor& index, const Tensor& boxes,
                  int64_t resolution, bool soft) {
  const CropCall call =
      check_crop_masks(values, pieces, instances, frames, index, boxes, resolution, soft);
  const DeviceGuard guard(call.boxes.get_device_index());
  if (call.count() == 0) return call.crops;
  const size_t words = (call.resolution + kWord - 1) / kWord;
  launch(call.boxes, crop_kernel, dim3(static_cast<unsigned>(call.count())), kThreads,
         2 * call.resolution * words * sizeof(unsigned), call.masks(), data<int64_t>(call.index),
         data<float>(call.boxes), call.resolution, soft, mutable_data<float>(call.crops));
  return call.crops;
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("crop_masks", TORCH_BOX(&detlite::crop_masks));
}
