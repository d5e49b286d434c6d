// The arguments of RoIAlign and RoIPool: feature maps [N, C, H, W] in either memory layout,
// pyramids of up to eight maps, and RoIs. One set of checks serves the CPU and the CUDA kernels.
#pragma once

#include <vector>

#include "common/tensors.h"

namespace detlite {

// ---- One map

// A feature map or pooled features with any strides.
template <typename T>
struct View4d {
  T* data;
  int64_t stride_n, stride_c, stride_h, stride_w;

  C10_HOST_DEVICE T* at(int64_t n, int64_t c, int64_t h, int64_t w) const {
    return data + n * stride_n + c * stride_c + h * stride_h + w * stride_w;
  }
};

// True if channels are innermost in memory. Results have the layout of the inputs; the fake kernels
// in detlite/ops repeat this rule.
inline bool is_channels_last(const Tensor& tensor) {
  return tensor.size(1) > 1 && tensor.stride(1) == 1 && !tensor.is_contiguous();
}

inline auto memory_format(bool channels_last) {
  using torch::headeronly::MemoryFormat;
  return channels_last ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous;
}

inline Tensor empty_4d(const Tensor& like, ScalarType type, int64_t n, int64_t c, int64_t h,
                       int64_t w, bool channels_last) {
  const int64_t sizes[] = {n, c, h, w};
  return torch::stable::empty({sizes, 4}, type, std::nullopt, like.device(), std::nullopt,
                              memory_format(channels_last));
}

// Returns the tensor itself if it is already dense in that layout.
inline Tensor dense_4d(const Tensor& tensor, bool channels_last) {
  return torch::stable::contiguous(tensor, memory_format(channels_last));
}

inline void check_features(const char* op, const char* name, const Tensor& features) {
  check(features.dim() == 4, op, ": ", name, " must have 4 dimensions, got shape ",
        Shape{features});
  check(is_floating(features.scalar_type()), op, ": ", name,
        " must be float64, float32, float16 or bfloat16, got ", dtype_name(features.scalar_type()));
}

// ---- Pyramids

constexpr int64_t kMaxLevels = 8;

struct LevelShape {
  int height, width;
  double spatial_scale;
};

struct PyramidShape {
  std::vector<LevelShape> levels;
  int64_t batch_size, channels;

  int level_count() const { return static_cast<int>(levels.size()); }
  int64_t cells(int level) const { return int64_t{levels[level].height} * levels[level].width; }
};

inline void check_scales(const char* op, const std::vector<double>& spatial_scales) {
  const int64_t levels = static_cast<int64_t>(spatial_scales.size());
  check(levels >= 1 && levels <= kMaxLevels, op, ": spatial_scales must have from 1 to ",
        kMaxLevels, " levels, got ", levels);
  for (const double scale : spatial_scales) {
    check(std::isfinite(scale) && scale > 0, op, ": spatial_scale must be a positive number, got ",
          scale);
  }
}

// Checks the sizes that a backward operator receives.
inline PyramidShape check_pyramid_sizes(const char* op, const std::vector<double>& spatial_scales,
                                        int64_t batch_size, int64_t channels,
                                        const std::vector<int64_t>& heights,
                                        const std::vector<int64_t>& widths) {
  check_count(op, "batch_size", batch_size, 0);
  check_count(op, "channels", channels, 0);
  check_scales(op, spatial_scales);
  check(heights.size() == spatial_scales.size() && widths.size() == spatial_scales.size(), op,
        ": heights and widths must have one number for each of ", spatial_scales.size(),
        " spatial_scales, got ", heights.size(), " and ", widths.size());
  PyramidShape shape{{}, batch_size, channels};
  for (size_t level = 0; level < heights.size(); ++level) {
    const int64_t height = heights[level], width = widths[level];
    check_count(op, "height", height, 0);
    check_count(op, "width", width, 0);
    check(height * width <= std::numeric_limits<int32_t>::max(), op, ": a feature map of ", height,
          " x ", width, " has too many cells");
    shape.levels.push_back(
        {static_cast<int>(height), static_cast<int>(width), spatial_scales[level]});
  }
  return shape;
}

// Checks the maps that a forward operator receives.
inline PyramidShape check_pyramid(const char* op, const std::vector<Tensor>& inputs,
                                  const std::vector<double>& spatial_scales) {
  check_scales(op, spatial_scales);
  check(inputs.size() == spatial_scales.size(), op, ": inputs must have one map for each of ",
        spatial_scales.size(), " spatial_scales, got ", inputs.size());
  const Tensor& first = inputs[0];
  std::vector<int64_t> heights, widths;
  for (size_t level = 0; level < inputs.size(); ++level) {
    const Tensor& input = inputs[level];
    check_features(op, "input", input);
    check(input.scalar_type() == first.scalar_type() && input.size(0) == first.size(0) &&
              input.size(1) == first.size(1),
          op, ": inputs[", level, "] must have the type, batch size and channels of inputs[0]");
    check_same_device(op, {"inputs[0]", first}, {{"every other input", input}});
    heights.push_back(input.size(2));
    widths.push_back(input.size(3));
  }
  return check_pyramid_sizes(op, spatial_scales, first.size(0), first.size(1), heights, widths);
}

// All levels use one layout: channels-last if any map is recognizably channels-last.
inline bool is_channels_last(const std::vector<Tensor>& inputs) {
  for (const Tensor& input : inputs) {
    if (is_channels_last(input)) return true;
  }
  return false;
}

// F is const for inputs.
template <typename F>
std::vector<View4d<F>> views(const std::vector<Tensor>& maps) {
  std::vector<View4d<F>> result;
  for (const Tensor& map : maps) {
    F* start;
    if constexpr (std::is_const_v<F>) start = static_cast<F*>(map.const_data_ptr());
    else start = static_cast<F*>(map.mutable_data_ptr());
    result.push_back({start, map.stride(0), map.stride(1), map.stride(2), map.stride(3)});
  }
  return result;
}

inline std::vector<Tensor> empty_maps(const Tensor& like, const PyramidShape& shape,
                                      bool channels_last) {
  std::vector<Tensor> maps;
  for (const LevelShape& level : shape.levels) {
    maps.push_back(empty_4d(like, like.scalar_type(), shape.batch_size, shape.channels,
                            level.height, level.width, channels_last));
  }
  return maps;
}

// ---- Calls

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
