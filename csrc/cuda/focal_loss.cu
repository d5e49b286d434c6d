// The focal loss on CUDA: a thread has as many neighbouring elements as 16 bytes of losses hold,
// where all tensors lie so that they can be moved at once, else one.
#include "focal_loss.h"

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

// Packs of V elements, and what is left after the last whole pack one by one: calls body with the
// first of them and how many they are, as an integral constant.
template <int V, typename Body>
__device__ void for_each_pack(int64_t count, const Body& body) {
  DETLITE_GRID_STRIDE(i, (count + V - 1) / V) {
    const int64_t first = i * V;
    if (first + V <= count) {
      body(first, std::integral_constant<int, V>());
    } else {
      for (int64_t j = first; j < count; ++j) body(j, std::integral_constant<int, 1>());
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
      result.values[v] =
          FocalTerms<T, StandardMath<T>>(static_cast<T>(logit.values[v]),
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
    backward_kernel(int64_t count, const T* grad, bool same_grad, const F* logits,
                    const F* targets, FocalSettings<T> settings, F* result) {
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

// Calls body with the type of the elements and with how many make a pack. Views may begin anywhere.
template <typename Body>
void with_packs(const char* op, const FocalInputs& dense, const Tensor* grad, const Body& body) {
  dispatch_floating(op, "inputs", dense.logits.scalar_type(), [&](auto feature) {
    using T = accumulate_t<decltype(feature)>;
    constexpr int most = 16 / sizeof(T);
    const auto fits = [](const Tensor& tensor, size_t size) {
      return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % (most * size) == 0;
    };
    const bool all_fit = fits(dense.logits, sizeof(feature)) &&
                         fits(dense.targets, sizeof(feature)) &&
                         (!grad || fits(*grad, sizeof(T)));
    if (all_fit) body(feature, std::integral_constant<int, most>());
    else body(feature, std::integral_constant<int, 1>());
  });
}

Tensor forward(const Tensor& inputs, const Tensor& targets, double alpha, double gamma) {
  constexpr const char* op = "sigmoid_focal_loss_forward";
  const FocalInputs dense = check_focal_loss(op, inputs, targets, alpha, gamma);
  const DeviceGuard guard(inputs.get_device_index());
  const Tensor output = empty_dense(inputs, accumulate_type(inputs.scalar_type()));
  const int64_t count = inputs.numel();
  with_packs(op, dense, nullptr, [&](auto feature, auto size) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    constexpr int pack = decltype(size)::value;
    launch(inputs, forward_kernel<pack, F, T>, blocks_for(count / pack + 1), kThreads, 0, count,
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
  const bool same_grad = from.step == 0;
  with_packs(op, dense, same_grad ? nullptr : &from.values, [&](auto feature, auto size) {
    using F = decltype(feature);
    using T = accumulate_t<F>;
    constexpr int pack = decltype(size)::value;
    launch(inputs, backward_kernel<pack, F, T>, blocks_for(count / pack + 1), kThreads, 0, count,
           static_cast<const T*>(from.values.const_data_ptr()), same_grad,
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
