// RoIAlign on the CPU: each bin a weighted sum of the channel vectors of its cells.
#include <torch/csrc/stable/library.h>

#include "axis_weights.h"
#include "roi_loops.h"

namespace detlite {
namespace {

// sum[0, count) over the bin's cells; a whole block stays in registers.
template <typename F, typename T>
void sum_bin(const BinWeights<T>& weights, size_t bin, const F* map, int64_t count, T* sum) {
  const auto* cell = weights.cells.data() + weights.bin_ends[bin];
  const auto* end = weights.cells.data() + weights.bin_ends[bin + 1];
  if (count == kChannelBlock) {
    T block[kChannelBlock] = {};
    for (; cell != end; ++cell) {
      const F* features = map + cell->offset;
      for (int64_t i = 0; i < kChannelBlock; ++i) block[i] += cell->weight * T(features[i]);
    }
    std::copy_n(block, kChannelBlock, sum);
  } else {
    std::fill_n(sum, count, T(0));
    for (; cell != end; ++cell) {
      const F* features = map + cell->offset;
      for (int64_t i = 0; i < count; ++i) sum[i] += cell->weight * T(features[i]);
    }
  }
}

template <typename T>
void spread_bin(const BinWeights<T>& weights, size_t bin, const T* grad, int64_t count, T* map) {
  const auto* cell = weights.cells.data() + weights.bin_ends[bin];
  const auto* end = weights.cells.data() + weights.bin_ends[bin + 1];
  for (; cell != end; ++cell) {
    T* target = map + cell->offset;
    for (int64_t i = 0; i < count; ++i) target[i] += cell->weight * grad[i];
  }
}

Tensor roi_align_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                         int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                         bool aligned) {
  constexpr const char* op = "roi_align_forward";
  const AlignArguments align =
      check_align(op, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned);
  check_features(op, "input", input);
  check_map_size(op, input.size(2), input.size(3));
  check_rois(op, input, "input", rois);

  const bool channels_last = is_channels_last(input);
  const Tensor boxes = torch::stable::contiguous(rois);
  const int64_t channels = input.size(1), bins = pooled_height * pooled_width;
  const int height = static_cast<int>(input.size(2)), width = static_cast<int>(input.size(3));
  Tensor output = empty_4d(input, input.scalar_type(), rois.size(0), channels, pooled_height,
                           pooled_width, channels_last);
  const PooledLayout layout(channels_last, channels, bins);
  dispatch_floating(op, "input", input.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    check_batch_indices<T>(op, boxes, input.size(0));
    const Tensor map = cells_in_rows(input, channels_last);
    const View4d<const F> features = const_view<F>(map);
    const T* all_rois = static_cast<const T*>(boxes.const_data_ptr());
    F* all_pooled = static_cast<F*>(output.mutable_data_ptr());
    torch::stable::parallel_for(0, boxes.size(0), 1, [&](int64_t first, int64_t last) {
      BinWeights<T> weights;
      std::vector<T> packed;
      T sum[kChannelBlock];
      for (int64_t k = first; k < last; ++k) {
        const T* roi = all_rois + k * kRoiSize;
        const int64_t image = batch_index(roi, input.size(0));
        F* pooled = all_pooled + k * channels * bins;
        weights.build_axes(roi, align, height, width);
        if (channels_last) {
          weights.locate(features.stride_h, features.stride_w);
        } else {
          weights.locate_packed(kChannelBlock);
        }
        for (int64_t c = 0; c < channels; c += kChannelBlock) {
          const int64_t count = std::min(kChannelBlock, channels - c);
          if (!channels_last) {
            pack(features, image, c, count, weights.rows.cells, weights.columns.cells, packed);
          }
          for (int64_t bin = 0; bin < bins; ++bin) {
            if (channels_last) {
              sum_bin(weights, bin, features.at(image, c, 0, 0), count, sum);
            } else {
              sum_bin(weights, bin, packed.data(), count, sum);
            }
            F* target = pooled + c * layout.channel_stride + bin * layout.bin_stride;
            for (int64_t i = 0; i < count; ++i) target[i * layout.channel_stride] = F(sum[i]);
          }
        }
      }
    });
  });
  return output;
}

// Threads split the channels, so that no two ever add to one cell.
Tensor roi_align_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                          int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                          int64_t channels, int64_t height, int64_t width, int64_t sampling_ratio,
                          bool aligned) {
  constexpr const char* op = "roi_align_backward";
  const AlignArguments align =
      check_align(op, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned);
  check_features(op, "grad", grad);
  check_map_size(op, height, width);
  check_rois(op, grad, "grad", rois);
  check_pooled_grad(op, "grad", grad, rois, align.pool, batch_size, channels);

  const bool channels_last = is_channels_last(grad);
  const Tensor dense = dense_4d(grad, channels_last);
  const Tensor boxes = torch::stable::contiguous(rois);
  const int64_t bins = pooled_height * pooled_width;
  Tensor sums = empty_4d(grad, accumulate_type(grad.scalar_type()), batch_size, channels, height,
                         width, channels_last);
  torch::stable::zero_(sums);
  const PooledLayout layout(channels_last, channels, bins);
  dispatch_floating(op, "grad", grad.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    check_batch_indices<T>(op, boxes, batch_size);
    const View4d<T> map = mutable_view<T>(sums);
    const T* all_rois = static_cast<const T*>(boxes.const_data_ptr());
    const F* all_pooled = static_cast<const F*>(dense.const_data_ptr());
    torch::stable::parallel_for(0, channels, kChannelGrain, [&](int64_t first, int64_t last) {
      BinWeights<T> weights;
      std::vector<T> packed;
      T pooled_grad[kChannelBlock];
      for (int64_t k = 0; k < boxes.size(0); ++k) {
        const T* roi = all_rois + k * kRoiSize;
        const int64_t image = batch_index(roi, batch_size);
        const F* pooled = all_pooled + k * channels * bins;
        weights.build_axes(roi, align, static_cast<int>(height), static_cast<int>(width));
        if (channels_last) {
          weights.locate(map.stride_h, map.stride_w);
        } else {
          weights.locate_packed(kChannelBlock);
        }
        for (int64_t c = first; c < last; c += kChannelBlock) {
          const int64_t count = std::min(kChannelBlock, last - c);
          if (!channels_last) {
            packed.assign(weights.rows.cells.size() * weights.columns.cells.size() * kChannelBlock,
                          T(0));
          }
          T* target = channels_last ? map.at(image, c, 0, 0) : packed.data();
          for (int64_t bin = 0; bin < bins; ++bin) {
            const F* source = pooled + c * layout.channel_stride + bin * layout.bin_stride;
            for (int64_t i = 0; i < count; ++i) {
              pooled_grad[i] = T(source[i * layout.channel_stride]);
            }
            spread_bin(weights, bin, pooled_grad, count, target);
          }
          if (!channels_last) {
            add_packed(packed, map, image, c, count, weights.rows.cells, weights.columns.cells);
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
  m.impl("roi_align_forward", TORCH_BOX(&detlite::roi_align_forward));
  m.impl("roi_align_backward", TORCH_BOX(&detlite::roi_align_backward));
}
