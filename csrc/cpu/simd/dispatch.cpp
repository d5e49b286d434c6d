// Selects the inner loops at run time.
#include <cstdlib>
#include <string>

#include "inner_loops.h"

namespace detlite {

namespace isa_default {
extern const InnerLoops table;
}
#if defined(__x86_64__)
namespace isa_avx2 {
extern const InnerLoops table;
}
namespace isa_avx512 {
extern const InnerLoops table;
}
#endif

namespace {

struct Capability {
  const char* name;
  bool supported;
  const InnerLoops* table;
};

}  // namespace

const InnerLoops& inner_loops() {
#if defined(__x86_64__)
  static const Capability capabilities[] = {
      {"avx512",
       __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"),
       &isa_avx512::table},
      // Every processor with AVX2 also has the conversions of half precision (F16C).
      {"avx2", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), &isa_avx2::table},
      {"default", true, &isa_default::table},
  };
#else
  static const Capability capabilities[] = {{"default", true, &isa_default::table}};
#endif
  const char* variable = std::getenv("DETLITE_CPU_CAPABILITY");
  const std::string requested = variable ? variable : "";
  std::string names;
  for (const Capability& capability : capabilities) {
    if (!capability.supported) continue;
    if (requested.empty() || requested == capability.name) return *capability.table;
    names += std::string(names.empty() ? "" : ", ") + capability.name;
  }
  check(false, "DETLITE_CPU_CAPABILITY is '", requested, "', but this processor and build support ",
        names);
  return isa_default::table;
}

}  // namespace detlite
