// Mathematical functions that compilers vectorise, being without branches and calls.
//
// Loops compiled for wider processors inline these, so this must be included before they choose one:
// a function may be inlined only where at least its own instructions are allowed.
#pragma once

#include <cstdint>
#include <cstring>

#include <torch/headeronly/macros/Macros.h>

namespace detlite {

// What FocalTerms asks for, to a few units in the last place; powers are squares.
struct VectorisableMath {
  C10_ALWAYS_INLINE static float exp(float x) {
    const float least = -87.0f;  // whose result is still a normal number
    x = x < least ? least : x;
    // x = n log 2 + r with |r| <= log(2) / 2. Adding and taking away 3 * 2^22 rounds to a whole
    // number, and log 2 is in two parts of which n times the first is exact.
    const float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    // The Taylor series, to 6e-9 of the result.
    float sum = 1.0f / 5040;
    sum = sum * r + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 1.0f / 2;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    // NaN must not reach the cast; it is in the sum already.
    const int exponent = static_cast<int>(n == n ? n : 0.0f);
    const int32_t bits = (exponent + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    return sum * scale;
  }

  // log(1 + x) = 2 artanh(s), s = x / (2 + x) <= 1/3, by its series, to 2e-9 of the result.
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
