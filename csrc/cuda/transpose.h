// Conversion between channels-last and contiguous layout through shared memory. The pooling kernels
// read and write runs of channels. For contiguous maps, two conversions at full memory bandwidth
// cost less than scattered accesses.
#pragma once

#include "launch.h"
#include "common/roi_pooling.h"

namespace detlite {

constexpr int kTransposeSide = 32;
constexpr int kTransposeRows = kThreads / kTransposeSide;  // rows that a block moves per step

// Transposes each of several matrices from [rows, columns] to [columns, rows].
// Budget: transpose_kernel 260 instructions.
template <typename F>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(int rows, int columns, const F* from, F* to) {
  __shared__ F tile[kTransposeSide][kTransposeSide + 1];  // padded to avoid bank conflicts
  const unsigned across = (columns + kTransposeSide - 1) / kTransposeSide;
  const unsigned down = (rows + kTransposeSide - 1) / kTransposeSide;
  const unsigned matrix = blockIdx.x / (across * down), place = blockIdx.x % (across * down);
  const int row = static_cast<int>(place / across) * kTransposeSide;
  const int column = static_cast<int>(place % across) * kTransposeSide;
  const int x = static_cast<int>(threadIdx.x) % kTransposeSide;
  const int y = static_cast<int>(threadIdx.x) / kTransposeSide;
  const int64_t first = int64_t{matrix} * rows * columns;
  for (int i = y; i < kTransposeSide; i += kTransposeRows) {
    if (row + i < rows && column + x < columns) {
      tile[i][x] = from[first + int64_t{row + i} * columns + column + x];
    }
  }
  __syncthreads();
  for (int i = y; i < kTransposeSide; i += kTransposeRows) {
    if (column + i < columns && row + x < rows) {
      to[first + int64_t{column + i} * rows + row + x] = tile[x][i];
    }
  }
}

// Returns `from` [N, C, H, W] as a dense tensor in the given layout, or itself if it already is.
template <typename F>
Tensor to_layout(const char* op, const Tensor& from, bool channels_last) {
  const int64_t channels = from.size(1), cells = from.size(2) * from.size(3);
  // torch handles tensors that are dense in neither layout or in both.
  const bool dense_in_other = channels_last ? from.is_contiguous() : is_channels_last(from);
  if (!dense_in_other || channels == 1 || cells == 1 || from.numel() == 0) {
    return dense_4d(from, channels_last);
  }
  const Tensor dense = dense_4d(from, !channels_last);
  const Tensor to = empty_4d(from, from.scalar_type(), from.size(0), channels, from.size(2),
                             from.size(3), channels_last);
  const auto tiles = [](int64_t side) { return (side + kTransposeSide - 1) / kTransposeSide; };
  const int64_t blocks = from.size(0) * tiles(channels) * tiles(cells);
  check(blocks <= std::numeric_limits<int32_t>::max(), op, ": a tensor has too many elements");
  const int64_t rows = channels_last ? channels : cells, columns = channels_last ? cells : channels;
  launch(from, transpose_kernel<F>, dim3(static_cast<unsigned>(blocks)), kThreads, 0,
         static_cast<int>(rows), static_cast<int>(columns), data<F>(dense), mutable_data<F>(to));
  return to;
}

template <typename F>
std::vector<Tensor> to_layout(const char* op, std::vector<Tensor> maps, bool channels_last) {
  for (Tensor& map : maps) map = to_layout<F>(op, map, channels_last);
  return maps;
}

// True if contiguous maps should be transposed before pooling. A transpose moves every cell twice.
// Pooling in place reads about 16 cells per bin, and a memory sector holds only a few neighbours.
inline bool is_worth_transposing(const PyramidShape& shape, int64_t rois, const PoolShape& pool) {
  int64_t cells = 0;
  for (int level = 0; level < shape.level_count(); ++level) {
    cells += shape.batch_size * shape.cells(level);
  }
  return shape.channels > 1 && pool.bins() > 1 && 8 * rois * pool.bins() >= cells;
}

}  // namespace detlite
