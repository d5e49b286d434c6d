// An emulated CUDA runtime that runs kernels on the CPU, so that csrc/cuda can be tested without a GPU.
// Blocks run one after another in random order. fibers.h runs the threads of a block. Every launch
// reads two environment variables:
//   CUDA_ON_CPU_SEED   the seed of the random orders
//   CUDA_ON_CPU_SKIP   a barrier to disable, as "file:line"
// Like nvcc, the build includes this header before all others.
#pragma once

#include <cmath>
#include <cstddef>
#include <map>
#include <type_traits>

#include "fibers.h"

#define DETLITE_CUDA_ON_CPU
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
// One block runs at a time, so shared memory can be static.
#define __shared__ static

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline dim3 gridDim, blockDim, blockIdx, threadIdx;

#define CUDA_ON_CPU_VECTOR(T, name, alignment)                                               \
  struct alignas(alignment / 2) name##2 { T x, y; };                                         \
  struct alignas(alignment) name##4 { T x, y, z, w; };                                       \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                 \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUDA_ON_CPU_VECTOR(float, float, 16)
CUDA_ON_CPU_VECTOR(int, int, 16)
CUDA_ON_CPU_VECTOR(unsigned, uint, 16)
struct alignas(16) double2 { double x, y; };

// ---- Waiting

#define CUDA_ON_CPU_TEXT(x) #x
#define CUDA_ON_CPU_LINE(x) CUDA_ON_CPU_TEXT(x)
#define CUDA_ON_CPU_HERE __FILE__ ":" CUDA_ON_CPU_LINE(__LINE__)
#define __syncthreads() ((void)cuda_on_cpu::fibers.barrier(CUDA_ON_CPU_HERE, false))
#define __syncthreads_or(vote) (cuda_on_cpu::fibers.barrier(CUDA_ON_CPU_HERE, vote) > 0)
#define __syncthreads_and(vote) (cuda_on_cpu::fibers.barrier(CUDA_ON_CPU_HERE, vote) == blockDim.x)
#define __syncthreads_count(vote) cuda_on_cpu::fibers.barrier(CUDA_ON_CPU_HERE, vote)
#define __syncwarp(...) cuda_on_cpu::fibers.warp_barrier(CUDA_ON_CPU_HERE, ##__VA_ARGS__)
inline void __threadfence() {}
inline void __threadfence_block() {}

inline unsigned __ballot_sync(unsigned mask, bool vote) {
  return cuda_on_cpu::fibers.exchange(mask, vote, cuda_on_cpu::fibers.lane()).ballot;
}
inline bool __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
inline bool __all_sync(unsigned mask, bool vote) { return __ballot_sync(mask, !vote) == 0; }

namespace cuda_on_cpu {

template <typename T>
T value_of_lane(unsigned mask, T value, unsigned source) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_arithmetic_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = fibers.exchange(mask, bits, source).result;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
// Returns the lane, or the calling lane if `lane` is in another part of the warp.
inline unsigned lane_in_part(int lane, int width) {
  const int own = static_cast<int>(fibers.lane());
  return static_cast<unsigned>(lane >= 0 && lane / width == own / width ? lane : own);
}

}  // namespace cuda_on_cpu

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int first = static_cast<int>(cuda_on_cpu::fibers.lane()) / width * width;
  return cuda_on_cpu::value_of_lane(mask, value, static_cast<unsigned>(first + (source & (width - 1))));
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = static_cast<int>(cuda_on_cpu::fibers.lane() + by);
  return cuda_on_cpu::value_of_lane(mask, value, cuda_on_cpu::lane_in_part(lane, width));
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = static_cast<int>(cuda_on_cpu::fibers.lane()) - static_cast<int>(by);
  return cuda_on_cpu::value_of_lane(mask, value, cuda_on_cpu::lane_in_part(lane, width));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int lane = static_cast<int>(cuda_on_cpu::fibers.lane()) ^ bits;
  return cuda_on_cpu::value_of_lane(mask, value, cuda_on_cpu::lane_in_part(lane, width));
}

// ---- HIP's functions on GPUs with 64 threads per wavefront. A wavefront is two warps, which can be in
// different branches, so the votes of the other half are random.

inline unsigned __lane_id() { return threadIdx.x % 64; }
inline unsigned long long __ballot(bool vote) {
  const unsigned long long own = __ballot_sync(0xffffffffu, vote);
  const unsigned long long other = cuda_on_cpu::fibers.random();
  return __lane_id() < 32 ? own | other << 32 : own << 32 | other;
}
template <typename T>
T __shfl(T value, int source, int width) {
  return __shfl_sync(0xffffffffu, value, source, width);
}
template <typename T>
T __shfl_xor(T value, int bits, int width) {
  return __shfl_xor_sync(0xffffffffu, value, bits, width);
}

// ---- Atomics, only for integers: a sum of floats would depend on the order of threads.

#define CUDA_ON_CPU_ATOMIC(name, result)                               \
  template <typename T>                                                \
  T name(T* at, std::common_type_t<T> value) {                       \
    static_assert(std::is_integral_v<T>);                              \
    return std::exchange(*at, static_cast<T>(result));                 \
  }
CUDA_ON_CPU_ATOMIC(atomicAdd, *at + value)
CUDA_ON_CPU_ATOMIC(atomicSub, *at - value)
CUDA_ON_CPU_ATOMIC(atomicOr, *at | value)
CUDA_ON_CPU_ATOMIC(atomicAnd, *at & value)
CUDA_ON_CPU_ATOMIC(atomicXor, *at ^ value)
CUDA_ON_CPU_ATOMIC(atomicMin, std::min<T>(*at, value))
CUDA_ON_CPU_ATOMIC(atomicMax, std::max<T>(*at, value))
CUDA_ON_CPU_ATOMIC(atomicExch, value)

// ---- Arithmetic

inline int __popc(unsigned word) { return __builtin_popcount(word); }
inline int __popcll(unsigned long long word) { return __builtin_popcountll(word); }
inline int __ffs(int word) { return __builtin_ffs(word); }
inline int __ffsll(long long word) { return __builtin_ffsll(word); }
inline int __clz(int word) { return word ? __builtin_clz(static_cast<unsigned>(word)) : 32; }
inline int __clzll(long long word) {
  return word ? __builtin_clzll(static_cast<unsigned long long>(word)) : 64;
}

// The volatile result prevents the compiler from fusing the operation with another one.
#define CUDA_ON_CPU_ROUNDED(T, name, operation) \
  inline T name(T a, T b) {                     \
    const volatile T result = a operation b;    \
    return result;                              \
  }
CUDA_ON_CPU_ROUNDED(float, __fmul_rn, *)
CUDA_ON_CPU_ROUNDED(float, __fadd_rn, +)
CUDA_ON_CPU_ROUNDED(float, __fsub_rn, -)
CUDA_ON_CPU_ROUNDED(float, __fdiv_rn, /)
CUDA_ON_CPU_ROUNDED(double, __dmul_rn, *)
CUDA_ON_CPU_ROUNDED(double, __dadd_rn, +)
CUDA_ON_CPU_ROUNDED(double, __dsub_rn, -)
CUDA_ON_CPU_ROUNDED(double, __ddiv_rn, /)
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

namespace cuda_on_cpu {
template <typename To, typename From>
To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
}  // namespace cuda_on_cpu
inline int __float_as_int(float value) { return cuda_on_cpu::bits_as<int>(value); }
inline float __int_as_float(int value) { return cuda_on_cpu::bits_as<float>(value); }
inline unsigned __float_as_uint(float value) { return cuda_on_cpu::bits_as<unsigned>(value); }
inline float __uint_as_float(unsigned value) { return cuda_on_cpu::bits_as<float>(value); }

template <typename T>
T __ldg(const T* at) {
  return *at;
}
using std::isfinite;
using std::isnan;
using std::max;
using std::min;

// ---- Launching

using cudaStream_t = void*;
using cudaError_t = int;
enum { cudaSuccess = 0 };
enum { cudaMemcpyDeviceToHost = 2, cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

namespace cuda_on_cpu {

inline std::vector<std::max_align_t> dynamic_memory;
inline std::map<const void*, size_t> allowed_memory;  // of kernels that request more than the default

inline void check_launch(const cudaLaunchConfig_t& config, const void* kernel) {
  const dim3 grid = config.gridDim;
  const auto allowed = allowed_memory.find(kernel);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 2147483647u || grid.y > 65535 ||
      grid.z > 65535 || config.blockDim.x == 0 || config.blockDim.x > 1024 ||
      config.dynamicSmemBytes > (allowed == allowed_memory.end() ? 48u << 10 : allowed->second)) {
    throw std::runtime_error("no GPU accepts this launch configuration");
  }
}

inline void run_blocks(const cudaLaunchConfig_t& config, const std::function<void()>& kernel) {
  static unsigned launches = 0, last_seed = 0;  // the order depends on the seed and the number of launches
  const char* variable = std::getenv("CUDA_ON_CPU_SEED");
  const char* skipped = std::getenv("CUDA_ON_CPU_SKIP");
  const unsigned seed = static_cast<unsigned>(variable ? std::atoi(variable) : 0);
  launches = seed == last_seed ? launches + 1 : 0;
  last_seed = seed;
  fibers.random.seed(seed + 1000003u * launches);
  fibers.skipped = skipped ? skipped : "";
  gridDim = config.gridDim;
  blockDim = config.blockDim;
  std::vector<uint64_t> blocks(uint64_t{gridDim.x} * gridDim.y * gridDim.z);
  std::iota(blocks.begin(), blocks.end(), uint64_t{0});
  std::shuffle(blocks.begin(), blocks.end(), fibers.random);
  for (uint64_t block : blocks) {
    blockIdx = dim3(static_cast<unsigned>(block % gridDim.x),
                    static_cast<unsigned>(block / gridDim.x % gridDim.y),
                    static_cast<unsigned>(block / gridDim.x / gridDim.y));
    // Every block gets random memory contents. The size is exact, for the address sanitizer.
    dynamic_memory.clear();
    dynamic_memory.shrink_to_fit();
    if (config.dynamicSmemBytes) {
      constexpr size_t unit = sizeof(std::max_align_t);
      dynamic_memory.resize((config.dynamicSmemBytes + unit - 1) / unit);
      std::memset(dynamic_memory.data(), static_cast<int>(fibers.random() % 256),
                  config.dynamicSmemBytes);
    }
    fibers.run(blockDim.x, threadIdx.x, kernel);
  }
}

}  // namespace cuda_on_cpu

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  cuda_on_cpu::check_launch(*config, reinterpret_cast<const void*>(kernel));
  cuda_on_cpu::run_blocks(*config, [&] { kernel(arguments...); });
  return 0;
}
template <typename... Parameters, typename... Arguments>
void hipLaunchKernelGGL(void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                        size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  const cudaLaunchConfig_t config{blocks, threads, shared_bytes, stream};
  cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "an error"; }
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, int, int bytes) {
  cuda_on_cpu::allowed_memory[reinterpret_cast<const void*>(kernel)] = static_cast<size_t>(bytes);
  return 0;
}
inline unsigned char* dynamic_shared_memory() {
  return reinterpret_cast<unsigned char*>(cuda_on_cpu::dynamic_memory.data());
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return 0;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return 0;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return 0; }

[[noreturn]] inline void __trap() { throw std::runtime_error("a kernel trapped"); }

// Returns the barriers that were reached since the last call, one per line.
extern "C" __attribute__((used)) inline const char* cuda_on_cpu_reached() {
  static std::string lines;
  lines.clear();
  for (const char* place : cuda_on_cpu::fibers.reached) lines += std::string(place) + "\n";
  cuda_on_cpu::fibers.reached.clear();
  return lines.c_str();
}

// ---- The functions of torch for CUDA sources

#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/macros/Macros.h>

#undef CUDA_KERNEL_ASSERT
#undef CUDA_KERNEL_ASSERT_MSG
#define CUDA_KERNEL_ASSERT_MSG(condition, message)   \
  if (!(condition)) {                                \
    throw std::runtime_error(message);               \
  }
#define CUDA_KERNEL_ASSERT(condition) CUDA_KERNEL_ASSERT_MSG(condition, #condition)

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
