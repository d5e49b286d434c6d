// The threads of a block as fibers in random order. A thread runs until it must wait for others, then
// another one is selected at random. A race caused by a missing barrier therefore changes the result.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// The address sanitizer must know the current stack.
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#else
inline void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
inline void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
#endif

namespace cuda_on_cpu {

constexpr unsigned kWarp = 32;

struct Fiber {
  enum State { kReady, kAtBarrier, kInWarp, kDone };

  std::unique_ptr<char[]> stack;
  jmp_buf context;
  void* sanitizer = nullptr;
  bool started = false;
  State state = kDone;
  const char* where = "";  // the barrier at which it waits
  unsigned mask = 0;       // the lanes for which it waits
  unsigned source = 0;     // the lane whose value it reads
  uint64_t value = 0;      // the value it passes
  uint64_t result = 0;     // the value of the source lane, or the number of true votes of the block
  unsigned ballot = 0;     // the lanes that passed a nonzero value
};

class Fibers {
 public:
  std::set<const char*> reached;  // the barriers, as "file:line"
  std::string skipped;            // a barrier that is disabled
  std::mt19937 random;

  // Runs a kernel as every thread of one block. `thread` is the variable that holds the thread index.
  void run(unsigned count, unsigned& thread, const std::function<void()>& kernel) {
    kernel_ = &kernel;
    count_ = count;
    while (all_.size() < count) all_.push_back(std::make_unique<Fiber>());
    make_all_ready();
    for (unsigned left = count; left > 0;) {
      if (ready_.empty()) release_block();
      current_ = thread = ready_.back();
      ready_.pop_back();
      resume(*all_[current_]);
      if (failure_) fail();
      if (own().state == Fiber::kDone) --left;
      if (own().state == Fiber::kInWarp) release_warp();
    }
  }

  // Waits for the whole block. Returns the number of threads that voted true.
  unsigned barrier(const char* where, bool vote) {
    where = without_folder(where);
    reached.insert(where);
    if (where == skipped) return vote;
    own().where = where;
    own().value = vote;
    wait(Fiber::kAtBarrier);
    return static_cast<unsigned>(own().result);
  }

  void warp_barrier(const char* where, unsigned mask = ~0u) {
    where = without_folder(where);
    reached.insert(where);
    if (where != skipped) exchange(mask, 0, lane());
  }

  // Passes a value to the lanes of the mask and waits for these lanes only.
  const Fiber& exchange(unsigned mask, uint64_t value, unsigned source) {
    if (!(mask >> lane() & 1)) throw std::logic_error("a thread is not in its own mask");
    own().mask = mask;
    own().value = value;
    own().source = source;
    wait(Fiber::kInWarp);
    return own();
  }

  unsigned lane() const { return current_ % kWarp; }

 private:
#ifdef __SANITIZE_ADDRESS__
  static constexpr size_t stack_bytes = 1 << 18;
#else
  static constexpr size_t stack_bytes = 1 << 16;
#endif

  std::vector<std::unique_ptr<Fiber>> all_;  // reused for every block
  std::vector<unsigned> ready_;              // the last one runs next
  unsigned current_ = 0, count_ = 0;
  jmp_buf scheduler_;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
  const std::function<void()>* kernel_ = nullptr;
  std::exception_ptr failure_;

  static const char* without_folder(const char* path) {
    const char* folder = std::strrchr(path, '/');
    return folder ? folder + 1 : path;
  }

  Fiber& own() { return *all_[current_]; }

  void fail() {
    all_.clear();  // some fibers have not finished the kernel
    ready_.clear();
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
  void fail(const std::string& message) {
    failure_ = std::make_exception_ptr(std::logic_error(message));
    fail();
  }

  // In half of the cases warps stay together, so that one warp can run far ahead of another.
  void make_all_ready() {
    ready_.resize(count_);
    std::iota(ready_.begin(), ready_.end(), 0u);
    std::shuffle(ready_.begin(), ready_.end(), random);
    if (random() % 2) {
      std::vector<unsigned> rank(count_ / kWarp + 1);
      std::iota(rank.begin(), rank.end(), 0u);
      std::shuffle(rank.begin(), rank.end(), random);
      std::stable_sort(ready_.begin(), ready_.end(), [&](unsigned a, unsigned b) {
        return rank[a / kWarp] < rank[b / kWarp];
      });
    }
    for (unsigned i = 0; i < count_; ++i) all_[i]->state = Fiber::kReady;
  }

  // Called when all fibers wait: releases the barrier.
  void release_block() {
    uint64_t votes = 0;
    for (unsigned i = 0; i < count_; ++i) {
      const Fiber& fiber = *all_[i];
      if (fiber.state == Fiber::kInWarp) fail("lanes wait for lanes of their warp that never arrive");
      if (fiber.state == Fiber::kDone || std::strcmp(fiber.where, all_[0]->where) != 0) {
        fail(std::string("not all threads of a block reach the same barrier: ") + fiber.where + " or " +
             all_[0]->where);
      }
      votes += fiber.value;
    }
    for (unsigned i = 0; i < count_; ++i) all_[i]->result = votes;
    make_all_ready();
  }

  // Releases the lanes that the current lane waits for, if all of them have arrived.
  void release_warp() {
    const unsigned first = current_ / kWarp * kWarp, mask = own().mask;
    const auto in_group = [&](unsigned lane) { return mask >> lane & 1 && first + lane < count_; };
    unsigned ballot = 0;
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      if (!in_group(lane)) continue;
      const Fiber& fiber = *all_[first + lane];
      if (fiber.state != Fiber::kInWarp || fiber.mask != mask) return;
      ballot |= unsigned{fiber.value != 0} << lane;
    }
    const size_t others = ready_.size();
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      if (!in_group(lane)) continue;
      Fiber& fiber = *all_[first + lane];
      if (!in_group(fiber.source)) fail("a lane reads from a lane outside of the mask");
      fiber.result = all_[first + fiber.source]->value;
      fiber.ballot = ballot;
      fiber.state = Fiber::kReady;
      ready_.push_back(first + lane);
    }
    std::shuffle(ready_.begin() + static_cast<std::ptrdiff_t>(others), ready_.end(), random);
  }

  // ---- Switching with setjmp and longjmp, which need no system calls, unlike swapcontext.

  void wait(Fiber::State state) {
    own().state = state;
    __sanitizer_start_switch_fiber(&own().sanitizer, scheduler_stack_, scheduler_stack_bytes_);
    if (!_setjmp(own().context)) _longjmp(scheduler_, 1);
    __sanitizer_finish_switch_fiber(own().sanitizer, nullptr, nullptr);
  }

  static void enter();

  void resume(Fiber& fiber) {
    void* sanitizer = nullptr;
    if (!fiber.stack) fiber.stack.reset(new char[stack_bytes]);
    __sanitizer_start_switch_fiber(&sanitizer, fiber.stack.get(), stack_bytes);
    if (!_setjmp(scheduler_)) {
      if (fiber.started) _longjmp(fiber.context, 1);
      fiber.started = true;
      ucontext_t context;
      getcontext(&context);
      context.uc_stack.ss_sp = fiber.stack.get();
      context.uc_stack.ss_size = stack_bytes;
      context.uc_link = nullptr;
      makecontext(&context, enter, 0);
      setcontext(&context);
    }
    __sanitizer_finish_switch_fiber(sanitizer, nullptr, nullptr);
  }
};
inline Fibers fibers;

inline void Fibers::enter() {
  __sanitizer_finish_switch_fiber(nullptr, &fibers.scheduler_stack_,
                                  &fibers.scheduler_stack_bytes_);
  for (;;) {
    try {
      (*fibers.kernel_)();
    } catch (...) {
      fibers.failure_ = std::current_exception();
    }
    fibers.wait(Fiber::kDone);
  }
}

}  // namespace cuda_on_cpu
