// What RoIAlign and RoIPool share on the host: their arguments' rules and their tensors' layouts.
#pragma once

#include <torch/csrc/stable/ops.h>

#include "dtypes.h"

namespace detlite {

// The columns of a RoI: [batch index, x1, y1, x2, y2].
constexpr int64_t kRoiSize = 5;

// A feature map or a pooled one, [N, C, H, W] of any strides.
template <typename T>
struct View4d {
  T* data;
  int64_t stride_n, stride_c, stride_h, stride_w;

  C10_HOST_DEVICE T* at(int64_t n, int64_t c, int64_t h, int64_t w) const {
    return data + n * stride_n + c * stride_c + h * stride_h + w * stride_w;
  }
};

template <typename T>
View4d<const T> const_view(const Tensor& tensor) {
  return {static_cast<const T*>(tensor.const_data_ptr()), tensor.stride(0), tensor.stride(1),
          tensor.stride(2), tensor.stride(3)};
}

template <typename T>
View4d<T> mutable_view(const Tensor& tensor) {
  return {static_cast<T*>(tensor.mutable_data_ptr()), tensor.stride(0), tensor.stride(1),
          tensor.stride(2), tensor.stride(3)};
}

// Whether channels lie innermost. Results take the same order; the rule is mirrored by
// detlite/ops/rois.py for the fake kernels.
inline bool is_channels_last(const Tensor& tensor) {
  return tensor.size(1) > 1 && tensor.stride(1) == 1 && !tensor.is_contiguous();
}

inline Tensor empty_4d(const Tensor& like, ScalarType type, int64_t n, int64_t c, int64_t h,
                       int64_t w, bool channels_last) {
  using torch::headeronly::MemoryFormat;
  const int64_t sizes[] = {n, c, h, w};
  return torch::stable::empty({sizes, 4}, type, std::nullopt, like.device(), std::nullopt,
                              channels_last ? MemoryFormat::ChannelsLast
                                            : MemoryFormat::Contiguous);
}

// The tensor itself where it already lies densely in that order.
inline Tensor dense_4d(const Tensor& tensor, bool channels_last) {
  using torch::headeronly::MemoryFormat;
  return torch::stable::contiguous(
      tensor, channels_last ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous);
}

// A map whose rows or channels are dense, which is what the kernels read: most strided inputs pass.
inline Tensor cells_in_rows(const Tensor& map, bool channels_last) {
  const bool dense = map.stride(channels_last ? 1 : 3) == 1;
  return dense ? map : dense_4d(map, channels_last);
}

struct PoolShape {
  int height, width;

  int64_t bins() const { return int64_t{height} * width; }
};

inline PoolShape check_pool_shape(const char* op, int64_t pooled_height, int64_t pooled_width) {
  check_count(op, "pooled_height", pooled_height, 1);
  check_count(op, "pooled_width", pooled_width, 1);
  return {static_cast<int>(pooled_height), static_cast<int>(pooled_width)};
}

struct AlignArguments {
  PoolShape pool;
  int sampling_ratio;
  bool aligned;
};

inline AlignArguments check_align(const char* op, int64_t pooled_height, int64_t pooled_width,
                                  int64_t sampling_ratio, bool aligned) {
  if (sampling_ratio > 0) check_count(op, "sampling_ratio", sampling_ratio, 1);
  return {check_pool_shape(op, pooled_height, pooled_width),
          sampling_ratio > 0 ? static_cast<int>(sampling_ratio) : 0, aligned};
}

inline void check_features(const char* op, const char* name, const Tensor& features) {
  check(features.dim() == 4, op, ": ", name, " must have 4 dimensions, got shape ",
        Shape{features});
  check(is_floating(features.scalar_type()), op, ": ", name,
        " must be float64, float32, float16 or bfloat16, got ",
        dtype_name(features.scalar_type()));
}

inline void check_map_size(const char* op, int64_t height, int64_t width) {
  check_count(op, "height", height, 0);
  check_count(op, "width", width, 0);
  check(height * width <= std::numeric_limits<int32_t>::max(), op, ": a feature map of ", height,
        " x ", width, " has too many cells");
}

// RoIs must be float32 whatever half type the features have, so that coordinates never round.
inline void check_rois(const char* op, const Tensor& features, const char* name,
                       const Tensor& rois, const Tensor& levels) {
  check(rois.dim() == 2 && rois.size(1) == kRoiSize, op,
        ": rois must have shape [K, 5] (batch index, x1, y1, x2, y2), got ", Shape{rois});
  const ScalarType expected = accumulate_type(features.scalar_type());
  check(rois.scalar_type() == expected, op, ": rois must be ", dtype_name(expected), " for ",
        dtype_name(features.scalar_type()), ' ', name, ", got ", dtype_name(rois.scalar_type()));
  check(levels.dim() == 1 && levels.size(0) == rois.size(0), op, ": levels must have shape [",
        rois.size(0), "], got ", Shape{levels});
  check(levels.scalar_type() == ScalarType::Long, op, ": levels must be int64, got ",
        dtype_name(levels.scalar_type()));
  check_same_device(op, features, name, rois, "rois");
  check_same_device(op, features, name, levels, "levels");
}

// A gradient of pooled features, [K, C, pooled height, pooled width], must fit the other arguments.
inline void check_pooled_grad(const char* op, const Tensor& grad, const Tensor& rois,
                              const PoolShape& pool, int64_t channels) {
  check(grad.dim() == 4 && grad.size(0) == rois.size(0) && grad.size(1) == channels &&
            grad.size(2) == pool.height && grad.size(3) == pool.width,
        op, ": grad must have shape [", rois.size(0), ", ", channels, ", ", pool.height, ", ",
        pool.width, "], got ", Shape{grad});
}

// What stands for the places of the maxima where nobody asked for them.
inline Tensor no_argmax(const Tensor& like) {
  const int64_t none = 0;
  return torch::stable::empty({&none, 1}, ScalarType::Int, std::nullopt, like.device());
}

inline void check_argmax(const char* op, const Tensor& grad, const Tensor& argmax) {
  check(argmax.scalar_type() == ScalarType::Int, op, ": argmax must be int32, got ",
        dtype_name(argmax.scalar_type()));
  check(has_shape_of(argmax, grad), op, ": argmax must have the shape of grad, ", Shape{grad}, ", got ", Shape{argmax});
  check_same_device(op, grad, "grad", argmax, "argmax");
}

// A RoI of image -1 is padding: it pools to zeros, and no gradient passes through it.
constexpr int64_t kPadding = -1;
constexpr int64_t kNoImage = -2;

// The image of a contiguous row of `rois`, kPadding, or kNoImage for any other number.
template <typename T>
C10_HOST_DEVICE int64_t image_of(const T* roi, int64_t batch_size) {
  if (roi[0] >= 0 && roi[0] < static_cast<T>(batch_size)) return static_cast<int64_t>(roi[0]);
  return roi[0] == T(-1) ? kPadding : kNoImage;
}

}  // namespace detlite
