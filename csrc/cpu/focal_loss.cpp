// The sigmoid focal loss on the CPU.
#include "common/focal_loss.h"

#include <torch/csrc/stable/library.h>

#include "simd/inner_loops.h"

namespace detlite {
namespace {

constexpr int64_t kGrain = 1 << 14;

Tensor forward(const Tensor& inputs, const Tensor& targets, double alpha, double gamma) {
  constexpr const char* op = "sigmoid_focal_loss_forward";
  const FocalCall call =
      check_focal_loss(op, inputs, targets, alpha, gamma, accumulate_type(inputs.scalar_type()));
  dispatch_floating(op, "inputs", inputs.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const auto& loops = inner_loops().for_type<F>();
    const FocalSettings<T> settings(alpha, gamma);
    const F *logits = data<F>(call.logits), *labels = data<F>(call.targets);
    T* loss = mutable_data<T>(call.output);
    torch::stable::parallel_for(0, inputs.numel(), kGrain, [&](int64_t begin, int64_t end) {
      loops.focal_loss(logits + begin, labels + begin, end - begin, settings, loss + begin);
    });
  });
  return call.output;
}

Tensor backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets, double alpha,
                double gamma) {
  constexpr const char* op = "sigmoid_focal_loss_backward";
  const FocalCall call = check_focal_loss(op, inputs, targets, alpha, gamma, inputs.scalar_type());
  const FocalGradient upstream = check_focal_gradient(op, grad, inputs);
  dispatch_floating(op, "inputs", inputs.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    const auto& loops = inner_loops().for_type<F>();
    const FocalSettings<T> settings(alpha, gamma);
    const F *logits = data<F>(call.logits), *labels = data<F>(call.targets);
    const T* values = data<T>(upstream.values);
    F* result = mutable_data<F>(call.output);
    torch::stable::parallel_for(0, inputs.numel(), kGrain, [&](int64_t begin, int64_t end) {
      loops.focal_gradient(values + begin * upstream.step, upstream.step, logits + begin,
                           labels + begin, end - begin, settings, result + begin);
    });
  });
  return call.output;
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_FRAGMENT(detlite, m) {
  m.def(
      "sigmoid_focal_loss_forward(Tensor inputs, Tensor targets, float alpha, float gamma) "
      "-> Tensor");
  m.def(
      "sigmoid_focal_loss_backward(Tensor grad, Tensor inputs, Tensor targets, float alpha, "
      "float gamma) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("sigmoid_focal_loss_forward", TORCH_BOX(&detlite::forward));
  m.impl("sigmoid_focal_loss_backward", TORCH_BOX(&detlite::backward));
}
