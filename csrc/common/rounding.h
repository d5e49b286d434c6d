// Arithmetic with bit-identical results on every device.
#pragma once

#include <torch/headeronly/macros/Macros.h>

namespace detlite {

// a * b, rounded before anything is added to it. A fused multiply-add would round once instead, and
// the last bit can decide which of two boxes is kept or how many samples a bin has. On the CPU and
// on AMD GPUs, setup.py turns fusing off for the compiler.
template <typename T>
C10_HOST_DEVICE T rounded_product(T a, T b) {
#if defined(__CUDA_ARCH__) || defined(DETLITE_CUDA_ON_CPU)
  if constexpr (sizeof(T) == sizeof(double)) return __dmul_rn(a, b);
  else return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

}  // namespace detlite
