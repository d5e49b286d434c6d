// RoIAlign on the CPU.
//
// The definition as scalar code, for one RoI on one channel of a map of height x width cells:
//
//   float bilinear(float map[height][width], float y, float x) {
//     if (y < -1 || y > height || x < -1 || x > width) return 0;
//     y = min(max(y, 0), height - 1);
//     x = min(max(x, 0), width - 1);
//     int y0 = int(y), y1 = min(y0 + 1, height - 1);
//     int x0 = int(x), x1 = min(x0 + 1, width - 1);
//     float dy = y - y0, dx = x - x0;
//     return (1 - dy) * ((1 - dx) * map[y0][x0] + dx * map[y0][x1]) +
//            dy * ((1 - dx) * map[y1][x0] + dx * map[y1][x1]);
//   }
//
//   float roi_align_bin(float map[height][width], float roi[4], int by, int bx) {
//     float offset = aligned ? 0.5 : 0;
//     float left = roi[0] * spatial_scale - offset, right = roi[2] * spatial_scale - offset;
//     float top = roi[1] * spatial_scale - offset, bottom = roi[3] * spatial_scale - offset;
//     float roi_h = aligned ? bottom - top : max(bottom - top, 1);
//     float roi_w = aligned ? right - left : max(right - left, 1);
//     float bin_h = roi_h / bins_y, bin_w = roi_w / bins_x;
//     int samples_y = sampling_ratio > 0 ? sampling_ratio : max(ceil(bin_h), 0);
//     int samples_x = sampling_ratio > 0 ? sampling_ratio : max(ceil(bin_w), 0);
//     float sum = 0;
//     for (int sy = 0; sy < samples_y; ++sy)
//       for (int sx = 0; sx < samples_x; ++sx)
//         sum += bilinear(map, top + (by + (sy + 0.5) / samples_y) * bin_h,
//                         left + (bx + (sx + 0.5) / samples_x) * bin_w);
//     return sum / max(samples_y * samples_x, 1);
//   }
//
//   void roi_align(float map[height][width], float roi[4], float pooled[bins_y][bins_x]) {
//     for (int by = 0; by < bins_y; ++by)
//       for (int bx = 0; bx < bins_x; ++bx) pooled[by][bx] = roi_align_bin(map, roi, by, bx);
//   }
//
// The kernel computes the same sums. Five changes lead from this code to the kernel:
//
// 1. Separate the axes. A bilinear weight is a row weight times a column weight, so a bin is sum
//    over y of rows[by][y] * (sum over x of columns[bx][x] * map[y][x]). The matrices `rows` and
//    `columns` depend only on the RoI and are shared by all channels.
// 2. Merge the samples. The matrices are sparse; a cell that several samples of a bin use appears
//    once, with the sum of their weights (AxisResampler). Work no longer grows with the samples.
// 3. Vectorize over channels. With channels innermost in memory, one weight multiplies a vector of
//    channels, and a few vectors stay in registers for a whole bin (resample() in
//    simd/roi_loops.h).
// 4. Make channels innermost. Channels-last maps are read in place. Small blocks of contiguous maps
//    are transposed into a buffer that several RoIs share (pool_rois() in roi_traversal.h).
// 5. Order and parallelize. RoIs are sorted by their position so that they find their cells in the
//    cache, and are divided among threads (plan_rois()).
//
// Pooling is linear in the map, so backward applies the transposed matrices to the pooled gradient:
// each cell is a weighted sum of bins. Tasks own disjoint parts of the maps (sum_gradients()).
#include <torch/csrc/stable/library.h>

#include "axis_resampler.h"
#include "roi_traversal.h"

namespace detlite {
namespace {

template <typename T>
RoiPlan<AxisResampler<T>> plan(const char* op, const PoolingCall& call, const AlignArguments& align,
                               bool transposed) {
  return plan_rois<AxisResampler<T>, T>(
      op, call, [&](const T* roi, const LevelShape& level, PlannedRoi<AxisResampler<T>>& planned) {
        const auto axis = [&](T low, T high, int bins, int size) {
          const AxisResampler<T> forward =
              bins_from_cells(align_axis(low, high, static_cast<T>(level.spatial_scale), bins,
                                         align.sampling_ratio, align.aligned),
                              bins, size);
          return transposed ? cells_from_bins(forward) : forward;
        };
        planned.rows = axis(roi[2], roi[4], align.pool.height, level.height);
        planned.columns = axis(roi[1], roi[3], align.pool.width, level.width);
      });
}

Tensor roi_align_forward(const std::vector<Tensor>& inputs, const Tensor& rois,
                         const Tensor& levels, const std::vector<double>& spatial_scales,
                         int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                         bool aligned) {
  constexpr const char* op = "roi_align_forward";
  const PoolingCall call =
      check_pooling_forward(op, inputs, rois, levels, spatial_scales, pooled_height, pooled_width);
  const AlignArguments align = check_align(op, call.pool, sampling_ratio, aligned);
  const ScalarType type = inputs[0].scalar_type();
  const Tensor output = call.empty_pooled(type, call.channels_last);
  prefer_huge_pages(output);
  dispatch_floating(op, "input", type, [&](auto feature) {
    using F = decltype(feature);
    pool_rois(inputs, call, plan<accumulate_t<F>>(op, call, align, false), mutable_data<F>(output),
              nullptr,
              [&loops = inner_loops()](const auto& roi, auto source, auto values, auto,
                                       int64_t channels) {
                using X = std::remove_pointer_t<decltype(values.data)>;
                loops.for_type<X>().resample(roi.rows.view(), roi.columns.view(), source, values,
                                             channels);
              });
  });
  return output;
}

std::vector<Tensor> roi_align_backward(const Tensor& grad, const Tensor& rois, const Tensor& levels,
                                       const std::vector<double>& spatial_scales,
                                       int64_t pooled_height, int64_t pooled_width,
                                       int64_t batch_size, int64_t channels,
                                       const std::vector<int64_t>& heights,
                                       const std::vector<int64_t>& widths, int64_t sampling_ratio,
                                       bool aligned) {
  constexpr const char* op = "roi_align_backward";
  const PoolingCall call =
      check_pooling_backward(op, grad, rois, levels, spatial_scales, pooled_height, pooled_width,
                             batch_size, channels, heights, widths);
  const AlignArguments align = check_align(op, call.pool, sampling_ratio, aligned);
  const Tensor dense = dense_4d(grad, call.channels_last);
  const std::vector<Tensor> maps = empty_maps(grad, call.pyramid, call.channels_last);
  for (const Tensor& map : maps) prefer_huge_pages(map);
  dispatch_floating(op, "grad", grad.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const auto planned = plan<T>(op, call, align, true);
    const F* pooled = data<F>(dense);
    const int64_t bins = align.pool.bins();
    sum_gradients(call, planned.rois, views<F>(maps),
                  [&, &loops = inner_loops()](const auto& roi, Window<T> tile, CellRange rows,
                                              int64_t first_channel, int64_t count) {
                    const F* grads = pooled + roi.number * call.pooled_size();
                    const SparseView<T> tile_rows = roi.rows.view(rows),
                                        columns = roi.columns.view();
                    if (call.channels_last) {
                      loops.for_type<F>().resample_add(
                          tile_rows, columns,
                          bins_window(grads + first_channel, align.pool, channels), tile, count);
                    } else {
                      thread_local std::vector<T> packed;
                      packed.resize(bins * count);
                      loops.for_type<F>().gather(grads + first_channel * bins, bins, count, bins,
                                                 packed.data(), count);
                      const T* source = packed.data();
                      loops.for_type<T>().resample_add(
                          tile_rows, columns, bins_window(source, align.pool, count), tile, count);
                    }
                  });
  });
  return maps;
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_FRAGMENT(detlite, m) {
  // The input of `maps` is the maps of a feature pyramid. The arguments have no default values:
  // torch 2.11 drops arguments that equal them before an autograd rule sees them, and then finds too
  // many gradients for an operator that takes a list of tensors.
  m.def(
      "roi_align_forward.maps(Tensor[] inputs, Tensor rois, Tensor levels, float[] spatial_scales, "
      "int pooled_height, int pooled_width, int sampling_ratio, bool aligned) -> Tensor");
  m.def(
      "roi_align_backward.maps(Tensor grad, Tensor rois, Tensor levels, float[] spatial_scales, "
      "int pooled_height, int pooled_width, SymInt batch_size, SymInt channels, SymInt[] heights, "
      "SymInt[] widths, int sampling_ratio, bool aligned) -> Tensor[]");
}

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("roi_align_forward.maps", TORCH_BOX(&detlite::roi_align_forward));
  m.impl("roi_align_backward.maps", TORCH_BOX(&detlite::roi_align_backward));
}
