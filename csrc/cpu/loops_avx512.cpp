// The inner loops for x86 processors with AVX512: 512-bit vectors.
//
// The headers come first: what they define is compiled for every processor, as it must be, since
// the linker keeps one copy of it for all files.
#if defined(__x86_64__)
#include "loops.h"

#include <cstring>
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), apply_to = function)
#else
// GCC's own headers begin some registers as themselves, and it warns of that.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prefer-vector-width=512")
#endif

#define DETLITE_ISA isa_avx512
#define DETLITE_VECTOR_BYTES 64
#include "loops_impl.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
