// A stand-in for CUDA's runtime that runs kernels on the CPU, so that tests reach the code of
// csrc/cuda without a GPU. Blocks run one after another; the threads of a block are fibers that take
// turns at barriers. It checks results, not races: between two barriers threads run in order.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
// One block runs at a time, so what a block shares may live in one place.
#define __shared__ static

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct alignas(16) float4 {
  float x, y, z, w;
};

using cudaStream_t = void*;
using cudaError_t = int;
constexpr int cudaMemcpyDeviceToHost = 2;

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

inline dim3 gridDim, blockDim, blockIdx, threadIdx;

namespace cuda_on_cpu {

inline std::vector<std::max_align_t> launched_memory;

// The threads of a block. A fiber is made once and serves block after block; switching by setjmp and
// longjmp spares the system calls of swapcontext.
struct Fibers {
  static constexpr size_t stack_bytes = 1 << 16;
  struct Fiber {
    std::unique_ptr<char[]> stack;
    jmp_buf state;
    bool started = false, done = true;
    unsigned vote = 0;
  };
  std::vector<std::unique_ptr<Fiber>> all;
  unsigned current = 0;
  jmp_buf scheduler;
  const std::function<void()>* body = nullptr;
  std::exception_ptr failure;

  static void enter();
  void run(unsigned count, const std::function<void()>& kernel);
  void resume(Fiber& fiber);
  // Gives way to the other threads until all have come here.
  void wait() {
    if (!_setjmp(all[current]->state)) _longjmp(scheduler, 1);
  }
};
inline Fibers fibers;

inline void Fibers::enter() {
  for (;;) {
    try {
      (*fibers.body)();
    } catch (...) {
      fibers.failure = std::current_exception();
    }
    fibers.all[fibers.current]->done = true;
    fibers.wait();
  }
}

inline void Fibers::resume(Fiber& fiber) {
  if (_setjmp(scheduler)) return;
  if (fiber.started) _longjmp(fiber.state, 1);
  fiber.started = true;
  fiber.stack.reset(new char[stack_bytes]);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.get();
  context.uc_stack.ss_size = stack_bytes;
  context.uc_link = nullptr;
  makecontext(&context, enter, 0);
  setcontext(&context);
}

inline void Fibers::run(unsigned count, const std::function<void()>& kernel) {
  body = &kernel;
  while (all.size() < count) all.push_back(std::make_unique<Fiber>());
  for (unsigned i = 0; i < count; ++i) {
    all[i]->done = false;
    all[i]->vote = 0;
  }
  for (unsigned left = count; left > 0;) {
    for (current = 0; current < count; ++current) {
      if (all[current]->done) continue;
      threadIdx.x = current;
      resume(*all[current]);
      left -= all[current]->done;
    }
    if (failure) {
      all.clear();  // with whatever is left in the middle of the kernel
      std::rethrow_exception(std::exchange(failure, nullptr));
    }
  }
}

}  // namespace cuda_on_cpu

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  using namespace cuda_on_cpu;
  gridDim = config->gridDim;
  blockDim = config->blockDim;
  launched_memory.resize(config->dynamicSmemBytes / sizeof(std::max_align_t) + 1);
  const std::function<void()> body = [&] { kernel(arguments...); };
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z) {
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        fibers.run(blockDim.x, body);
      }
    }
  }
  return 0;
}

inline unsigned char* launched_shared_memory() {
  return reinterpret_cast<unsigned char*>(cuda_on_cpu::launched_memory.data());
}

inline void __syncthreads() { cuda_on_cpu::fibers.wait(); }

// The threads of a warp are 32 in a row, and all of them vote.
inline unsigned __ballot_sync(unsigned, bool vote) {
  using cuda_on_cpu::fibers;
  fibers.all[fibers.current]->vote = vote;
  fibers.wait();
  const unsigned first = fibers.current / 32 * 32;
  unsigned word = 0;
  for (unsigned lane = 0; lane < 32 && first + lane < blockDim.x; ++lane) {
    word |= fibers.all[first + lane]->vote << lane;
  }
  fibers.wait();
  return word;
}

inline unsigned atomicXor(unsigned* at, unsigned bits) { return std::exchange(*at, *at ^ bits); }
inline int __popcll(unsigned long long word) { return __builtin_popcountll(word); }
inline int __float_as_int(float value) {
  int bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline int atomicMax(int* at, int value) { return std::exchange(*at, std::max(*at, value)); }
inline int __ffs(int word) { return __builtin_ffs(word); }
inline int __ffsll(long long word) { return __builtin_ffsll(word); }
[[noreturn]] inline void __trap() { throw std::runtime_error("a kernel trapped"); }

inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return 0;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return 0; }

using std::isnan;
using std::min;

// What torch offers CUDA sources.
#include <torch/csrc/stable/c/shim.h>
inline AOTITorchError torch_c10_cuda_check_msg(int32_t, const char*, const char*, uint32_t, bool,
                                               char**) {
  return 0;
}
inline void torch_c10_cuda_free_error_msg(char*) {}
inline AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void** stream) {
  *stream = nullptr;
  return 0;
}

namespace detlite {
struct DeviceGuard {
  explicit DeviceGuard(int32_t) {}
};
}  // namespace detlite
