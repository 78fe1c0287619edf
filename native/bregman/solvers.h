// Runs the selected Bregman solvers over the sentences of a batch.
#pragma once
#include "../batch.h"
#include "by_position.h"
#include "by_tag.h"

namespace {

// Calls run(Type<solver>, transitions, accepts) for the selected solvers, one after the other, while there are
// unsolved sentences. accepts(b) says whether the solver takes sentence b.
template <class Score, class Run>
void run_bregman_solvers(
    const Problem& p, const Projections& settings, const SolverList& solvers, Statuses& statuses, Run run) {
    const SharedTransitions<Score, Score> shared(p);
    for (const Solver solver : solvers) {
        if (!statuses.any_unsolved()) return;
        if (solver == Solver::kBregmanByPosition) {
            const auto accepts = [&](int64_t b) {
                return statuses.is_unsolved(b) && accepts_by_position<Score>(p.num_tags, p.lengths[b]) &&
                       (settings.several_sweeps || accepts_first_edge<Score>(p, b));
            };
            if (p.shared) run(Type<BregmanByPosition<Score, Score, true>>(), shared, accepts);
            else run(Type<BregmanByPosition<Score, Score, false>>(), shared, accepts);
        } else if (solver == Solver::kBregmanByPositionInDouble) {
            if constexpr (sizeof(Score) == 4) {
                const auto accepts = [&](int64_t b) {
                    return statuses[b] == kOutOfRange && accepts_by_position<double>(p.num_tags, p.lengths[b]);
                };
                bool any = false;
                for (int64_t b = 0; b < p.batch; ++b) any |= accepts(b);
                if (!any) continue;
                const SharedTransitions<Score, double> in_double(p);
                run(Type<BregmanByPosition<Score, double, true>>(), in_double, accepts);
            }
        } else {
            const auto accepts = [&](int64_t b) { return statuses.is_unsolved(b); };
            run(Type<BregmanByTag<Score, Score>>(), shared, accepts);
        }
    }
}

}  // namespace
