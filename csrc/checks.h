// What every operator checks before it touches memory, and how it refuses.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <stdexcept>

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

namespace detlite {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Throws, with the parts put together as its message, unless `ok`. Python sees a RuntimeError, as
// from any other torch operator.
template <typename... Parts>
void check(bool ok, const Parts&... parts) {
  if (ok) return;
  std::ostringstream message;
  (message << ... << parts);
  throw std::runtime_error(message.str());
}

// A tensor's shape, or its first dimensions, printed as [2, 3].
struct Shape {
  const Tensor& tensor;
  int64_t dims = tensor.dim();
  friend std::ostream& operator<<(std::ostream& out, const Shape& shape) {
    out << '[';
    for (int64_t d = 0; d < shape.dims; ++d) {
      out << (d ? ", " : "") << shape.tensor.size(d);
    }
    return out << ']';
  }
};

// As Python spells them; other types keep torch's C++ name.
inline const char* dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Double: return "float64";
    case ScalarType::Float: return "float32";
    case ScalarType::Half: return "float16";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Long: return "int64";
    case ScalarType::Int: return "int32";
    case ScalarType::Bool: return "bool";
    default: return torch::headeronly::toString(type);
  }
}

inline bool has_shape_of(const Tensor& tensor, const Tensor& other) {
  bool same = tensor.dim() == other.dim();
  for (int64_t d = 0; same && d < other.dim(); ++d) same = tensor.size(d) == other.size(d);
  return same;
}

inline bool is_floating(ScalarType type) {
  return type == ScalarType::Double || type == ScalarType::Float || type == ScalarType::Half ||
         type == ScalarType::BFloat16;
}

inline bool is_integral(ScalarType type) {
  return type == ScalarType::Long || type == ScalarType::Int || type == ScalarType::Short ||
         type == ScalarType::Char || type == ScalarType::Byte;
}

inline void check_same_device(const char* op, const Tensor& first, const char* first_name,
                              const Tensor& second, const char* second_name) {
  check(first.device() == second.device(), op, ": ", second_name, " must be on the device of ",
        first_name);
}

// Kernels count in int32; the bound leaves room for a few additions.
inline void check_count(const char* op, const char* name, int64_t value, int64_t at_least) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max() / 2;
  check(value >= at_least && value <= most, op, ": ", name, " must be from ", at_least, " to ",
        most, ", got ", value);
}

}  // namespace detlite
