// Kernel launches on torch's current stream.
#pragma once

#include <algorithm>
#include <utility>

#include <cuda_runtime.h>

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>
#include <torch/csrc/stable/ops.h>

#include "common/tensors.h"

namespace detlite {

constexpr int kThreads = 256;

#ifndef DETLITE_CUDA_ON_CPU
using torch::stable::accelerator::DeviceGuard;
#endif

inline cudaStream_t current_stream(const torch::stable::Tensor& tensor) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

// torch's macro uses CUDA types even on ROCm.
inline void check_status(cudaError_t status) {
#ifdef USE_ROCM
  check(status == cudaSuccess, "HIP: ", cudaGetErrorString(status));
#else
  STD_CUDA_CHECK(status);
#endif
}

// Launches a kernel on torch's stream of the tensor's device. A function instead of <<<>>> keeps
// the sources plain C++, which the tests compile for the CPU.
template <typename... Parameters, typename... Arguments>
void launch(const torch::stable::Tensor& tensor, void (*kernel)(Parameters...), dim3 blocks,
            int threads, size_t shared_bytes, Arguments&&... arguments) {
#ifdef USE_ROCM
  hipLaunchKernelGGL(kernel, blocks, dim3(static_cast<unsigned>(threads)), shared_bytes,
                     current_stream(tensor), std::forward<Arguments>(arguments)...);
  check_status(cudaGetLastError());
#else
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = current_stream(tensor);
  check_status(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
#endif
}

// Declares shared memory whose size is an argument of the launch.
#ifndef DETLITE_CUDA_ON_CPU
#define DETLITE_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#else
#define DETLITE_DYNAMIC_SHARED(name) unsigned char* const name = dynamic_shared_memory()
#endif

// Returns the number of blocks for a grid-stride loop. Zero items still need a valid launch.
inline unsigned blocks_for(int64_t count) {
  constexpr int64_t max_blocks = 1 << 16;
  return static_cast<unsigned>(
      std::clamp<int64_t>((count + kThreads - 1) / kThreads, 1, max_blocks));
}

// Loops over the items of this thread.
#define DETLITE_GRID_STRIDE(i, count) \
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < (count); \
       i += int64_t{gridDim.x} * blockDim.x)

}  // namespace detlite
