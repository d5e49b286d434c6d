// The sigmoid focal loss (Lin et al., Focal Loss for Dense Object Detection, 2017, equation 5):
// arguments, and the loss and its derivative for one element.
#pragma once

#include <cmath>

#include "common/tensors.h"

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

// FocalTerms calls exp with arguments <= 0, and log1p and power with arguments in [0, 1].
template <typename T>
struct StandardMath {
  static C10_HOST_DEVICE T exp(T x) { return std::exp(x); }
  static C10_HOST_DEVICE T log1p(T x) { return std::log1p(x); }
  static C10_HOST_DEVICE T power(T x, T exponent) {
    return exponent == 2 ? x * x : std::pow(x, exponent);
  }
};

// All terms keep their relative precision for logits of any size. Computing 1 - p instead of q
// would lose it, and with it the gradient for gamma < 1.
template <typename T, typename Math>
struct FocalTerms {
  T target, p, q;         // the probabilities of targets 1 and 0
  T cross_entropy, miss;  // miss: the probability of the wrong class
  T weight;

  C10_HOST_DEVICE C10_ALWAYS_INLINE FocalTerms(T logit, T target, FocalSettings<T> settings)
      : target(target) {
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

  // The derivative with respect to the logit. `growth` is the derivative of `miss` divided by
  // `miss`, which is bounded.
  C10_HOST_DEVICE C10_ALWAYS_INLINE T slope(T gamma) const {
    const T growth = miss > 0 ? (1 - 2 * target) * p * q / miss : T(0);
    return weight * (gamma * growth * cross_entropy + (1 - target) * p - target * q);
  }
};

// The checked arguments of a forward or backward call. Logits and targets are contiguous and of one
// floating type. `output` is uninitialized.
struct FocalCall {
  Tensor logits, targets, output;
};

inline FocalCall check_focal_loss(const char* op, const Tensor& inputs, const Tensor& targets,
                                  double alpha, double gamma, ScalarType output_type) {
  check_floating(op, "inputs", inputs);
  check(targets.scalar_type() == inputs.scalar_type(), op,
        ": targets must have the type of inputs, ", dtype_name(inputs.scalar_type()), ", got ",
        dtype_name(targets.scalar_type()));
  check_same_shape(op, "targets", targets, "inputs", inputs);
  check_same_device(op, {"inputs", inputs}, {{"targets", targets}});
  check(std::isfinite(alpha) && alpha <= 1, op,
        ": alpha must be from 0 to 1, or negative for no weights, got ", alpha);
  check(std::isfinite(gamma) && gamma >= 0, op, ": gamma must be zero or more, got ", gamma);
  return {torch::stable::contiguous(inputs), torch::stable::contiguous(targets),
          torch::stable::empty(inputs.sizes(), output_type, std::nullopt, inputs.device())};
}

// The gradient of the loss. `step` is 0 if all elements are the same number, as for a summed loss;
// otherwise 1.
struct FocalGradient {
  Tensor values;
  int64_t step;
};

inline FocalGradient check_focal_gradient(const char* op, const Tensor& grad,
                                          const Tensor& inputs) {
  const ScalarType expected = accumulate_type(inputs.scalar_type());
  check(grad.scalar_type() == expected, op, ": grad must be ", dtype_name(expected), " for ",
        dtype_name(inputs.scalar_type()), " inputs, got ", dtype_name(grad.scalar_type()));
  check_same_shape(op, "grad", grad, "inputs", inputs);
  check_same_device(op, {"inputs", inputs}, {{"grad", grad}});
  bool expanded = true;
  for (int64_t d = 0; d < grad.dim(); ++d) expanded &= grad.stride(d) == 0;
  if (expanded) return {grad, 0};
  return {torch::stable::contiguous(grad), 1};
}

}  // namespace detlite
