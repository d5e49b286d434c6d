// Channels innermost and back again, through shared memory. The pooling kernels read and write whole
// runs of channels; where maps are contiguous, two passes at the memory's speed cost less than
// scattered accesses.
#pragma once

#include "launch.h"
#include "rois.h"

namespace detlite {

constexpr int kTransposeSide = 32;
constexpr int kTransposeRows = kThreads / kTransposeSide;  // that a block moves at once

// Each of the matrices [rows, columns] becomes [columns, rows].
// Budget: transpose_kernel 260 instructions.
template <typename F>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(int rows, int columns, const F* from, F* to) {
  __shared__ F tile[kTransposeSide][kTransposeSide + 1];  // one more, against bank conflicts
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

// `from` [N, C, H, W] as a dense tensor of the other format; itself where it has that already.
template <typename F>
Tensor in_format(const char* op, const Tensor& from, bool channels_last) {
  const int64_t channels = from.size(1), cells = from.size(2) * from.size(3);
  // What is dense in neither format, or in both, is torch's matter.
  const bool other = channels_last ? from.is_contiguous() : is_channels_last(from);
  if (!other || channels == 1 || cells == 1 || from.numel() == 0) {
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
         static_cast<int>(rows), static_cast<int>(columns),
         static_cast<const F*>(dense.const_data_ptr()), static_cast<F*>(to.mutable_data_ptr()));
  return to;
}

template <typename F>
std::vector<Tensor> in_format(const char* op, std::vector<Tensor> maps, bool channels_last) {
  for (Tensor& map : maps) map = in_format<F>(op, map, channels_last);
  return maps;
}

// Whether contiguous maps are better transposed before RoIs are pooled from them. That moves every
// cell twice; pooling in place moves some 16 cells for each bin, a sector of memory for a few
// neighbours at a time.
inline bool pays_to_transpose(const PyramidShape& shape, int64_t rois, const PoolShape& pool) {
  int64_t cells = 0;
  for (int level = 0; level < shape.level_count(); ++level) {
    cells += shape.batch_size * shape.cells(level);
  }
  return shape.channels > 1 && pool.bins() > 1 && 8 * rois * pool.bins() >= cells;
}

}  // namespace detlite
