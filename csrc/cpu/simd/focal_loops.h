// Inner loops of the focal loss, which the compiler vectorizes.
#pragma once

#include "inner_loops.h"
#include "vectors.h"

namespace detlite::DETLITE_ISA {

// Elements per block, few enough for the L1 cache.
constexpr int kFocalBlock = 512;

template <typename Math, typename T>
void focal_block(const T* logits, const T* targets, int count, FocalSettings<T> settings, T* loss) {
  for (int i = 0; i < count; ++i) {
    loss[i] = FocalTerms<T, Math>(logits[i], targets[i], settings).loss();
  }
}

template <typename Math, typename T>
void focal_gradient_block(const T* logits, const T* targets, int count, FocalSettings<T> settings,
                          T* slope) {
  for (int i = 0; i < count; ++i) {
    slope[i] = FocalTerms<T, Math>(logits[i], targets[i], settings).slope(settings.gamma);
  }
}

// VectorMath supports only float and the usual exponent, 2.
template <typename T>
bool uses_vector_math(FocalSettings<T> settings) {
  return std::is_same_v<T, float> && settings.gamma == 2;
}
template <typename T>
using FocalMath = std::conditional_t<std::is_same_v<T, float>, VectorMath, StandardMath<T>>;

// Calls function(first, count, logits, targets) for each block, converted to the accumulation type.
template <typename F, typename Function>
void for_focal_blocks(const F* logits, const F* targets, int64_t count, const Function& function) {
  accumulate_t<F> wide_logits[kFocalBlock], wide_targets[kFocalBlock];
  for (int64_t first = 0; first < count; first += kFocalBlock) {
    const int size = static_cast<int>(count - first < kFocalBlock ? count - first : kFocalBlock);
    convert(logits + first, size, wide_logits);
    convert(targets + first, size, wide_targets);
    function(first, size, wide_logits, wide_targets);
  }
}

template <typename F, typename T = accumulate_t<F>>
void focal_loss(const F* logits, const F* targets, int64_t count, FocalSettings<T> settings,
                T* loss) {
  const auto block =
      uses_vector_math(settings) ? focal_block<FocalMath<T>, T> : focal_block<StandardMath<T>, T>;
  for_focal_blocks(logits, targets, count, [&](int64_t first, int size, const T* x, const T* t) {
    block(x, t, size, settings, loss + first);
  });
}

template <typename F, typename T = accumulate_t<F>>
void focal_gradient(const T* grad, int64_t grad_step, const F* logits, const F* targets,
                    int64_t count, FocalSettings<T> settings, F* result) {
  const auto block = uses_vector_math(settings) ? focal_gradient_block<FocalMath<T>, T>
                                                : focal_gradient_block<StandardMath<T>, T>;
  T gradient[kFocalBlock];
  for_focal_blocks(logits, targets, count, [&](int64_t first, int size, const T* x, const T* t) {
    block(x, t, size, settings, gradient);
    for (int i = 0; i < size; ++i) gradient[i] *= grad[(first + i) * grad_step];
    convert(gradient, size, result + first);
  });
}

}  // namespace detlite::DETLITE_ISA
