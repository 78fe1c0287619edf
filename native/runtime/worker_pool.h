// Divides tasks among threads. The result of a task does not depend on the thread that runs it.
#pragma once
#include "../kernels.h"
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

// While an object of this class lives, the calling thread replaces subnormal numbers by zero. The kernels
// do not need subnormal numbers, and some processors take many times as long to compute with them.
class FlushSubnormals {
  public:
#ifdef __SSE__
    FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }  // FTZ and DAZ
    ~FlushSubnormals() { _mm_setcsr(before_); }

  private:
    unsigned before_;
#endif
};

// Returns how many threads are worth starting. `passes`: how often the kernel reads every arc.
// One more thread per 1e5 arc visits (some 20 to 50 us of work, several times the cost of waking a thread);
// every position counts as 16 further arcs per tag for its exponentials and divisions.
inline int64_t useful_threads(const bcrf::Problem& p, double passes) {
#ifdef _OPENMP
    const double arcs = double(p.batch) * double(p.n) * double(p.num_tags) * double(p.num_tags + 16);
    const double useful = arcs * passes / 1e5 + 1;
    return std::max(int64_t(1), useful < double(p.threads) ? int64_t(useful) : p.threads);
#else
    (void)p, (void)passes;
    return 1;
#endif
}

// The parts of a task that two threads share, in the order in which they are handed out. A part starts when all
// parts of the stages before it are done: Begin | LeftInward, RightInward | LeftOutward, RightOutward | End.
enum class Part { kBegin, kLeftInward, kRightInward, kLeftOutward, kRightOutward, kEnd };
constexpr int64_t kParts = 6;
constexpr int64_t kPartsBeforeStage[kParts] = {0, 1, 1, 3, 3, 5};

// Hands out the parts of some tasks to any number of threads. A thread that comes late finds less to do, and the
// others never wait here for a thread that has not begun.
class PartQueue {
  public:
    // Runs parts until none is left.
    template <class Run> void work(int64_t tasks, Run run) {
        for (int64_t ticket; (ticket = next_++) < tasks * kParts;) {
            const int64_t task = ticket / kParts, part = ticket % kParts;
            const int64_t needed = task * kParts + kPartsBeforeStage[part];
            // The other thread is computing and usually close to its end. If it is not, it may need this core.
            for (int64_t tries = 0; done_.load() < needed; ++tries)
                if (tries > 1000) std::this_thread::yield();
            run(task, Part(part));
            ++done_;
        }
    }

  private:
    std::atomic<int64_t> next_{0}, done_{0};
};

// Workers, each with its scratch memory. They are constructed before the threads start, because a thread
// could not report that memory ran out.
template <class Worker> class WorkerPool {
  public:
    // Makes `size` workers, but not more than there are tasks.
    template <class Make>
    WorkerPool(int64_t size, int64_t tasks, Make make)
        : tasks_(tasks), size_(std::max(int64_t(1), std::min(size, tasks))) {
        workers_.allocate(size_);
        for (int64_t k = 0; k < size_; ++k) workers_[k] = nullptr;
        for (int64_t k = 0; k < size_; ++k) workers_[k] = make();
    }
    ~WorkerPool() {
        for (int64_t k = 0; k < size_; ++k) delete workers_[k];
    }

    // Calls body(worker, task) for every task, with one thread per worker.
    template <class Body> void run(Body body) {
#ifdef _OPENMP
        if (size_ > 1) {
#pragma omp parallel num_threads(int(size_))
            {
                const FlushSubnormals flush;
#pragma omp for schedule(dynamic, 1)
                for (int64_t k = 0; k < tasks_; ++k) body(*workers_[omp_get_thread_num()], k);
            }
            return;
        }
#endif
        const FlushSubnormals flush;
        for (int64_t k = 0; k < tasks_; ++k) body(*workers_[0], k);
    }

    // Calls body(worker, task, part) for all parts of every task, with two threads per worker.
    template <class Body> void run_in_parts(Body body) {
        std::unique_ptr<PartQueue[]> queues(new PartQueue[size_t(size_)]);
        // Worker w has the tasks w, w + size, w + 2 size, ...
        const auto work = [&](int64_t w) {
            queues[size_t(w)].work((tasks_ - w + size_ - 1) / size_, [&](int64_t k, Part part) {
                body(*workers_[w], w + k * size_, part);
            });
        };
#ifdef _OPENMP
#pragma omp parallel num_threads(int(2 * size_))
        {
            const FlushSubnormals flush;
            const int64_t first = omp_get_thread_num() / 2;
            // Its own worker, then any other, which may have got fewer threads.
            for (int64_t k = 0; k < size_; ++k) work((first + k) % size_);
        }
#else
        const FlushSubnormals flush;
        for (int64_t k = 0; k < size_; ++k) work(k);
#endif
    }

  private:
    int64_t tasks_, size_;
    Array<Worker*> workers_;
};

}  // namespace
