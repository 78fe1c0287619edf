// Certified decoding: Bregman projections at a low temperature, a certificate that their best arcs form a best
// path, and Viterbi for the sentences without one. Compiled once for each instruction set.
#include "../bregman/solvers.h"
#include "viterbi.h"

namespace {

// After how many projections the certificate is tried for the first and the second time; the last time is after
// all of them. At a temperature of 0.1, half and four fifths of the chains with peaked scores are proved by then,
// which gains up to 33 % with 17 tags and 80 % with 64.
constexpr int64_t kTries[] = {4, 6};

}  // namespace

namespace bcrf::BCRF_ISA {

template <class Score>
int64_t certified(
    const Problem& p, const Projections& settings, double temperature, int64_t* tags, double* scores,
    bool* certified) {
    Projections s = settings;
    s.several_sweeps = true;
    const TransitionsInDouble<Score> transitions(p);
    if (transitions.has_invalid) return 1;
    Problem cold = p;
    cold.scale = 1 / temperature;
    Statuses statuses(p.batch);
    const auto run = [&](auto type, const auto& shared, auto accepts) {
        using Solver = typename decltype(type)::type;
        struct Worker {
            Solver solver;
            Viterbi<Score> viterbi;
        };
        WorkerPool<Worker> pool(useful_threads(p, double(s.iterations + 3)), p.batch, [&] {
            return new Worker{{cold, shared, s}, {p, transitions}};
        });
        pool.run([&](Worker& worker, int64_t b) {
            if (!accepts(b)) return;
            Solver& solver = worker.solver;
            certified[b] = false;
            if (!solver.sentence.read(b)) {
                statuses[b] = kInvalid;
                return;
            }
            solver.start(nullptr);
            solver.exponentiate_all();
            for (int64_t k = 0; !certified[b];) {
                int64_t next = s.iterations;
                for (const int64_t stop : kTries)
                    if (k < stop && stop < next) next = stop;
                solver.sweep(k, next);
                if (solver.out_of_range()) {
                    statuses[b] = kOutOfRange;
                    return;
                }
                certified[b] = solver.may_form_path() &&
                               worker.viterbi.certify(b, solver, temperature, tags + b * p.n, scores[b]);
                if (next == s.iterations) break;
                k = next;
            }
            const bool found = certified[b] || worker.viterbi.solve(b, tags + b * p.n, scores[b]);
            statuses[b] = found && is_representable<Score>(scores[b]) ? kSolved : kInvalid;
        });
    };
    run_bregman_solvers<Score>(cold, s, select_solvers<Score>(cold, Outputs{}, &s), statuses, run);
    return statuses.first_invalid();
}

template int64_t certified<float>(
    const Problem&, const Projections&, double, int64_t*, double*, bool*);
template int64_t certified<double>(
    const Problem&, const Projections&, double, int64_t*, double*, bool*);

}  // namespace bcrf::BCRF_ISA
