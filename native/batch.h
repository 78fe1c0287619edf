// Common to all kernels: the status of each sentence of a batch, and how one solver tries one sentence.
#pragma once
#include "chain/gradient.h"
#include "runtime/worker_pool.h"
#include "solver_selection.h"

namespace {

// Passes a type to a generic lambda.
template <class T> struct Type {
    using type = T;
};

// kPending: not tried yet, or not accepted. kOutOfRange: a solver gave up. kInvalid: no solver can help.
enum Status : char { kSolved, kInvalid, kPending, kOutOfRange };

class Statuses {
  public:
    explicit Statuses(int64_t batch) : batch_(batch) {
        status_.allocate(batch);
        for (int64_t b = 0; b < batch; ++b) status_[b] = kPending;
    }
    Status& operator[](int64_t b) { return status_[b]; }
    bool is_unsolved(int64_t b) const { return status_[b] == kPending || status_[b] == kOutOfRange; }
    bool any_unsolved() const {
        for (int64_t b = 0; b < batch_; ++b)
            if (is_unsolved(b)) return true;
        return false;
    }
    // What a kernel returns: 0, or 1 + the first invalid sentence.
    int64_t first_invalid() const {
        for (int64_t b = 0; b < batch_; ++b)
            if (status_[b] == kInvalid) return b + 1;
        return 0;
    }

  private:
    int64_t batch_;
    Array<Status> status_;
};

// Whether the gold tags are a path of the sentence.
template <class Score, class Real, int N>
bool is_path(const Sentence<Score, Real, N>& sentence, const int64_t* tags) {
    const int64_t T = sentence.T;
    for (int64_t i = 0; i < sentence.L; ++i) {
        if (tags[i] < 0 || tags[i] >= T) return false;
        if (sentence.unary[i * sentence.P + tags[i]] == -infinity<Real>()) return false;
        if (i > 0 && sentence.transition_scores(i - 1)[tags[i - 1] * T + tags[i]] == -infinity<Score>())
            return false;
    }
    return true;
}

// Reads sentence b and calls solve(): on the bounded fast path first (transitions.h), if `bounded` asks for it and
// the solver has one.
template <class Solver, class Solve>
Status try_to_solve(Solver& solver, int64_t b, const int64_t* gold, bool bounded, Solve solve) {
    for (const bool fast : {bounded && Solver::kHasBoundedFastPath, false}) {
        if (!solver.sentence.read(b, fast) || (gold && !is_path(solver.sentence, gold))) return kInvalid;
        if (solve()) return kSolved;
        if (!solver.sentence.bounded()) break;
    }
    return kOutOfRange;
}

// Whether a value is finite in the dtype of the scores; a sum of huge scores may overflow it.
template <class Score> bool is_representable(double value) { return Score(value) - Score(value) == Score(0); }

// Writes the value of a solved sentence.
template <class Score> Status write_value(const Outputs& out, int64_t b, double value) {
    if (!out.value) return kSolved;
    if (out.value_in_double) static_cast<double*>(out.value)[b] = value;
    else static_cast<Score*>(out.value)[b] = Score(value);
    return is_representable<Score>(value) ? kSolved : kInvalid;
}

// Sums the gradient of shared transitions, in the order of the sentences, so that it does not depend on the
// threads that solved them.
template <class Score> void sum_transition_gradients(const Problem& p, const Outputs& out) {
    if (!out.transition_gradient_sum) return;
    const int64_t size = p.num_tags * p.num_tags;
    Score* sum = static_cast<Score*>(out.transition_gradient_sum);
    std::memset(sum, 0, size_t(size) * sizeof(Score));
    for (int64_t b = 0; b < p.batch; ++b) {
        const Score* counts = static_cast<const Score*>(out.transition_gradient) + b * size;
        for (int64_t k = 0; k < size; ++k) sum[k] += counts[k];
    }
}

}  // namespace
