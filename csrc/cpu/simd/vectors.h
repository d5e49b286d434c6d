// Vector types and operations of the inner loops, for one instruction set at a time.
//
// default.cpp, avx2.cpp and avx512.cpp define DETLITE_ISA, a namespace that keeps their symbols
// apart, and DETLITE_VECTOR_BYTES before they include this file. Arithmetic uses the compiler's
// vector extensions. This file adds what they lack: conversions, transposes, fused multiply-add.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "common/tensors.h"

namespace detlite::DETLITE_ISA {

template <typename T>
struct VectorOf {
  typedef T type __attribute__((vector_size(DETLITE_VECTOR_BYTES)));
};
template <typename T>
using Vec = typename VectorOf<T>::type;

template <typename T>
constexpr int kLanes = DETLITE_VECTOR_BYTES / sizeof(T);

// The element type of a comparison of Vec<T>, whose lanes are all ones or all zeros.
template <typename T>
using LaneMask = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;

template <typename T>
inline Vec<T> broadcast(T value) {
  return value - Vec<T>{};
}

template <typename To, typename From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// ---- Loads widen half types to float; stores round to nearest, ties to even.

template <typename T>
inline Vec<T> load_same(const T* from) {
  Vec<T> to;
  std::memcpy(&to, from, sizeof(to));
  return to;
}
inline Vec<float> load(const float* from) { return load_same(from); }
inline Vec<double> load(const double* from) { return load_same(from); }
inline Vec<int32_t> load(const int32_t* from) { return load_same(from); }

template <typename V, typename T>
inline void store_same(V from, T* to) {
  std::memcpy(to, &from, sizeof(from));
}
inline void store(Vec<float> from, float* to) { store_same(from, to); }
inline void store(Vec<double> from, double* to) { store_same(from, to); }
inline void store(Vec<int32_t> from, int32_t* to) { store_same(from, to); }

using Words = uint16_t __attribute__((vector_size(DETLITE_VECTOR_BYTES / 2)));

inline Vec<float> load(const c10::BFloat16* from) {
  Words words;
  std::memcpy(&words, from, sizeof(words));
  return bit_cast<Vec<float>>(__builtin_convertvector(words, Vec<uint32_t>) << 16);
}

inline void store(Vec<float> from, c10::BFloat16* to) {
  const auto bits = bit_cast<Vec<uint32_t>>(from);
  const Vec<uint32_t> rounded = (bits + (0x7fff + ((bits >> 16) & 1))) >> 16;
  const auto nan = bit_cast<Vec<uint32_t>>(from != from);
  const Words words = __builtin_convertvector((nan & 0x7fc0) | (~nan & rounded), Words);
  std::memcpy(static_cast<void*>(to), &words, sizeof(words));
}

#if DETLITE_VECTOR_BYTES == 64
inline Vec<float> load(const c10::Half* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline void store(Vec<float> from, c10::Half* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(from, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#elif DETLITE_VECTOR_BYTES == 32
inline Vec<float> load(const c10::Half* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline void store(Vec<float> from, c10::Half* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(from, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#elif defined(__aarch64__)
inline Vec<float> load(const c10::Half* from) {
  float16x4_t halves;
  std::memcpy(&halves, from, sizeof(halves));
  return bit_cast<Vec<float>>(vcvt_f32_f16(halves));
}
inline void store(Vec<float> from, c10::Half* to) {
  const float16x4_t halves = vcvt_f16_f32(bit_cast<float32x4_t>(from));
  std::memcpy(static_cast<void*>(to), &halves, sizeof(halves));
}
#else
inline Vec<float> load(const c10::Half* from) {
  Vec<float> to;
  for (int i = 0; i < kLanes<float>; ++i) to[i] = from[i];
  return to;
}
inline void store(Vec<float> from, c10::Half* to) {
  for (int i = 0; i < kLanes<float>; ++i) to[i] = c10::Half(from[i]);
}
#endif

template <typename From, typename To>
void convert(const From* source, int64_t count, To* target) {
  constexpr int lanes = kLanes<accumulate_t<From>>;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(load(source + i), target + i);
  for (; i < count; ++i) target[i] = static_cast<To>(source[i]);
}

// ---- a * b + c, rounded once if the processor has fused multiply-add.

#if DETLITE_VECTOR_BYTES == 64
inline Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) {
  return _mm512_fmadd_pd(a, b, c);
}
#elif DETLITE_VECTOR_BYTES == 32
inline Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) {
  return _mm256_fmadd_pd(a, b, c);
}
#else
template <typename V>
inline V fma(V a, V b, V c) {
  return a * b + c;
}
#endif

// ---- One bit per lane of a comparison. The first lane is the lowest bit.

inline uint32_t lane_bits(Vec<int32_t> mask) {
#if DETLITE_VECTOR_BYTES == 64
  return _mm512_movepi32_mask(bit_cast<__m512i>(mask));
#elif DETLITE_VECTOR_BYTES == 32
  return static_cast<uint32_t>(_mm256_movemask_ps(bit_cast<__m256>(mask)));
#elif defined(__SSE2__)
  return static_cast<uint32_t>(_mm_movemask_ps(bit_cast<__m128>(mask)));
#elif defined(__aarch64__)
  const uint32x4_t bits = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(bit_cast<uint32x4_t>(mask), bits));
#else
  uint32_t bits = 0;
  for (int i = 0; i < kLanes<int32_t>; ++i) bits |= (mask[i] & 1u) << i;
  return bits;
#endif
}

// ---- In-place transpose of a square of kLanes<float> registers.

#if DETLITE_VECTOR_BYTES == 64
inline void transpose_square(Vec<float> (&rows)[16]) {
  __m512 pairs[16], fours[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      const __m512d low = _mm512_castps_pd(pairs[i + j]);
      const __m512d high = _mm512_castps_pd(pairs[i + j + 2]);
      fours[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
      fours[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
    }
  }
  // Each register of `fours` now holds a quarter of four columns, one per 128-bit lane.
  for (int j = 0; j < 4; ++j) {
    const __m512 even_low = _mm512_shuffle_f32x4(fours[j], fours[4 + j], 0x88);
    const __m512 odd_low = _mm512_shuffle_f32x4(fours[j], fours[4 + j], 0xdd);
    const __m512 even_high = _mm512_shuffle_f32x4(fours[8 + j], fours[12 + j], 0x88);
    const __m512 odd_high = _mm512_shuffle_f32x4(fours[8 + j], fours[12 + j], 0xdd);
    rows[j] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
    rows[j + 8] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
    rows[j + 4] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
    rows[j + 12] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
  }
}
#elif DETLITE_VECTOR_BYTES == 32
inline void transpose_square(Vec<float> (&rows)[8]) {
  __m256 pairs[8], fours[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
      fours[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xee);
    }
  }
  for (int j = 0; j < 4; ++j) {
    rows[j] = _mm256_permute2f128_ps(fours[j], fours[4 + j], 0x20);
    rows[j + 4] = _mm256_permute2f128_ps(fours[j], fours[4 + j], 0x31);
  }
}
#elif defined(__aarch64__)
inline void transpose_square(Vec<float> (&rows)[4]) {
  const float32x4_t even_low = vzip1q_f32(rows[0], rows[2]), odd_low = vzip1q_f32(rows[1], rows[3]);
  const float32x4_t even_high = vzip2q_f32(rows[0], rows[2]);
  const float32x4_t odd_high = vzip2q_f32(rows[1], rows[3]);
  rows[0] = vzip1q_f32(even_low, odd_low);
  rows[1] = vzip2q_f32(even_low, odd_low);
  rows[2] = vzip1q_f32(even_high, odd_high);
  rows[3] = vzip2q_f32(even_high, odd_high);
}
#else
inline void transpose_square(Vec<float> (&rows)[kLanes<float>]) {
  for (int i = 0; i < kLanes<float>; ++i) {
    for (int j = 0; j < i; ++j) {
      const float swapped = rows[i][j];
      rows[i][j] = rows[j][i];
      rows[j][i] = swapped;
    }
  }
}
#endif

}  // namespace detlite::DETLITE_ISA
