// Element types: features have one of four types, arithmetic is done in float or double.
#pragma once

#include <type_traits>
#include <utility>

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include "common/checks.h"

namespace detlite {

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

}  // namespace detlite
