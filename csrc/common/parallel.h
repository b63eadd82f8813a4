// Data-parallel loops on a fixed number of threads.
//
//   parallel_for(num_items, num_threads, [&](int item) { work(item); });
//
// Items are handed out one at a time from a shared counter, so uneven items
// balance. Results must not depend on which thread ran an item: `body` may
// write only what belongs to its own item. The first exception is rethrown in
// the calling thread after all threads have stopped. Complexity: O(items).
#pragma once

#include <functional>

namespace tensoropt {

void parallel_for(int num_items, int num_threads,
                  const std::function<void(int)>& body);

// The number of threads to use for a request; 0 means all hardware threads.
int resolve_num_threads(int requested);

}  // namespace tensoropt
