// How kernels start: on the tensor's device, on torch's current stream.
#pragma once

#include <algorithm>

#include <cuda_runtime.h>

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

namespace detlite {

constexpr int kThreads = 256;

inline cudaStream_t current_stream(const torch::stable::Tensor& tensor) {
  void* stream = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(
      aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

// Blocks for a grid-stride loop over `count` items; zero items still need a valid launch.
inline int blocks_for(int64_t count) {
  constexpr int64_t most = 1 << 16;
  return static_cast<int>(std::clamp<int64_t>((count + kThreads - 1) / kThreads, 1, most));
}

// The items of this thread in a grid-stride loop.
#define DETLITE_GRID_STRIDE(i, count)                                             \
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < (count);   \
       i += int64_t{gridDim.x} * blockDim.x)

}  // namespace detlite
