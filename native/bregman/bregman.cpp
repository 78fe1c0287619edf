// The Bregman kernel: projections, then value, gradient, marginals and residual. Compiled once for each
// instruction set.
#include "solvers.h"

namespace bcrf::BCRF_ISA {

template <class Score>
int64_t bregman(const Problem& p, const Projections& s, const int64_t* gold, const Outputs& out) {
    Statuses statuses(p.batch);
    const auto run = [&](auto type, const auto& shared, auto accepts) {
        using Solver = typename decltype(type)::type;
        const int64_t threads = useful_threads(p, double(s.iterations + 3));  // 3: exponential, value, gradient
        WorkerPool<Solver> pool(threads, p.batch, [&] { return new Solver(p, shared, s); });
        pool.run([&](Solver& solver, int64_t b) {
            if (!accepts(b)) return;
            const int64_t* tags = gold ? gold + b * p.n : nullptr;
            const Score* start = s.start ? static_cast<const Score*>(s.start) + b * p.n * p.num_tags : nullptr;
            double value, residual;
            // Scores that are divided by a low temperature are rarely within the bound of the fast path.
            statuses[b] = try_to_solve(solver, b, tags, p.scale <= 1, [&] {
                solver.start(start);
                return solver.solve(tags, SentenceOutputs<Score>(p, out, b), value, residual);
            });
            if (statuses[b] != kSolved) return;
            statuses[b] = write_value<Score>(out, b, value);
            if (out.residual) out.residual[b] = residual;
            if (out.dual) solver.write_dual(static_cast<Score*>(out.dual) + b * p.n * p.num_tags);
        });
    };
    run_bregman_solvers<Score>(p, s, select_solvers<Score>(p, out, &s), statuses, run);
    sum_transition_gradients<Score>(p, out);
    return statuses.first_invalid();
}

template int64_t bregman<float>(const Problem&, const Projections&, const int64_t*, const Outputs&);
template int64_t bregman<double>(const Problem&, const Projections&, const int64_t*, const Outputs&);

}  // namespace bcrf::BCRF_ISA
