#include "common/workers.h"

#include <algorithm>
#include <exception>
#include <system_error>

#include "common/check.h"
#include "common/cpu_count.h"

namespace tensoropt {

namespace {

int checked(int num_threads) {
  TO_CHECK(num_threads >= 0,
           "num_threads must be 0 (all processors) or positive, got {}",
           num_threads);
  return num_threads > 0 ? num_threads : available_cpus();
}

}  // namespace

// Runs items until none is left; remembers the first exception.
class Workers::Loop {
 public:
  Loop(int num_items, const std::function<void(int)>& body)
      : num_items_(num_items), body_(body) {}

  void run() {
    try {
      for (int item = next_++; item < num_items_; item = next_++) body_(item);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!error_) error_ = std::current_exception();
      next_ = num_items_;
    }
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const int num_items_;
  const std::function<void(int)>& body_;
  std::atomic<int> next_{0};
  std::mutex mutex_;
  std::exception_ptr error_;
};

Workers::Workers(int num_threads) : num_threads_(checked(num_threads)) {}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wanted_changed_.notify_all();
}

void Workers::run(int num_items, const std::function<void(int)>& body) {
  Loop loop(num_items, body);
  const int helpers = std::min(num_threads_, num_items) - 1;
  if (helpers <= 0 || busy_.exchange(true)) {
    loop.run();
  } else {
    share(loop, helpers);
    busy_ = false;
  }
  loop.rethrow();
}

// Loop::run() does not throw, so that all threads are out of the loop in the
// end.
void Workers::share(Loop& loop, int helpers) {
  if (threads_.empty()) start();
  {
    const std::lock_guard lock(mutex_);
    loop_ = &loop;
    wanted_ = helpers;
  }
  for (int i = 0; i < helpers; ++i) wanted_changed_.notify_one();
  loop.run();
  std::unique_lock lock(mutex_);
  wanted_ = 0;
  active_changed_.wait(lock, [this] { return active_ == 0; });
}

void Workers::start() {
  try {
    for (int i = 1; i < num_threads_; ++i) {
      threads_.emplace_back([this] { work(); });
    }
  } catch (const std::system_error&) {
    // The system allows no more of them: those that there are do all items.
  }
}

void Workers::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wanted_changed_.wait(lock, [this] { return stop_ || wanted_ > 0; });
    if (stop_) return;
    --wanted_;
    ++active_;
    Loop* const loop = loop_;
    lock.unlock();
    loop->run();
    lock.lock();
    if (--active_ == 0) active_changed_.notify_one();
  }
}

}  // namespace tensoropt
