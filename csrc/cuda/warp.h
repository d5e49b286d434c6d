// Warp operations: votes and exchange of values among 32 threads. All lanes of a warp must call
// these functions together.
//
// On AMD GPUs that run 64 threads together, a hardware wavefront is treated as two warps: each uses
// its half of a vote and reads values only from lanes of its half. The halves can be in different
// branches.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace detlite {

constexpr int kWarp = 32;

// Returns one bit per lane: set if the lane passes true.
__device__ inline unsigned vote(bool yes) {
#ifdef USE_ROCM
  return static_cast<unsigned>(uint64_t{__ballot(yes)} >> (__lane_id() & kWarp));
#else
  return __ballot_sync(0xffffffffu, yes);
#endif
}

// Returns the value of another lane.
template <typename T>
__device__ T from_lane(T value, int lane) {
#ifdef USE_ROCM
  return __shfl(value, lane, kWarp);
#else
  return __shfl_sync(0xffffffffu, value, lane);
#endif
}

// Returns the value of the lane whose number differs in one bit.
template <typename T>
__device__ T from_lane_xor(T value, int bit) {
#ifdef USE_ROCM
  return __shfl_xor(value, bit, kWarp);
#else
  return __shfl_xor_sync(0xffffffffu, value, bit);
#endif
}

__device__ inline int sum_of_warp(int value) {
  for (int bit = kWarp / 2; bit > 0; bit /= 2) value += from_lane_xor(value, bit);
  return value;
}

// Returns a mask of the lanes before this one.
__device__ inline unsigned lanes_before(int lane) { return (1u << lane) - 1; }

}  // namespace detlite
