// Which solver runs a sentence: the one place where this is decided. docs/kernels.md has the measured gains.
//
//  solver                  | lanes of a vector | accepts                               | then, if out of range
//  ------------------------|-------------------|---------------------------------------|-----------------------
//  CRF by sentence         | 8 (4) sentences   | groups of similar length, few tags,   | CRF by tag
//                          |                   | bounded scores, nothing removed       |
//  CRF by tag              | tags              | everything                            | CRF by tag in double
//  CRF by tag in double    | tags              | everything (float scores only)        | CRF in log space
//  CRF in log space        | tags              | everything, at any range of scores    | -
//  Bregman by position     | positions of one  | positions that fill vectors better    | Bregman by position in
//                          | parity            | than tags; a fixed number of steps;   | double, or by tag
//                          |                   | no wide edges at low temperature      |
//  - in double             | the same          | what was out of range in float,       | Bregman by tag
//                          |                   | with shared transitions               |
//  Bregman by tag          | tags              | everything, at any range of scores    | -
#pragma once
#include "chain/transitions.h"

namespace {

using bcrf::Outputs;
using bcrf::Projections;

enum class Solver {
    kCrfBySentence,
    kCrfByTag,
    kCrfByTagInDouble,
    kCrfInLogSpace,
    kBregmanByPosition,
    kBregmanByPositionInDouble,
    kBregmanByTag,
};

// The solvers of a call, in the order in which they are tried.
struct SolverList {
    Solver solvers[4];
    int count = 0;

    void add(Solver solver) { solvers[count++] = solver; }
    const Solver* begin() const { return solvers; }
    const Solver* end() const { return solvers + count; }
};

// CRF by sentence keeps the arcs of one edge of all lanes, T * T * 32 bytes, in the first-level cache (32 KiB or
// more): 18 tags need 10 KiB, and as much again for the gradient.
constexpr int64_t kMostTagsBySentence = 18;
// Its scratch memory must fit into what a thread keeps between calls (8 MB, memory.h).
constexpr double kMostBytesBySentence = 6e6;

// Whether no shared transition is NaN or above the bound of the fast path (transitions.h) in magnitude.
template <class Score> bool shared_transitions_in_bounds(const Problem& p) {
    const Score* scores = static_cast<const Score*>(p.transitions);
    const int64_t size = p.num_tags * p.num_tags;
    Mask<Score> largest = {};
    for (int64_t k = 0; k < size; k += lanes<Score>()) {
        const Vec<Score> x = load_first<Score>(scores + k, size - k, Score(0));
        const Mask<Score> magnitude = bits_of(x) & ~sign_bits<Score>();
        largest = magnitude > largest ? magnitude : largest;
    }
    return !any(out_of_bounds(largest, Score(p.scale)));
}

template <class Score> bool accepts_by_sentence(const Problem& p, const Outputs& out) {
    const int64_t numbers = p.n * p.num_tags * (p.shared ? 4 : p.num_tags);
    if (!p.unary || p.num_tags > kMostTagsBySentence) return false;
    if (double(numbers) * double(kVectorBytes) > kMostBytesBySentence) return false;
    if (p.shared) return !(out.transition_gradient && out.every_edge) && shared_transitions_in_bounds<Score>(p);
    // With fewer tags, rows of T * T scores are too short for vectors along them.
    return !p.allowed && 2 * p.num_tags > lanes<Score>();
}

// Returns the solvers of a call. Every sentence goes to the first one that accepts it; if that solver runs out of
// range, the sentence goes on to the next. The last solver of a list accepts every sentence and never runs out of
// range. `projections`: null for the CRF.
template <class Score>
SolverList select_solvers(const Problem& p, const Outputs& out, const Projections* projections) {
    constexpr bool is_float = sizeof(Score) == 4;
    SolverList list;
    if (!projections) {
        if (accepts_by_sentence<Score>(p, out)) list.add(Solver::kCrfBySentence);
        list.add(Solver::kCrfByTag);
        if (is_float) list.add(Solver::kCrfByTagInDouble);
        list.add(Solver::kCrfInLogSpace);
        return list;
    }
    // A tolerance needs the residual after every step, and the marginals of every edge need rows of tags.
    const bool every_shared_edge = p.shared && out.transition_gradient && out.every_edge;
    if (projections->tolerance < 0 && !every_shared_edge) {
        list.add(Solver::kBregmanByPosition);
        // Per-edge transitions in double would double the memory traffic, which dominates.
        if (is_float && p.shared) list.add(Solver::kBregmanByPositionInDouble);
    }
    list.add(Solver::kBregmanByTag);
    return list;
}

// Whether CRF by sentence accepts a group of sentences of these lengths, the longest first: they must fill 70 % of
// the lanes, or solving them one by one is faster.
template <class Score> bool accepts_group(const int64_t* lengths, int64_t count) {
    int64_t sum = 0;
    for (int64_t r = 0; r < count; ++r) sum += lengths[r];
    return lengths[0] > 1 && double(sum) >= 0.7 * double(lanes<Score>() * lengths[0]);
}

// Whether Bregman by position accepts a sentence of length L: the positions of one parity must fill their vectors
// at least 0.9 times as well as the tags would.
template <class Real> bool accepts_by_position(int64_t T, int64_t L) {
    const auto filled = [](int64_t count) { return double(count) / double(padded<Real>(count)); };
    return L > 1 && filled((L + 1) / 2) > 0.9 * filled(T);
}

// The largest difference of two transition scores of an edge that Bregman by position accepts at a low temperature,
// after division by the temperature. A step divides one message by another; each varies by up to this difference,
// and float allows a ratio of e^64 (underflow_limit).
constexpr double kWidestEdge = 32;

// Whether the transitions of a sentence are likely to be in the range of Bregman by position. Only the first edge is
// read. A sentence that is accepted by mistake runs out of range after up to a quarter of the time that Bregman by
// tag then takes.
template <class Score> bool accepts_first_edge(const Problem& p, int64_t b) {
    const int64_t size = p.num_tags * p.num_tags;
    if (p.shared || p.scale <= 1 || p.n < 2) return true;
    const Score* scores = static_cast<const Score*>(p.transitions) + b * p.transition_strides[0];
    const Vec<Score> none = splat(infinity<Score>());
    Vec<Score> low = none, high = -none;
    for (int64_t k = 0; k < size; k += lanes<Score>()) {
        const Vec<Score> x = load_first<Score>(scores + k, size - k, scores[0]);
        high = vmax(high, x);
        low = vmin(low, x > -none ? x : none);
    }
    return !(double(hmax(high)) + double(hmax(-low)) > kWidestEdge / p.scale);
}

}  // namespace
