// Dividing tasks among threads. Whoever does a task, and whenever: its result is the same.
#pragma once
#include "kernels.h"
#include "memory.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __SSE__
#include <immintrin.h>
#endif

namespace {

// As long as it lives, this thread takes numbers below the smallest normal one for zero. Nothing here
// needs them, and some processors take many times as long for each.
class Flushing {
  public:
#ifdef __SSE__
    Flushing() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
    ~Flushing() { _mm_setcsr(before_); }

  private:
    unsigned before_;
#endif
};

// `passes`: how often the work goes over every arc. Threads that would not pay are not woken.
inline int64_t paying_threads(const bcrf::Problem& p, double passes) {
#ifdef _OPENMP
    const double arcs = double(p.batch) * double(p.n) * double(p.tags) * double(p.tags + 16);
    const double paying = arcs * passes / 1e5 + 1;
    return std::max(int64_t(1), paying < double(p.threads) ? int64_t(paying) : p.threads);
#else
    (void)p, (void)passes;
    return 1;
#endif
}

// Where two threads wait for each other, any number of times.
class Meeting {
  public:
    void operator()() {
        const int64_t now = ++arrived_, both = now + now % 2;
        // The other is seldom far behind; if it is, it may be waiting for this very core.
        for (int64_t tries = 0; arrived_.load() < both; ++tries)
            if (tries > 1000) std::this_thread::yield();
    }

  private:
    std::atomic<int64_t> arrived_{0};
};

// Workers, each with its scratch memory. They are made before the threads start: running out of
// memory within one could not be reported.
template <class Worker> class Team {
  public:
    // `size`: of workers, but no more than tasks.
    template <class Make>
    Team(int64_t size, int64_t tasks, Make make)
        : tasks_(tasks), size_(std::max(int64_t(1), std::min(size, tasks))) {
        workers_.allocate(size_);
        for (int64_t k = 0; k < size_; ++k) workers_[k] = nullptr;
        for (int64_t k = 0; k < size_; ++k) workers_[k] = make();
    }
    ~Team() {
        for (int64_t k = 0; k < size_; ++k) delete workers_[k];
    }

    // Calls body(worker, task) for every task, in a thread for each worker.
    template <class Body> void run(Body body) {
#ifdef _OPENMP
        if (size_ > 1) {
#pragma omp parallel num_threads(int(size_))
            {
                const Flushing flushing;
#pragma omp for schedule(dynamic, 1)
                for (int64_t k = 0; k < tasks_; ++k) body(*workers_[omp_get_thread_num()], k);
            }
            return;
        }
#endif
        const Flushing flushing;
        for (int64_t k = 0; k < tasks_; ++k) body(*workers_[0], k);
    }

    // Calls half(worker, task, left, meet) for every task, in two threads for each worker; only one of
    // them is the left, and both can meet. Where there are not so many threads: body(worker, task).
    template <class Half, class Body> void run_in_pairs(Half half, Body body) {
        bool paired = false;
#ifdef _OPENMP
        std::unique_ptr<Meeting[]> meetings(new Meeting[size_t(size_)]);
#pragma omp parallel num_threads(int(2 * size_))
        if (omp_get_num_threads() == int(2 * size_)) {
            const Flushing flushing;
            const int64_t thread = omp_get_thread_num(), pair = thread / 2;
            if (thread == 0) paired = true;
            for (int64_t k = pair; k < tasks_; k += size_)
                half(*workers_[pair], k, thread % 2 == 0, meetings[size_t(pair)]);
        }
#endif
        if (!paired) run(body);
    }

  private:
    int64_t tasks_, size_;
    Array<Worker*> workers_;
};

}  // namespace
