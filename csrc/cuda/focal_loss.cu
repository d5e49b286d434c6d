// The focal loss on CUDA: one thread an element.
#include "focal_loss.h"

#include <torch/csrc/stable/library.h>

#include "launch.h"

namespace detlite {
namespace {

template <typename F, typename T>
__global__ void forward_kernel(int64_t count, const F* logits, const F* targets,
                               FocalSettings<T> settings, T* loss) {
  DETLITE_GRID_STRIDE(i, count) {
    loss[i] = FocalTerms<T, StandardMath<T>>(static_cast<T>(logits[i]), static_cast<T>(targets[i]),
                                             settings)
                  .loss();
  }
}

template <typename F, typename T>
__global__ void backward_kernel(int64_t count, const T* grad, int64_t grad_step, const F* logits,
                                const F* targets, FocalSettings<T> settings, F* result) {
  DETLITE_GRID_STRIDE(i, count) {
    const FocalTerms<T, StandardMath<T>> terms(static_cast<T>(logits[i]),
                                               static_cast<T>(targets[i]), settings);
    result[i] = static_cast<F>(grad[i * grad_step] * terms.slope(settings.gamma));
  }
}

Tensor forward(const Tensor& inputs, const Tensor& targets, double alpha, double gamma) {
  constexpr const char* op = "sigmoid_focal_loss_forward";
  const FocalInputs dense = check_focal_loss(op, inputs, targets, alpha, gamma);
  const DeviceGuard guard(inputs.get_device_index());
  const Tensor output = empty_dense(inputs, accumulate_type(inputs.scalar_type()));
  const int64_t count = inputs.numel();
  dispatch_floating(op, "inputs", inputs.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    launch(inputs, forward_kernel<F, T>, blocks_for(count), kThreads, 0, count,
           static_cast<const F*>(dense.logits.const_data_ptr()),
           static_cast<const F*>(dense.targets.const_data_ptr()), FocalSettings<T>(alpha, gamma),
           static_cast<T*>(output.mutable_data_ptr()));
  });
  return output;
}

Tensor backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets, double alpha,
                double gamma) {
  constexpr const char* op = "sigmoid_focal_loss_backward";
  const FocalInputs dense = check_focal_loss(op, inputs, targets, alpha, gamma);
  const FocalGradient from = check_focal_gradient(op, grad, inputs);
  const DeviceGuard guard(inputs.get_device_index());
  const Tensor output = empty_dense(inputs, inputs.scalar_type());
  const int64_t count = inputs.numel();
  dispatch_floating(op, "inputs", inputs.scalar_type(), [&](auto feature) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    launch(inputs, backward_kernel<F, T>, blocks_for(count), kThreads, 0, count,
           static_cast<const T*>(from.values.const_data_ptr()), from.step,
           static_cast<const F*>(dense.logits.const_data_ptr()),
           static_cast<const F*>(dense.targets.const_data_ptr()), FocalSettings<T>(alpha, gamma),
           static_cast<F*>(output.mutable_data_ptr()));
  });
  return output;
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("sigmoid_focal_loss_forward", TORCH_BOX(&detlite::forward));
  m.impl("sigmoid_focal_loss_backward", TORCH_BOX(&detlite::backward));
}
