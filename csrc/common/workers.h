// Threads that run data-parallel loops, made once for many of them.
//
//   Workers workers(num_threads);
//   workers.run(num_items, [&](int item) { work(item); });
//
// Items are handed out one at a time from a shared counter, so uneven items
// balance. Results must not depend on which thread ran an item: `body` may
// write only what belongs to its own item. The calling thread takes part. The
// first exception is rethrown in it after all threads have stopped.
//
// A loop inside a loop, or one begun while another thread's is running, runs on
// the calling thread alone. Do not use after fork(). O(items).
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tensoropt {

class Workers {
 public:
  // 0: as many threads as there are processors (cpu_count.h). Throws UserError
  // if the number is negative.
  explicit Workers(int num_threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // The calling one included.
  int num_threads() const { return num_threads_; }

  void run(int num_items, const std::function<void(int)>& body);

 private:
  class Loop;

  void start();
  void work();
  void share(Loop& loop, int helpers);

  const int num_threads_;
  std::atomic<bool> busy_ = false;
  std::mutex mutex_;
  std::condition_variable wanted_changed_;
  std::condition_variable active_changed_;
  // Guarded by the mutex.
  Loop* loop_ = nullptr;
  int wanted_ = 0;  // threads that should still join the loop
  int active_ = 0;  // threads that are in it
  bool stop_ = false;
  std::vector<std::jthread> threads_;  // started by the first loop
};

}  // namespace tensoropt
