#include "api.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace {

struct Work {
    void (*fn)(void *context, int64_t i);
    void *context;
    int64_t tasks;
    std::atomic<int64_t> next;

    void help() {
        for (int64_t i = next.fetch_add(1); i < tasks; i = next.fetch_add(1))
            fn(context, i);
    }
};

struct Pool {
    std::mutex callers; // held by the one call that uses the pool
    std::mutex mutex;   // guards what follows
    std::condition_variable wake, done;
    Work *work = nullptr;
    int64_t wanted = 0; // threads that may still join the work
    int64_t active = 0; // threads that have joined and not finished
    int64_t threads = 0;

    void serve() {
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            wake.wait(lock, [&] { return work != nullptr && wanted > 0; });
            Work *mine = work;
            --wanted;
            ++active;
            lock.unlock();
            mine->help();
            lock.lock();
            if (--active == 0)
                done.notify_one();
        }
    }

    void grow(int64_t count) {
        while (threads < count) {
            try {
                std::thread([this] { serve(); }).detach();
            } catch (...) { // an exception must not reach C
                return;     // no more threads to be had: the caller does the rest
            }
            ++threads;
        }
    }

    void run(Work &shared, int64_t helpers) {
        {
            std::lock_guard<std::mutex> lock(mutex);
            grow(helpers);
            work = &shared;
            wanted = helpers;
        }
        if (helpers == 1)
            wake.notify_one();
        else
            wake.notify_all();
        shared.help();
        std::unique_lock<std::mutex> lock(mutex);
        work = nullptr; // who has not joined by now finds nothing left to do
        wanted = 0;
        done.wait(lock, [&] { return active == 0; });
    }
};

// Never destroyed: at exit its threads may still be waiting in it.
std::atomic<Pool *> pool{nullptr};
std::mutex *making = new std::mutex;

// A forked child has none of its parent's threads, and perhaps locks that nobody will open: it starts anew.
void forget() {
    pool.store(nullptr);
    making = new std::mutex;
}

#if defined(__unix__) || defined(__APPLE__)
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, forget); // when the library is loaded
#endif

Pool *the_pool() {
    Pool *p = pool.load();
    if (p)
        return p;
    std::lock_guard<std::mutex> lock(*making);
    if (!pool.load())
        pool.store(new (std::nothrow) Pool);
    return pool.load();
}

} // namespace

void run_tasks(int64_t tasks, int64_t threads, void (*fn)(void *context, int64_t i), void *context) {
    Work work{fn, context, tasks, {0}};
    const int64_t helpers = (threads < tasks ? threads : tasks) - 1;
    Pool *p = helpers > 0 ? the_pool() : nullptr;
    if (p && p->callers.try_lock()) {
        p->run(work, helpers);
        p->callers.unlock();
    } else {
        work.help();
    }
}
