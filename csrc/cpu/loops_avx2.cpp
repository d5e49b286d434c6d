// The inner loops for x86 processors with AVX2: 256-bit vectors, fused multiply-add and half conversions.
//
// The headers come first: what they define is compiled for every processor, as it must be, since
// the linker keeps one copy of it for all files.
#if defined(__x86_64__)
#include "loops.h"

#include <cstring>
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#define DETLITE_ISA isa_avx2
#define DETLITE_VECTOR_BYTES 32
#include "loops_impl.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
