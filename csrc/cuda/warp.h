// Warps: 32 threads that run together and can see each other's votes and values. All lanes of a warp
// call these functions together.
//
// Of AMD's GPUs some run 64 threads together. These are two warps here: each takes its own half of
// what the hardware votes, and values come from lanes of the own half. The halves may run apart, as
// in branches that only one of them takes.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace detlite {

constexpr int kWarp = 32;

// A bit for each lane, of those that vote yes.
__device__ inline unsigned vote(bool yes) {
#ifdef USE_ROCM
  return static_cast<unsigned>(uint64_t{__ballot(yes)} >> (__lane_id() & kWarp));
#else
  return __ballot_sync(0xffffffffu, yes);
#endif
}

// The value of a lane.
template <typename T>
__device__ T from_lane(T value, int lane) {
#ifdef USE_ROCM
  return __shfl(value, lane, kWarp);
#else
  return __shfl_sync(0xffffffffu, value, lane);
#endif
}

// The value of the lane whose number differs in one bit.
template <typename T>
__device__ T from_lane_across(T value, int bit) {
#ifdef USE_ROCM
  return __shfl_xor(value, bit, kWarp);
#else
  return __shfl_xor_sync(0xffffffffu, value, bit);
#endif
}

__device__ inline int sum_of_warp(int value) {
  for (int bit = kWarp / 2; bit > 0; bit /= 2) value += from_lane_across(value, bit);
  return value;
}

// The bits of the lanes before.
__device__ inline unsigned lanes_before(int lane) { return (1u << lane) - 1; }

}  // namespace detlite
