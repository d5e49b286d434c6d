// The focal loss of logits (Lin et al., Focal Loss for Dense Object Detection, 2017, equation 5) of
// one element, for host and device.
#pragma once

#include <cmath>

#include <torch/csrc/stable/ops.h>

#include "dtypes.h"

namespace detlite {

template <typename T>
struct FocalSettings {
  T foreground, background;  // weights of targets 1 and 0
  T gamma;

  FocalSettings(double alpha, double gamma)
      : foreground(static_cast<T>(alpha < 0 ? 1 : alpha)),
        background(static_cast<T>(alpha < 0 ? 1 : 1 - alpha)),
        gamma(static_cast<T>(gamma)) {}
};

// What FocalTerms asks of Math: exp of zero or less, log1p of 0 to 1, and powers of 0 to 1.
template <typename T>
struct StandardMath {
  static C10_HOST_DEVICE T exp(T x) { return std::exp(x); }
  static C10_HOST_DEVICE T log1p(T x) { return std::log1p(x); }
  static C10_HOST_DEVICE T power(T x, T exponent) {
    return exponent == 2 ? x * x : std::pow(x, exponent);
  }
};

// Everything is a product or sum of terms that keep their relative precision however large the
// logit is. 1 - p would lose it, and with it the gradient where gamma < 1.
template <typename T, typename Math>
struct FocalTerms {
  T target, p, q;         // the probabilities of targets 1 and 0
  T cross_entropy, miss;  // miss: the probability that is not the target's
  T weight;

  C10_HOST_DEVICE C10_ALWAYS_INLINE FocalTerms(T logit, T target, FocalSettings<T> settings) : target(target) {
    const T small = Math::exp(-std::abs(logit));
    const T likely = 1 / (1 + small), unlikely = small * likely;
    p = logit > 0 ? likely : unlikely;
    q = logit > 0 ? unlikely : likely;
    cross_entropy = (logit > 0 ? logit : 0) - logit * target + Math::log1p(small);
    miss = target * q + (1 - target) * p;
    weight = (settings.foreground * target + settings.background * (1 - target)) *
             Math::power(miss, settings.gamma);
  }

  C10_HOST_DEVICE C10_ALWAYS_INLINE T loss() const { return weight * cross_entropy; }

  // The derivative by the logit. That of `miss` is taken relative to it, which is bounded.
  C10_HOST_DEVICE C10_ALWAYS_INLINE T slope(T gamma) const {
    const T growth = miss > 0 ? (1 - 2 * target) * p * q / miss : T(0);
    return weight * (gamma * growth * cross_entropy + (1 - target) * p - target * q);
  }
};

// Logits and targets as the kernels take them: one floating type, contiguous.
struct FocalInputs {
  Tensor logits, targets;
};

inline FocalInputs check_focal_loss(const char* op, const Tensor& inputs, const Tensor& targets,
                                    double alpha, double gamma) {
  check(is_floating(inputs.scalar_type()), op, ": inputs must be floating point, got ",
        dtype_name(inputs.scalar_type()));
  check(targets.scalar_type() == inputs.scalar_type(), op, ": targets must have the type of inputs, ",
        dtype_name(inputs.scalar_type()), ", got ", dtype_name(targets.scalar_type()));
  check(has_shape_of(targets, inputs), op, ": targets must have the shape of inputs, ",
        Shape{inputs}, ", got ", Shape{targets});
  check_same_device(op, inputs, "inputs", targets, "targets");
  check(std::isfinite(alpha) && alpha <= 1, op,
        ": alpha must be from 0 to 1, or negative for no weights, got ", alpha);
  check(std::isfinite(gamma) && gamma >= 0, op, ": gamma must be zero or more, got ", gamma);
  return {torch::stable::contiguous(inputs), torch::stable::contiguous(targets)};
}

// The loss's gradient, read every `step` elements: that of a sum is one number for all of them.
struct FocalGradient {
  Tensor values;
  int64_t step;
};

inline FocalGradient check_focal_gradient(const char* op, const Tensor& grad,
                                          const Tensor& inputs) {
  const ScalarType expected = accumulate_type(inputs.scalar_type());
  check(grad.scalar_type() == expected, op, ": grad must be ", dtype_name(expected), " for ",
        dtype_name(inputs.scalar_type()), " inputs, got ", dtype_name(grad.scalar_type()));
  check(has_shape_of(grad, inputs), op, ": grad must have the shape of inputs, ", Shape{inputs},
        ", got ", Shape{grad});
  check_same_device(op, inputs, "inputs", grad, "grad");
  bool repeated = true;
  for (int64_t d = 0; d < grad.dim(); ++d) repeated &= grad.stride(d) == 0;
  if (repeated) return {grad, 0};
  return {torch::stable::contiguous(grad), 1};
}

inline Tensor empty_dense(const Tensor& like, ScalarType type) {
  return torch::stable::empty(like.sizes(), type, std::nullopt, like.device());
}

}  // namespace detlite
