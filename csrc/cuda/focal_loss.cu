// The sigmoid focal loss on CUDA. A thread processes a pack of neighbouring elements, whose losses
// fill 16 bytes, if all tensors are aligned for that, and otherwise single elements.
#include "common/focal_loss.h"

#include <type_traits>

#include <torch/csrc/stable/library.h>

#include "launch.h"

namespace detlite {
namespace {

template <typename T, int V>
struct alignas(V * sizeof(T)) Pack {
  T values[V];
};
template <int V, typename T>
__device__ Pack<T, V> load(const T* from) {
  return *reinterpret_cast<const Pack<T, V>*>(from);
}

// Calls function(first, size) for each pack of V elements, and for each single element after the
// last whole pack. `size` is an integral constant.
template <int V, typename Function>
__device__ void for_each_pack(int64_t count, const Function& function) {
  DETLITE_GRID_STRIDE(i, (count + V - 1) / V) {
    const int64_t first = i * V;
    if (first + V <= count) {
      function(first, std::integral_constant<int, V>());
    } else {
      for (int64_t j = first; j < count; ++j) function(j, std::integral_constant<int, 1>());
    }
  }
}

// Budget: forward_kernel<4, float, float> 1,000 instructions.
// Budget: forward_kernel 1,420 instructions.
template <int V, typename F, typename T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(int64_t count, const F* logits, const F* targets, FocalSettings<T> settings,
                   T* loss) {
  for_each_pack<V>(count, [&](int64_t first, auto size) {
    constexpr int n = decltype(size)::value;
    const auto logit = load<n>(logits + first), target = load<n>(targets + first);
    Pack<T, n> result;
#pragma unroll
    for (int v = 0; v < n; ++v) {
      result.values[v] = FocalTerms<T, StandardMath<T>>(static_cast<T>(logit.values[v]),
                                                        static_cast<T>(target.values[v]), settings)
                             .loss();
    }
    *reinterpret_cast<Pack<T, n>*>(loss + first) = result;
  });
}

// Budget: backward_kernel<4, float, float> 1,300 instructions.
// Budget: backward_kernel 1,560 instructions.
template <int V, typename F, typename T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(int64_t count, const T* grad, bool same_grad, const F* logits, const F* targets,
                    FocalSettings<T> settings, F* result) {
  for_each_pack<V>(count, [&](int64_t first, auto size) {
    constexpr int n = decltype(size)::value;
    const auto logit = load<n>(logits + first), target = load<n>(targets + first);
    Pack<T, n> factor;
    if (same_grad) {
      for (T& value : factor.values) value = *grad;
    } else {
      factor = load<n>(grad + first);
    }
    Pack<F, n> slope;
#pragma unroll
    for (int v = 0; v < n; ++v) {
      const FocalTerms<T, StandardMath<T>> terms(static_cast<T>(logit.values[v]),
                                                 static_cast<T>(target.values[v]), settings);
      slope.values[v] = static_cast<F>(factor.values[v] * terms.slope(settings.gamma));
    }
    *reinterpret_cast<Pack<F, n>*>(result + first) = slope;
  });
}

// Calls function(element, size), where `element` has the type of the logits and `size` is the pack
// size as an integral constant: 1 if a tensor is not aligned.
template <typename Function>
void with_packs(const char* op, const FocalCall& call, const Tensor* grad,
                const Function& function) {
  dispatch_floating(op, "inputs", call.logits.scalar_type(), [&](auto feature) {
    using T = accumulate_t<decltype(feature)>;
    constexpr int pack = 16 / sizeof(T);
    const auto is_aligned = [](const Tensor& tensor, size_t size) {
      return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % (pack * size) == 0;
    };
    const bool all_aligned = is_aligned(call.logits, sizeof(feature)) &&
                             is_aligned(call.targets, sizeof(feature)) &&
                             (!grad || is_aligned(*grad, sizeof(T)));
    if (all_aligned) function(feature, std::integral_constant<int, pack>());
    else function(feature, std::integral_constant<int, 1>());
  });
}

Tensor forward(const Tensor& inputs, const Tensor& targets, double alpha, double gamma) {
  constexpr const char* op = "sigmoid_focal_loss_forward";
  const FocalCall call =
      check_focal_loss(op, inputs, targets, alpha, gamma, accumulate_type(inputs.scalar_type()));
  const DeviceGuard guard(inputs.get_device_index());
  const int64_t count = inputs.numel();
  with_packs(op, call, nullptr, [&](auto feature, auto size) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    constexpr int pack = decltype(size)::value;
    launch(inputs, forward_kernel<pack, F, T>, blocks_for(count / pack + 1), kThreads, 0, count,
           data<F>(call.logits), data<F>(call.targets), FocalSettings<T>(alpha, gamma),
           mutable_data<T>(call.output));
  });
  return call.output;
}

Tensor backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets, double alpha,
                double gamma) {
  constexpr const char* op = "sigmoid_focal_loss_backward";
  const FocalCall call = check_focal_loss(op, inputs, targets, alpha, gamma, inputs.scalar_type());
  const FocalGradient upstream = check_focal_gradient(op, grad, inputs);
  const DeviceGuard guard(inputs.get_device_index());
  const int64_t count = inputs.numel();
  const bool same_grad = upstream.step == 0;
  with_packs(op, call, same_grad ? nullptr : &upstream.values, [&](auto feature, auto size) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    constexpr int pack = decltype(size)::value;
    launch(inputs, backward_kernel<pack, F, T>, blocks_for(count / pack + 1), kThreads, 0, count,
           data<T>(upstream.values), same_grad, data<F>(call.logits), data<F>(call.targets),
           FocalSettings<T>(alpha, gamma), mutable_data<F>(call.output));
  });
  return call.output;
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CUDA, m) {
  m.impl("sigmoid_focal_loss_forward", TORCH_BOX(&detlite::forward));
  m.impl("sigmoid_focal_loss_backward", TORCH_BOX(&detlite::backward));
}
