// Mathematical functions without branches and calls, which compilers can vectorize.
//
// Must be included before an instruction set is selected. Loops for a wider instruction set inline
// these functions, and a function can be inlined only where its own instruction set is available.
#pragma once

#include <cstdint>
#include <cstring>

#include <torch/headeronly/macros/Macros.h>

namespace detlite {

// The functions of FocalTerms, exact to a few units in the last place. power() supports only
// squares.
struct VectorMath {
  C10_ALWAYS_INLINE static float exp(float x) {
    const float min = -87.0f;  // the result is still a normal number
    x = x < min ? min : x;
    // x = n log 2 + r with |r| <= log(2) / 2. Adding and subtracting 3 * 2^22 rounds to an integer.
    // log 2 is split into two parts; n times the first part is exact.
    const float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    // Taylor series with a relative error of 6e-9.
    float sum = 1.0f / 5040;
    sum = sum * r + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 1.0f / 2;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    // NaN must not be cast to int. It is already in the sum.
    const int exponent = static_cast<int>(n == n ? n : 0.0f);
    const int32_t bits = (exponent + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    return sum * scale;
  }

  // log(1 + x) = 2 artanh(s) with s = x / (2 + x) <= 1/3. Series with a relative error of 2e-9.
  C10_ALWAYS_INLINE static float log1p(float x) {
    const float s = x / (2 + x), s2 = s * s;
    float sum = 1.0f / 17;
    sum = sum * s2 + 1.0f / 15;
    sum = sum * s2 + 1.0f / 13;
    sum = sum * s2 + 1.0f / 11;
    sum = sum * s2 + 1.0f / 9;
    sum = sum * s2 + 1.0f / 7;
    sum = sum * s2 + 1.0f / 5;
    sum = sum * s2 + 1.0f / 3;
    sum = sum * s2 + 1.0f;
    return 2 * s * sum;
  }

  C10_ALWAYS_INLINE static float power(float x, float /*2*/) { return x * x; }
};

}  // namespace detlite
