// The CRF kernel: runs the selected solvers over a batch. Compiled once for each instruction set.
#include "../batch.h"
#include "by_sentence.h"
#include "by_tag.h"
#include "in_log_space.h"

namespace {

constexpr double kPasses = 3;  // reads of every arc: exponential, forward and backward

// Solves groups of sentences of similar lengths; other sentences stay pending.
template <class Score, class Solver>
void run_by_sentence(const Problem& p, const int64_t* gold, const Outputs& out, Statuses& statuses) {
    Array<int64_t> order, lengths, groups;  // sentences, the longest first; where the groups begin
    for (Array<int64_t>* a : {&order, &lengths, &groups}) a->allocate(p.batch);
    for (int64_t b = 0; b < p.batch; ++b) order[b] = b;
    std::stable_sort(+order, order + p.batch, [&](int64_t a, int64_t b) {
        return p.lengths[a] > p.lengths[b];
    });
    for (int64_t k = 0; k < p.batch; ++k) lengths[k] = p.lengths[order[k]];
    const auto size = [&](int64_t from) { return std::min(p.batch - from, Solver::W); };
    int64_t count = 0;
    for (int64_t k = 0; k < p.batch;) {
        const bool accepted = accepts_group<Score>(lengths + k, size(k));
        if (accepted) groups[count++] = k;
        k += accepted ? size(k) : 1;
    }
    if (count == 0) return;
    const auto load = [&](Solver& solver, int64_t group) {
        solver.load_group(order + groups[group], size(groups[group]));
    };
    const auto report = [&](Solver& solver) {
        solver.report([&](int64_t b, double value) { statuses[b] = write_value<Score>(out, b, value); });
    };
    // Where some threads would have nothing to do, two threads share a group.
    const int64_t threads = useful_threads(p, kPasses);
    const bool shared = threads > 1 && count % threads != 0 && count < 2 * threads;
    WorkerPool<Solver> pool(
        shared ? threads / 2 : threads, count, [&] { return new Solver(p, gold, out); });
    if (shared)
        pool.run_in_parts([&](Solver& solver, int64_t group, Part part) {
            switch (part) {
                case Part::kBegin: return load(solver, group);
                case Part::kLeftInward: return solver.solve_inward(true);
                case Part::kRightInward: return solver.solve_inward(false);
                case Part::kLeftOutward: return solver.solve_outward(true);
                case Part::kRightOutward: return solver.solve_outward(false);
                case Part::kEnd: return report(solver);
            }
        });
    else
        pool.run([&](Solver& solver, int64_t group) {
            load(solver, group);
            solver.solve();
            report(solver);
        });
}

template <class Score, int N>
void run_by_sentence(const Problem& p, const int64_t* gold, const Outputs& out, Statuses& statuses) {
    if (p.shared) run_by_sentence<Score, ForwardBackwardBySentence<Score, N, true>>(p, gold, out, statuses);
    else run_by_sentence<Score, ForwardBackwardBySentence<Score, N, false>>(p, gold, out, statuses);
}

// Runs a solver of single sentences over those that are unsolved.
template <class Score, class Real, class Solver>
void run_unsolved(const Problem& p, const int64_t* gold, const Outputs& out, Statuses& statuses) {
    const SharedTransitions<Score, Real> shared(p);
    WorkerPool<Solver> pool(useful_threads(p, kPasses), p.batch, [&] { return new Solver(p, shared); });
    pool.run([&](Solver& solver, int64_t b) {
        if (!statuses.is_unsolved(b)) return;
        const int64_t* tags = gold ? gold + b * p.n : nullptr;
        double value;
        statuses[b] = try_to_solve(solver, b, tags, true, [&] {
            return solver.solve(tags, Gradient<Score>(p, out, b), value);
        });
        if (statuses[b] == kSolved) statuses[b] = write_value<Score>(out, b, value);
    });
}

// CRF by tag, with the number of vectors that hold T tags known to the compiler if it is small: 22 % at
// 4x2048x17 with shared transitions.
template <class Score>
void run_by_tag(const Problem& p, const int64_t* gold, const Outputs& out, Statuses& statuses) {
    const auto run = [&](auto vectors) {
        using Solver = ForwardBackwardByTag<Score, Score, decltype(vectors)::value>;
        run_unsolved<Score, Score, Solver>(p, gold, out, statuses);
    };
#ifdef __AVX2__
    switch (padded<Score>(p.num_tags) / lanes<Score>()) {
        case 1: return run(std::integral_constant<int, 1>());
        case 2: return run(std::integral_constant<int, 2>());
        case 3: return run(std::integral_constant<int, 3>());
        case 4: return run(std::integral_constant<int, 4>());
        case 5: return run(std::integral_constant<int, 5>());
    }
#endif
    run(std::integral_constant<int, 0>());
}

}  // namespace

namespace bcrf::BCRF_ISA {

template <class Score> int64_t crf(const Problem& p, const int64_t* gold, const Outputs& out) {
    Statuses statuses(p.batch);
    for (const Solver solver : select_solvers<Score>(p, out, nullptr)) {
        if (!statuses.any_unsolved()) break;
        if (solver == Solver::kCrfBySentence) {
            // Known to the compiler: IOB2 tags of four entity types, and the universal parts of speech.
            if (p.num_tags == 9) run_by_sentence<Score, 9>(p, gold, out, statuses);
            else if (p.num_tags == 17) run_by_sentence<Score, 17>(p, gold, out, statuses);
            else run_by_sentence<Score, 0>(p, gold, out, statuses);
        } else if (solver == Solver::kCrfByTag) {
            run_by_tag<Score>(p, gold, out, statuses);
        } else if (solver == Solver::kCrfByTagInDouble) {
            if constexpr (sizeof(Score) == 4)
                run_unsolved<Score, double, ForwardBackwardByTag<Score, double, 0>>(p, gold, out, statuses);
        } else {
            run_unsolved<Score, double, ForwardBackwardInLogSpace<Score>>(p, gold, out, statuses);
        }
    }
    sum_transition_gradients<Score>(p, out);
    return statuses.first_invalid();
}

template int64_t crf<float>(const Problem&, const int64_t*, const Outputs&);
template int64_t crf<double>(const Problem&, const int64_t*, const Outputs&);

}  // namespace bcrf::BCRF_ISA
