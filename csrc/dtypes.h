// The precision contract in C++: features of four types, arithmetic in float or double.
#pragma once

#include <type_traits>
#include <utility>

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include "checks.h"

namespace detlite {

// The type that coordinates have and sums are taken in, for features of type T.
template <typename T>
using accumulate_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

inline ScalarType accumulate_type(ScalarType type) {
  return type == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

// Calls body with a value of the C++ type that `type` names; only the value's type matters.
template <typename Body>
void dispatch_floating(const char* op, const char* name, ScalarType type, Body&& body) {
  switch (type) {
    case ScalarType::Double: return std::forward<Body>(body)(double{});
    case ScalarType::Float: return std::forward<Body>(body)(float{});
    case ScalarType::Half: return std::forward<Body>(body)(c10::Half{});
    case ScalarType::BFloat16: return std::forward<Body>(body)(c10::BFloat16{});
    default:
      check(false, op, ": ", name, " must be float64, float32, float16 or bfloat16, got ",
            dtype_name(type));
  }
}

template <typename Body>
void dispatch_accumulate(ScalarType type, Body&& body) {
  return type == ScalarType::Double ? std::forward<Body>(body)(double{})
                                    : std::forward<Body>(body)(float{});
}

}  // namespace detlite
