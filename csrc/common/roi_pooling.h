// The arguments of RoIAlign and RoIPool: one set of checks for the CPU and the CUDA kernels.
#pragma once

#include "common/feature_maps.h"

namespace detlite {

// The columns of a RoI: [batch index, x1, y1, x2, y2].
constexpr int64_t kRoiSize = 5;

struct PoolShape {
  int height, width;

  int64_t bins() const { return int64_t{height} * width; }
};

// The checked arguments of a forward or backward call. `channels_last` is the layout of the
// results.
struct PoolingCall {
  PyramidShape pyramid;
  PoolShape pool;
  bool channels_last;
  Tensor rois, levels;  // contiguous [K, 5] and int64 [K]

  int64_t roi_count() const { return rois.size(0); }
  int64_t pooled_size() const { return pyramid.channels * pool.bins(); }  // of one RoI
  // Uninitialized pooled features [K, C, height, width].
  Tensor empty_pooled(ScalarType type, bool in_channels_last) const {
    return empty_4d(rois, type, roi_count(), pyramid.channels, pool.height, pool.width,
                    in_channels_last);
  }
};

inline PoolingCall check_pooling(const char* op, const char* features_name, const Tensor& features,
                                 const Tensor& rois, const Tensor& levels, PyramidShape pyramid,
                                 int64_t pooled_height, int64_t pooled_width, bool channels_last) {
  check_count(op, "pooled_height", pooled_height, 1);
  check_count(op, "pooled_width", pooled_width, 1);
  check(rois.dim() == 2 && rois.size(1) == kRoiSize, op,
        ": rois must have shape [K, 5] (batch index, x1, y1, x2, y2), got ", Shape{rois});
  // Half types would round coordinates, so rois are float32 for half-precision features.
  const ScalarType expected = accumulate_type(features.scalar_type());
  check(rois.scalar_type() == expected, op, ": rois must be ", dtype_name(expected), " for ",
        dtype_name(features.scalar_type()), ' ', features_name, ", got ",
        dtype_name(rois.scalar_type()));
  check_shape(op, "levels", levels, {rois.size(0)});
  check_dtype(op, "levels", levels, ScalarType::Long);
  check_same_device(op, {features_name, features}, {{"rois", rois}, {"levels", levels}});
  return {std::move(pyramid),
          {static_cast<int>(pooled_height), static_cast<int>(pooled_width)},
          channels_last,
          torch::stable::contiguous(rois),
          torch::stable::contiguous(levels)};
}

inline PoolingCall check_pooling_forward(const char* op, const std::vector<Tensor>& inputs,
                                         const Tensor& rois, const Tensor& levels,
                                         const std::vector<double>& spatial_scales,
                                         int64_t pooled_height, int64_t pooled_width) {
  PyramidShape pyramid = check_pyramid(op, inputs, spatial_scales);
  return check_pooling(op, "input", inputs[0], rois, levels, std::move(pyramid), pooled_height,
                       pooled_width, is_channels_last(inputs));
}

// `grad` is the gradient of the pooled features.
inline PoolingCall check_pooling_backward(const char* op, const Tensor& grad, const Tensor& rois,
                                          const Tensor& levels,
                                          const std::vector<double>& spatial_scales,
                                          int64_t pooled_height, int64_t pooled_width,
                                          int64_t batch_size, int64_t channels,
                                          const std::vector<int64_t>& heights,
                                          const std::vector<int64_t>& widths) {
  PyramidShape pyramid =
      check_pyramid_sizes(op, spatial_scales, batch_size, channels, heights, widths);
  check_features(op, "grad", grad);
  PoolingCall call = check_pooling(op, "grad", grad, rois, levels, std::move(pyramid),
                                   pooled_height, pooled_width, is_channels_last(grad));
  check_shape(op, "grad", grad, {rois.size(0), channels, pooled_height, pooled_width});
  return call;
}

struct AlignArguments {
  PoolShape pool;
  int sampling_ratio;  // 0: adaptive
  bool aligned;
};

inline AlignArguments check_align(const char* op, const PoolShape& pool, int64_t sampling_ratio,
                                  bool aligned) {
  if (sampling_ratio > 0) check_count(op, "sampling_ratio", sampling_ratio, 1);
  return {pool, sampling_ratio > 0 ? static_cast<int>(sampling_ratio) : 0, aligned};
}

// RoIPool's argmax, or an empty tensor if the caller does not need it.
inline Tensor empty_argmax(const PoolingCall& call, bool needed, bool channels_last) {
  if (needed) return call.empty_pooled(ScalarType::Int, channels_last);
  return empty(call.rois, ScalarType::Int, {0});
}

inline void check_argmax(const char* op, const Tensor& grad, const Tensor& argmax) {
  check_dtype(op, "argmax", argmax, ScalarType::Int);
  check_same_shape(op, "argmax", argmax, "grad", grad);
  check_same_device(op, {"grad", grad}, {{"argmax", argmax}});
}

// A RoI with batch index -1 is padding: its pooled features are zero and it has no gradient.
constexpr int64_t kPadding = -1;
constexpr int64_t kInvalidImage = -2;

// Returns the batch index of a RoI, kPadding, or kInvalidImage for any other number.
template <typename T>
C10_HOST_DEVICE int64_t image_of(const T* roi, int64_t batch_size) {
  if (roi[0] >= 0 && roi[0] < static_cast<T>(batch_size)) return static_cast<int64_t>(roi[0]);
  return roi[0] == T(-1) ? kPadding : kInvalidImage;
}

}  // namespace detlite
