// What the kernels are given and what they write. Pointers are to float or double; strides count
// elements. The two tables hold the same functions, compiled for different instruction sets.
#pragma once
#include <cstdint>

namespace bcrf {

constexpr int64_t kPad = -100;  // what tags hold beyond a sentence's length

// A batch of chains: B sentences, n positions, T tags; axes [batch, position, from, to], the last
// ones (tags, and T x T of the pairs) without gaps. Position scores come as `unary`, or (`unary` null)
// folded and trimmed, as their shares `left` and `right` in the arcs after and before a position,
// which are equal but for the two ends of a sentence.
struct Problem {
    int64_t batch, n, tags;
    const int64_t* lengths;     // [B], in 0..n
    const void* unary;          // [B, n, T]
    const void* left;           // [B, n-1, T]
    const void* right;          // [B, n-1, T]
    int64_t node_strides[2];    // of unary, or of left and right: sentence, position
    const void* pair;           // [T, T] shared, or [B, n-1, T, T]
    int64_t pair_strides[2];    // sentence, edge; 0 if shared
    const bool* follow;         // [T, T]: which pairs are not removed from every edge; null: all
    bool shared;
    double scale;               // multiplies every score: 1 / temperature
    int64_t threads;
};

// Anything null is not computed. Rows beyond a sentence's length are filled too (0, or -100).
struct Outputs {
    void* value;             // [B]: A(w) or D(lam); with `tags` the loss
    bool wide_value;         // `value` holds doubles, whatever the scores are
    void* unary_gradient;    // [B, n, T]: derivative of `value`
    void* pair_gradient;     // [B, T, T] if the pairs are shared, else [B, n-1, T, T]
    bool every_edge;         // [B, n-1, T, T] for shared pairs too
    void* pair_total;        // [T, T]: [B, T, T] added up over the sentences
    void* dual;              // [B, n, T]: lam
    void* marginals;         // [B, n, T]
    bool outgoing;           // marginals from the outgoing mass, not the mean of both
    int64_t* best;           // [B, n]: the tag with the largest marginal
    double* residual;        // [B]: max |in - out|
};

struct Projections {
    const double* omegas;  // relaxation of each step
    int64_t iterations;
    int64_t first;      // position where step 0 starts, 1 or 2
    double tolerance;   // negative: none
    const void* start;  // [B, n, T], or null: lam = 0, or the gauge "right"
    bool gauge_right;
    bool again;  // the run is made in several parts
};

// All return 0, or 1 + the first sentence that has no answer (a score that is NaN or +inf, a length or
// tag out of range, a gold tag or arc that is removed, no path left, a value that overflows the precision
// of the scores): the outputs are then without meaning. Shared pairs belong to sentence 0.
struct Kernels {
    int64_t (*crf)(const Problem&, const int64_t* tags, const Outputs&);
    int64_t (*bregman)(const Problem&, const Projections&, const int64_t* tags, const Outputs&);
    int64_t (*viterbi)(const Problem&, int64_t* tags, double* score);
    int64_t (*certified)(
        const Problem&, const Projections&, double temperature, int64_t* tags, double* score,
        bool* certified);
};

extern const Kernels baseline_float, baseline_double;
#ifdef BCRF_HAVE_AVX2
extern const Kernels avx2_float, avx2_double;
#endif

}  // namespace bcrf
