// What all operators share: argument checks, tensor helpers, element types, and arithmetic with
// equal bits on every device.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/macros/Macros.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

namespace detlite {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// ---- Checks

// The first `dims` sizes of a tensor, printed as [2, 3].
struct Shape {
  const Tensor& tensor;
  int64_t dims = tensor.dim();
};

// Converts a part of a message. A std::ostringstream in a statically linked libstdc++ would use the
// tables of the libstdc++ that torch loaded for numbers, and crash or lose them.
inline std::string text(const char* part) { return part; }
inline std::string text(const std::string& part) { return part; }
inline std::string text(char part) { return std::string(1, part); }
template <typename Number, typename = std::enable_if_t<std::is_arithmetic_v<Number>>>
std::string text(Number part) {
  if constexpr (std::is_integral_v<Number>) return std::to_string(part);
  char digits[32];
  std::snprintf(digits, sizeof(digits), "%g", static_cast<double>(part));
  return digits;
}
inline std::string text(const Shape& shape) {
  std::string sizes;
  for (int64_t d = 0; d < shape.dims; ++d) {
    sizes += (d ? ", " : "") + std::to_string(shape.tensor.size(d));
  }
  return "[" + sizes + "]";
}

// Throws an error whose message is the concatenation of `parts`, unless `ok`. Python sees a
// RuntimeError, as from any other torch operator.
template <typename... Parts>
void check(bool ok, const Parts&... parts) {
  if (!ok) throw std::runtime_error((text(parts) + ...));
}

// The name that Python uses; types without one here keep torch's C++ name.
inline const char* dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Double: return "float64";
    case ScalarType::Float: return "float32";
    case ScalarType::Half: return "float16";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Long: return "int64";
    case ScalarType::Int: return "int32";
    case ScalarType::Byte: return "uint8";
    case ScalarType::Bool: return "bool";
    default: return torch::headeronly::toString(type);
  }
}

inline bool is_floating(ScalarType type) {
  return type == ScalarType::Double || type == ScalarType::Float || type == ScalarType::Half ||
         type == ScalarType::BFloat16;
}

inline bool is_integral(ScalarType type) {
  return type == ScalarType::Long || type == ScalarType::Int || type == ScalarType::Short ||
         type == ScalarType::Char || type == ScalarType::Byte;
}

inline void check_dtype(const char* op, const char* name, const Tensor& tensor, ScalarType type) {
  check(tensor.scalar_type() == type, op, ": ", name, " must be ", dtype_name(type), ", got ",
        dtype_name(tensor.scalar_type()));
}

inline void check_floating(const char* op, const char* name, const Tensor& tensor) {
  check(is_floating(tensor.scalar_type()), op, ": ", name, " must be floating point, got ",
        dtype_name(tensor.scalar_type()));
}

// `reason` follows the expected shape: "boxes must have shape [3, 4], one for each mask, got [3]".
inline void check_shape(const char* op, const char* name, const Tensor& tensor,
                        std::initializer_list<int64_t> sizes, const char* reason = "") {
  int64_t d = 0;
  bool same = tensor.dim() == static_cast<int64_t>(sizes.size());
  for (const int64_t size : sizes) same = same && tensor.size(d++) == size;
  if (same) return;
  std::string expected;
  for (const int64_t size : sizes) expected += (expected.empty() ? "" : ", ") + text(size);
  check(false, op, ": ", name, " must have shape [", expected, "]", reason, ", got ",
        Shape{tensor});
}

inline void check_same_shape(const char* op, const char* name, const Tensor& tensor,
                             const char* other_name, const Tensor& other) {
  bool same = tensor.dim() == other.dim();
  for (int64_t d = 0; same && d < other.dim(); ++d) same = tensor.size(d) == other.size(d);
  check(same, op, ": ", name, " must have the shape of ", other_name, ", ", Shape{other}, ", got ",
        Shape{tensor});
}

struct NamedTensor {
  const char* name;
  const Tensor& tensor;
};

inline void check_same_device(const char* op, const NamedTensor& first,
                              std::initializer_list<NamedTensor> others) {
  for (const NamedTensor& other : others) {
    check(first.tensor.device() == other.tensor.device(), op, ": ", other.name,
          " must be on the device of ", first.name);
  }
}

// Kernels count in int32. The bound leaves room for a few additions.
inline void check_count(const char* op, const char* name, int64_t value, int64_t min) {
  constexpr int64_t max = std::numeric_limits<int32_t>::max() / 2;
  check(value >= min && value <= max, op, ": ", name, " must be from ", min, " to ", max, ", got ",
        value);
}

// ---- Tensors

template <typename T>
const T* data(const Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <typename T>
T* mutable_data(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

inline Tensor contiguous_as(const Tensor& tensor, ScalarType type) {
  return torch::stable::contiguous(torch::stable::to(tensor, type));
}

// An uninitialized contiguous tensor on the device of `like`.
inline Tensor empty(const Tensor& like, ScalarType type, std::initializer_list<int64_t> sizes) {
  return torch::stable::empty({sizes.begin(), sizes.size()}, type, std::nullopt, like.device());
}

// ---- Element types: features have one of four types, arithmetic is done in float or double.

// The type of coordinates and sums for features of type T.
template <typename T>
using accumulate_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

inline ScalarType accumulate_type(ScalarType type) {
  return type == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

// Calls function(x), where x has the C++ type of `type`. Only the type of x matters.
template <typename Function>
void dispatch_floating(const char* op, const char* name, ScalarType type, Function&& function) {
  switch (type) {
    case ScalarType::Double: return std::forward<Function>(function)(double{});
    case ScalarType::Float: return std::forward<Function>(function)(float{});
    case ScalarType::Half: return std::forward<Function>(function)(c10::Half{});
    case ScalarType::BFloat16: return std::forward<Function>(function)(c10::BFloat16{});
    default:
      check(false, op, ": ", name, " must be float64, float32, float16 or bfloat16, got ",
            dtype_name(type));
  }
}

template <typename Function>
void dispatch_accumulate(ScalarType type, Function&& function) {
  return type == ScalarType::Double ? std::forward<Function>(function)(double{})
                                    : std::forward<Function>(function)(float{});
}

// ---- Arithmetic

// a * b, rounded before anything is added to it. A fused multiply-add would round once instead, and
// the last bit can decide which of two boxes is kept or how many samples a bin has. On the CPU and
// on AMD GPUs, setup.py turns fusing off for the compiler.
template <typename T>
C10_HOST_DEVICE T rounded_product(T a, T b) {
#if defined(__CUDA_ARCH__) || defined(DETLITE_CUDA_ON_CPU)
  if constexpr (sizeof(T) == sizeof(double)) return __dmul_rn(a, b);
  else return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

}  // namespace detlite
