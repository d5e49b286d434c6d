// RoIPool on the CPU. The largest feature of a bin, with NaN above all numbers as in torch's own
// max pooling, so that a NaN shows; an empty bin gives 0 and argmax -1.
#include <algorithm>
#include <vector>

#include <torch/csrc/stable/library.h>

#include "roi_loops.h"
#include "roi_pool_geometry.h"

namespace detlite {
namespace {

template <typename T>
struct PoolAxes {
  PoolAxis<T> rows, columns;

  PoolAxes(const T* roi, const PoolShape& pool, int height, int width)
      : rows(pool_axis(roi[2], roi[4], T(pool.spatial_scale), pool.height, height)),
        columns(pool_axis(roi[1], roi[3], T(pool.spatial_scale), pool.width, width)) {}
};

// Scans one bin, channels innermost; `map` is that bin's first cell and channel.
template <typename F, typename T>
void largest_of_bin(const F* map, int64_t stride_h, int64_t stride_w, const CellRange& rows,
                    const CellRange& columns, int width, int64_t count, T* best, int32_t* where) {
  for (int64_t i = 0; i < count; ++i) best[i] = T(map[i]);
  std::fill_n(where, count, rows.begin * width + columns.begin);
  for (int y = rows.begin; y < rows.end; ++y, map += stride_h) {
    const F* features = map;
    for (int x = columns.begin; x < columns.end; ++x, features += stride_w) {
      const int32_t cell = y * width + x;
      for (int64_t i = 0; i < count; ++i) {
        const T value = T(features[i]);
        const bool larger = value > best[i] || value != value;
        best[i] = larger ? value : best[i];
        where[i] = larger ? cell : where[i];
      }
    }
  }
}

// The cells that a RoI's bins touch along one axis, in order.
template <typename T>
void touched_cells(const PoolAxis<T>& axis, int bins, std::vector<int>& cells) {
  cells.clear();
  for (int cell = axis.cells(0).begin; cell < axis.cells(bins - 1).end; ++cell) {
    cells.push_back(cell);
  }
}

std::tuple<Tensor, Tensor> roi_pool_forward(const Tensor& input, const Tensor& rois,
                                            double spatial_scale, int64_t pooled_height,
                                            int64_t pooled_width) {
  constexpr const char* op = "roi_pool_forward";
  const PoolShape pool = check_pool_shape(op, spatial_scale, pooled_height, pooled_width);
  check_features(op, "input", input);
  check_map_size(op, input.size(2), input.size(3));
  check_rois(op, input, "input", rois);

  const bool channels_last = is_channels_last(input);
  const Tensor boxes = torch::stable::contiguous(rois);
  const int64_t channels = input.size(1), bins = pooled_height * pooled_width;
  const int height = static_cast<int>(input.size(2)), width = static_cast<int>(input.size(3));
  Tensor output = empty_4d(input, input.scalar_type(), rois.size(0), channels, pool.height,
                           pool.width, channels_last);
  Tensor argmax = empty_4d(input, ScalarType::Int, rois.size(0), channels, pool.height, pool.width,
                           channels_last);
  const PooledLayout layout(channels_last, channels, bins);
  dispatch_floating(op, "input", input.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    check_batch_indices<T>(op, boxes, input.size(0));
    const Tensor map = cells_in_rows(input, channels_last);
    const View4d<const F> features = const_view<F>(map);
    const T* all_rois = static_cast<const T*>(boxes.const_data_ptr());
    F* all_pooled = static_cast<F*>(output.mutable_data_ptr());
    int32_t* all_cells = static_cast<int32_t*>(argmax.mutable_data_ptr());
    torch::stable::parallel_for(0, boxes.size(0), 1, [&](int64_t first, int64_t last) {
      std::vector<int> rows, columns;
      std::vector<T> packed;
      T best[kChannelBlock];
      int32_t where[kChannelBlock];
      for (int64_t k = first; k < last; ++k) {
        const T* roi = all_rois + k * kRoiSize;
        const int64_t image = batch_index(roi, input.size(0));
        const PoolAxes<T> axes(roi, pool, height, width);
        touched_cells(axes.rows, pool.height, rows);
        touched_cells(axes.columns, pool.width, columns);
        const int64_t packed_stride = static_cast<int64_t>(columns.size()) * kChannelBlock;
        for (int64_t c = 0; c < channels; c += kChannelBlock) {
          const int64_t count = std::min(kChannelBlock, channels - c);
          if (!channels_last) pack(features, image, c, count, rows, columns, packed);
          for (int64_t bin = 0; bin < bins; ++bin) {
            const CellRange y = axes.rows.cells(static_cast<int>(bin / pool.width));
            const CellRange x = axes.columns.cells(static_cast<int>(bin % pool.width));
            if (y.begin >= y.end || x.begin >= x.end) {
              std::fill_n(best, count, T(0));
              std::fill_n(where, count, -1);
            } else if (channels_last) {
              largest_of_bin(features.at(image, c, y.begin, x.begin), features.stride_h,
                             features.stride_w, y, x, width, count, best, where);
            } else {
              largest_of_bin(packed.data() + (y.begin - rows[0]) * packed_stride +
                                 (x.begin - columns[0]) * kChannelBlock,
                             packed_stride, kChannelBlock, y, x, width, count, best, where);
            }
            const int64_t at = k * channels * bins + c * layout.channel_stride +
                               bin * layout.bin_stride;
            for (int64_t i = 0; i < count; ++i) {
              all_pooled[at + i * layout.channel_stride] = F(best[i]);
              all_cells[at + i * layout.channel_stride] = where[i];
            }
          }
        }
      }
    });
  });
  return {output, argmax};
}

// Threads split the channels, so that no two ever add to one cell.
Tensor roi_pool_backward(const Tensor& grad, const Tensor& rois, const Tensor& argmax,
                         double spatial_scale, int64_t pooled_height, int64_t pooled_width,
                         int64_t batch_size, int64_t channels, int64_t height, int64_t width) {
  constexpr const char* op = "roi_pool_backward";
  const PoolShape pool = check_pool_shape(op, spatial_scale, pooled_height, pooled_width);
  check_features(op, "grad", grad);
  check_map_size(op, height, width);
  check_rois(op, grad, "grad", rois);
  check_pooled_grad(op, "grad", grad, rois, pool, batch_size, channels);
  check_argmax(op, grad, argmax);

  const bool channels_last = is_channels_last(grad);
  const Tensor dense = dense_4d(grad, channels_last);
  const Tensor where = dense_4d(argmax, channels_last);
  const Tensor boxes = torch::stable::contiguous(rois);
  Tensor sums = empty_4d(grad, accumulate_type(grad.scalar_type()), batch_size, channels, height,
                         width, channels_last);
  torch::stable::zero_(sums);
  const int64_t bins = pooled_height * pooled_width;
  const PooledLayout layout(channels_last, channels, bins);
  const int32_t* cells = static_cast<const int32_t*>(where.const_data_ptr());
  for (int64_t i = 0; i < where.numel(); ++i) {
    check(cells[i] >= -1 && cells[i] < height * width, op, ": argmax must be from -1 to ",
          height * width - 1, ", got ", cells[i]);
  }
  dispatch_floating(op, "grad", grad.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    check_batch_indices<T>(op, boxes, batch_size);
    const View4d<T> target = mutable_view<T>(sums);
    const T* all_rois = static_cast<const T*>(boxes.const_data_ptr());
    const F* pooled = static_cast<const F*>(dense.const_data_ptr());
    torch::stable::parallel_for(0, channels, kChannelGrain, [&](int64_t first, int64_t last) {
      for (int64_t k = 0; k < boxes.size(0); ++k) {
        const int64_t image = batch_index(all_rois + k * kRoiSize, batch_size);
        const auto add = [&](int64_t c, int64_t bin) {
          const int64_t i =
              k * channels * bins + c * layout.channel_stride + bin * layout.bin_stride;
          if (cells[i] >= 0) {
            *target.at(image, c, cells[i] / width, cells[i] % width) += T(pooled[i]);
          }
        };
        if (channels_last) {
          for (int64_t bin = 0; bin < bins; ++bin) {
            for (int64_t c = first; c < last; ++c) add(c, bin);
          }
        } else {
          for (int64_t c = first; c < last; ++c) {
            for (int64_t bin = 0; bin < bins; ++bin) add(c, bin);
          }
        }
      }
    });
  });
  return torch::stable::to(sums, grad.scalar_type());
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("roi_pool_forward", TORCH_BOX(&detlite::roi_pool_forward));
  m.impl("roi_pool_backward", TORCH_BOX(&detlite::roi_pool_backward));
}
