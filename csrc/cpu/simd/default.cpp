// The inner loops for every processor: 128-bit vectors, which the compiler splits if necessary.
#define DETLITE_ISA isa_default
#define DETLITE_VECTOR_BYTES 16
#include "loop_table.h"
