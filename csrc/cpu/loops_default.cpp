// The inner loops for every processor: 128-bit vectors, which the compiler breaks up where it must.
#define DETLITE_ISA isa_default
#define DETLITE_VECTOR_BYTES 16
#include "loops_impl.h"
