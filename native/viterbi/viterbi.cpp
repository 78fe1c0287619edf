// The Viterbi kernel. Compiled once for each instruction set.
#include "viterbi.h"

#include "../batch.h"

namespace bcrf::BCRF_ISA {

template <class Score> int64_t viterbi(const Problem& p, int64_t* tags, double* scores) {
    const TransitionsInDouble<Score> shared(p);
    if (shared.has_invalid) return 1;
    Statuses statuses(p.batch);
    const int64_t threads = useful_threads(p, 2);  // passes: conversion and maximum
    WorkerPool<Viterbi<Score>> pool(threads, p.batch, [&] { return new Viterbi<Score>(p, shared); });
    pool.run([&](Viterbi<Score>& solver, int64_t b) {
        const bool found = solver.solve(b, tags + b * p.n, scores[b]);
        statuses[b] = found && is_representable<Score>(scores[b]) ? kSolved : kInvalid;
    });
    return statuses.first_invalid();
}

template int64_t viterbi<float>(const Problem&, int64_t*, double*);
template int64_t viterbi<double>(const Problem&, int64_t*, double*);

}  // namespace bcrf::BCRF_ISA
