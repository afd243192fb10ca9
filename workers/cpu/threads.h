// Threads that work through the same phases side by side.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

// The caller's thread and some of its own, which sleep between two runs. Nobody waits for a thread that has nothing in
// hand: one that the system does not let run holds the others up only while it is in the middle of a part.
class Crew {
 public:
  // Throws where the system has not so many threads.
  explicit Crew(int threads) {
    try {
      for (int i = 1; i < threads; i++) threads_.emplace_back([this, i] { serve(i); });
    } catch (...) {
      end();  // threads that nobody joined would take the process along
      throw;
    }
  }

  ~Crew() { end(); }

  int size() const { return (int)threads_.size() + 1; }

  // work(index) on every thread; each passes through the same phases, `phases` of them at most. Throws where a part had
  // too little memory; work itself must not throw outside of parts.
  template <typename Work>
  void run(int phases, Work work) {
    if ((int)phases_.size() < phases) phases_ = std::vector<Phase>(phases);
    failed_.store(false, std::memory_order_relaxed);
    for (auto& phase : phases_) {
      phase.next.store(0, std::memory_order_relaxed);
      phase.done.store(0, std::memory_order_relaxed);
    }
    {
      std::lock_guard lock(mutex_);
      call_ = [](void* work, int index) { (*static_cast<Work*>(work))(index); };
      work_ = &work;
      turn_++;
      open_ = true;
    }
    wake_.notify_all();
    work(0);
    std::unique_lock lock(mutex_);
    open_ = false;  // who comes now comes too late
    done_.wait(lock, [this] { return running_ == 0; });
    if (failed_.load(std::memory_order_relaxed)) throw std::bad_alloc();
  }

  // A phase: part(i) for i in 0 .. count, whichever thread comes first. All parts are done, and seen, afterwards.
  template <typename Part>
  void share(int& index, int count, Part part) {
    Phase& phase = phases_[index++];
    int own = 0;
    for (int i = phase.next.fetch_add(1, std::memory_order_relaxed); i < count;
         i = phase.next.fetch_add(1, std::memory_order_relaxed), own++)
      attempt(part, i);
    if (own) phase.done.fetch_add(own, std::memory_order_release);
    for (int spins = 0; phase.done.load(std::memory_order_acquire) < count; spins++)
      if (spins > SPINS)
        std::this_thread::yield();  // the other may want this very core
      else
        pause();
  }

 private:
  struct alignas(64) Phase {
    std::atomic<int> next{0}, done{0};
    Phase() = default;
    Phase(const Phase&) {}  // for a vector of them, before anybody uses it
  };

  // After a part that failed none is begun: they are passed over, for the others wait for all to be done.
  template <typename Part>
  void attempt(Part& part, int i) {
    if (failed_.load(std::memory_order_relaxed)) return;
    try {
      part(i);
    } catch (...) {
      failed_.store(true, std::memory_order_relaxed);
    }
  }

  void end() {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void serve(int index) {
    std::uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return ending_ || turn_ != seen; });
        if (ending_) return;
        seen = turn_;
        if (!open_) continue;
        running_++;
      }
      call_(work_, index);
      {
        std::lock_guard lock(mutex_);
        running_--;
      }
      done_.notify_one();
    }
  }

  static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }

  static constexpr int SPINS = 4000;  // some tens of microseconds

  std::vector<std::thread> threads_;
  std::vector<Phase> phases_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  void (*call_)(void*, int) = nullptr;
  void* work_ = nullptr;
  std::uint64_t turn_ = 0;
  int running_ = 0;
  bool open_ = false, ending_ = false;
  std::atomic<bool> failed_{false};
};

}  // namespace
