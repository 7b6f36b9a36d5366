#pragma once

#include <csignal>

namespace dkfac::cpu {

/// While alive, signals to the calling thread wait, but for those that its own instructions raise.
///
/// oneDNN's product of f32 matrices needs it (2.6.3, and later ones): its kernels point the stack
/// pointer at a buffer on the heap, for AVX-512 where k is above 84, for AVX where a block of k is
/// above 252. A handler that has no stack of its own then overwrites what lies below the buffer.
/// Where a foreign handler runs is not ours to choose.
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
