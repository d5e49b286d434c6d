// The loops of the focal loss; included by loops_impl.h only. The compiler vectorises them.
#pragma once

#include "loops.h"
#include "simd.h"

namespace detlite::DETLITE_ISA {

// Elements at a time: few enough for the innermost cache.
constexpr int kFocalBlock = 512;

template <typename Math, typename T>
void focal_block(const T* logits, const T* targets, int count, FocalSettings<T> settings,
                 T* loss) {
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

// Whether VectorisableMath, whose only exponent is the usual one, will do.
template <typename T>
bool vectorisable(FocalSettings<T> settings) {
  return std::is_same_v<T, float> && settings.gamma == 2;
}
template <typename T>
using FocalMath =
    std::conditional_t<std::is_same_v<T, float>, VectorisableMath, StandardMath<T>>;

// Calls body(first, count, logits, targets), in the type that is computed in, for block after block.
template <typename F, typename Body>
void for_focal_blocks(const F* logits, const F* targets, int64_t count, const Body& body) {
  accumulate_t<F> wide_logits[kFocalBlock], wide_targets[kFocalBlock];
  for (int64_t first = 0; first < count; first += kFocalBlock) {
    const int size = static_cast<int>(count - first < kFocalBlock ? count - first : kFocalBlock);
    convert(logits + first, size, wide_logits);
    convert(targets + first, size, wide_targets);
    body(first, size, wide_logits, wide_targets);
  }
}

template <typename F, typename T = accumulate_t<F>>
void focal_loss(const F* logits, const F* targets, int64_t count, FocalSettings<T> settings,
                T* loss) {
  const auto block = vectorisable(settings) ? focal_block<FocalMath<T>, T>
                                            : focal_block<StandardMath<T>, T>;
  for_focal_blocks(logits, targets, count,
                   [&](int64_t first, int size, const T* x, const T* t) {
                     block(x, t, size, settings, loss + first);
                   });
}

template <typename F, typename T = accumulate_t<F>>
void focal_gradient(const T* grad, int64_t grad_step, const F* logits, const F* targets,
                    int64_t count, FocalSettings<T> settings, F* result) {
  const auto block = vectorisable(settings) ? focal_gradient_block<FocalMath<T>, T>
                                            : focal_gradient_block<StandardMath<T>, T>;
  T gradient[kFocalBlock];
  for_focal_blocks(logits, targets, count,
                   [&](int64_t first, int size, const T* x, const T* t) {
                     block(x, t, size, settings, gradient);
                     for (int i = 0; i < size; ++i) gradient[i] *= grad[(first + i) * grad_step];
                     convert(gradient, size, result + first);
                   });
}

}  // namespace detlite::DETLITE_ISA
