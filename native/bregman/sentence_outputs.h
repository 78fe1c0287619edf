// What the Bregman solvers write for one sentence, and their common constants.
#pragma once
#include "../chain/gradient.h"

namespace {

using bcrf::kPaddingTag;
using bcrf::Projections;

// What to write for one sentence; null where it is not asked for.
template <class Score> struct SentenceOutputs {
    Gradient<Score> gradient;
    Score* marginals;
    int64_t* best_tags;
    bool outgoing_marginals;

    SentenceOutputs(const Problem& p, const Outputs& out, int64_t b)
        : gradient(p, out, b),
          marginals(out.marginals ? static_cast<Score*>(out.marginals) + b * p.n * p.num_tags : nullptr),
          best_tags(out.best_tags ? out.best_tags + b * p.n : nullptr), outgoing_marginals(out.outgoing_marginals) {}

    // Fills the rows beyond the length.
    void clear(const Problem& p, int64_t L) const {
        gradient.clear(p, L);
        if (marginals) std::memset(marginals + L * p.num_tags, 0, size_t((p.n - L) * p.num_tags) * sizeof(Score));
        for (int64_t i = L; best_tags && i < p.n; ++i) best_tags[i] = kPaddingTag;
    }
};

// If the geometric mean of two distributions sums to less than this, it is computed in log space.
template <class Real> constexpr Real kSmallOverlap = sizeof(Real) == 4 ? Real(1e-6) : Real(1e-100);
// If the weights of an edge sum to less than this, the mean is computed in log space, too: underflow may have lost
// terms, and the square root magnifies the loss.
template <class Real> constexpr Real kPreciseSum = sizeof(Real) == 4 ? Real(1e-10) : Real(1e-70);

// Writes lam of a position. Its arbitrary constant is chosen so that the mean over the tags that are not removed
// is 0; removed(t) says which are.
template <class Score, class Real, class Removed>
BCRF_INLINE void write_centred_dual(const Real* lam, int64_t T, Removed removed, Score* out) {
    Real sum = 0;
    int64_t count = 0;
    for (int64_t t = 0; t < T; ++t)
        if (!removed(t)) sum += lam[t], ++count;
    for (int64_t t = 0; t < T; ++t)
        if (!removed(t)) out[t] = Score(lam[t] - sum / Real(count));
}

}  // namespace
