// The focal loss on the CPU.
#include "focal_loss.h"

#include <torch/csrc/stable/library.h>

#include "loops.h"

namespace detlite {
namespace {

constexpr int64_t kGrain = 1 << 14;

Tensor forward(const Tensor& inputs, const Tensor& targets, double alpha, double gamma) {
  constexpr const char* op = "sigmoid_focal_loss_forward";
  const FocalInputs dense = check_focal_loss(op, inputs, targets, alpha, gamma);
  const Tensor output = empty_dense(inputs, accumulate_type(inputs.scalar_type()));
  dispatch_floating(op, "inputs", inputs.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const auto& all = loops().of<F>();
    const FocalSettings<T> settings(alpha, gamma);
    const auto* logits = static_cast<const F*>(dense.logits.const_data_ptr());
    const auto* labels = static_cast<const F*>(dense.targets.const_data_ptr());
    auto* loss = static_cast<T*>(output.mutable_data_ptr());
    torch::stable::parallel_for(0, inputs.numel(), kGrain, [&](int64_t begin, int64_t end) {
      all.focal_loss(logits + begin, labels + begin, end - begin, settings, loss + begin);
    });
  });
  return output;
}

Tensor backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets, double alpha,
                double gamma) {
  constexpr const char* op = "sigmoid_focal_loss_backward";
  const FocalInputs dense = check_focal_loss(op, inputs, targets, alpha, gamma);
  const FocalGradient from = check_focal_gradient(op, grad, inputs);
  const Tensor output = empty_dense(inputs, inputs.scalar_type());
  dispatch_floating(op, "inputs", inputs.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const auto& all = loops().of<F>();
    const FocalSettings<T> settings(alpha, gamma);
    const auto* logits = static_cast<const F*>(dense.logits.const_data_ptr());
    const auto* labels = static_cast<const F*>(dense.targets.const_data_ptr());
    const auto* values = static_cast<const T*>(from.values.const_data_ptr());
    auto* result = static_cast<F*>(output.mutable_data_ptr());
    torch::stable::parallel_for(0, inputs.numel(), kGrain, [&](int64_t begin, int64_t end) {
      all.focal_gradient(values + begin * from.step, from.step, logits + begin, labels + begin,
                         end - begin, settings, result + begin);
    });
  });
  return output;
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("sigmoid_focal_loss_forward", TORCH_BOX(&detlite::forward));
  m.impl("sigmoid_focal_loss_backward", TORCH_BOX(&detlite::backward));
}
