#include "scratch.h"

#include <mutex>

#include "api.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace {

// Smaller ones are left to malloc, which keeps those by itself.
constexpr size_t SMALLEST = size_t(1) << 18;
constexpr int MOST = 256;

std::mutex mutex; // guards what follows; nothing is waited for while it is held
Scratch kept[MOST];
int count = 0;
size_t total = 0, limit = size_t(128) << 20;

Scratch remove(int i) {
    const Scratch block = kept[i];
    total -= block.bytes;
    kept[i] = kept[--count];
    return block;
}

int largest_kept() {
    int best = 0;
    for (int i = 1; i < count; ++i)
        if (kept[i].bytes > kept[best].bytes)
            best = i;
    return best;
}

// Frees the largest until at most `bytes` are kept; how many it freed.
int64_t shrink(size_t bytes) {
    const size_t before = total;
    while (total > bytes)
        free(remove(largest_kept()).memory);
    return int64_t(before - total);
}

#if defined(__unix__) || defined(__APPLE__)
// A child has the blocks too, and a lock that is open, whoever held it when the parent forked.
[[maybe_unused]] const int registered =
    pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });
#endif

} // namespace

Scratch take_scratch(size_t bytes) {
    if (bytes >= SMALLEST) {
        std::lock_guard<std::mutex> lock(mutex);
        int best = -1;
        for (int i = 0; i < count; ++i)
            if (kept[i].bytes >= bytes && (best < 0 || kept[i].bytes < kept[best].bytes))
                best = i;
        if (best >= 0)
            return remove(best);
        if (count > 0) // too small, and the one that is made now will stand in for it: not both at a time
            free(remove(largest_kept()).memory);
    }
    return {take(bytes), bytes};
}

void give_scratch(Scratch block) {
    if (block.bytes >= SMALLEST && block.memory) {
        std::lock_guard<std::mutex> lock(mutex);
        if (count < MOST && block.bytes <= limit && total <= limit - block.bytes) {
            kept[count++] = block;
            total += block.bytes;
            return;
        }
    }
    free(block.memory);
}

UOTPOOL_EXPORT int64_t uotpool_free_scratch(void) {
    std::lock_guard<std::mutex> lock(mutex);
    return shrink(0);
}

UOTPOOL_EXPORT int64_t uotpool_kept_scratch(void) {
    std::lock_guard<std::mutex> lock(mutex);
    return int64_t(total);
}

UOTPOOL_EXPORT int64_t uotpool_limit_scratch(int64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex);
    if (bytes >= 0) {
        limit = size_t(bytes);
        shrink(limit);
    }
    return int64_t(limit);
}
