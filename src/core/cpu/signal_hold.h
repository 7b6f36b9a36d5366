#pragma once

#include <csignal>

namespace dkfac::cpu {

/// Scope that blocks signals to the calling thread, except those that its own instructions raise.
///
/// oneDNN's product of f32 matrices requires it (2.6.3 and later). Its kernels point the stack
/// pointer at a buffer on the heap, for AVX-512 if k is above 84, for AVX if a block of k is above
/// 252. A handler without its own stack then overwrites memory below the buffer, and the library
/// cannot choose the stack of a program's handlers.
class SignalHold {
 public:
  SignalHold() {
    sigset_t held;
    sigfillset(&held);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS})
      sigdelset(&held, fault);
    pthread_sigmask(SIG_BLOCK, &held, &before_);
  }
  ~SignalHold() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalHold(const SignalHold&) = delete;
  SignalHold& operator=(const SignalHold&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace dkfac::cpu
