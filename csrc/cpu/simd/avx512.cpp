// The inner loops for x86 processors with AVX512: 512-bit vectors.
//
// These headers are included before the target is selected: the linker keeps one copy of their
// inline functions for all files, so they must run on every processor.
#if defined(__x86_64__)
#include "inner_loops.h"

#include <cstring>
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), \
    apply_to = function)
#else
// GCC warns of uninitialized registers in its own headers.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prefer-vector-width=512")
#endif

#define DETLITE_ISA isa_avx512
#define DETLITE_VECTOR_BYTES 64
#include "loop_table.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
