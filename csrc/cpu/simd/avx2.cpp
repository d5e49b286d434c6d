// The inner loops for x86 processors with AVX2: 256-bit vectors, fused multiply-add, conversions of
// half precision.
//
// These headers are included before the target is selected: the linker keeps one copy of their
// inline functions for all files, so they must run on every processor.
#if defined(__x86_64__)
#include "inner_loops.h"

#include <cstring>
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#define DETLITE_ISA isa_avx2
#define DETLITE_VECTOR_BYTES 32
#include "loop_table.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
