// The interface between the Python bindings and the kernels: what a call is given and what it writes.
// A void* array holds float or double: the dtype of the scores. Strides count elements.
//
// Notation: B sentences, n positions, T tags; position i has unary scores unary[i][t]; edge e joins the
// positions e and e + 1; an arc (e, s, t) goes from tag s of position e to tag t of position e + 1, and its
// transition score is transitions[e][s][t], or transitions[s][t] if the transitions are shared by all edges.
#pragma once
#include <cstdint>

namespace bcrf {

constexpr int64_t kPaddingTag = -100;  // written to tags beyond a sentence's length

// A batch of chains. The last axes (tags, and T x T of the transitions) have no gaps.
//
// The unary scores are given as `unary`. If `unary` is null, they are already trimmed and folded into the arcs:
// left[e] is the share of position e in the arcs of edge e, right[e] the share of position e + 1. The two shares
// of an interior position are equal.
struct Problem {
    int64_t batch, n, num_tags;
    const int64_t* lengths;         // [B], each in 0..n
    const void* unary;              // [B][n][T]
    const void* left;               // [B][n-1][T]
    const void* right;              // [B][n-1][T]
    int64_t unary_strides[2];       // of unary, or of left and right: sentence, position
    const void* transitions;        // [T][T] if shared, else [B][n-1][T][T]
    int64_t transition_strides[2];  // sentence, edge; 0 if shared
    const bool* allowed;            // [T][T], per-edge transitions only; false: removed from all edges; null: all true
    bool shared;
    double scale;                   // multiplies every score: 1 / temperature
    int64_t threads;
};

// What to compute: an output that is null is not computed. Rows beyond a sentence's length are filled with 0
// (tags: with kPaddingTag).
struct Outputs {
    void* value;                    // [B]: A(w) or D(lam); with gold tags the loss
    bool value_in_double;           // `value` is double, whatever the scores are
    void* unary_gradient;           // [B][n][T]: derivative of `value`
    void* transition_gradient;      // [B][T][T] if the transitions are shared, else [B][n-1][T][T]
    bool every_edge;                // transition_gradient is [B][n-1][T][T] for shared transitions too
    void* transition_gradient_sum;  // [T][T]: the sum of [B][T][T] over the sentences
    void* dual;                     // [B][n][T]: lam
    void* marginals;                // [B][n][T]
    bool outgoing_marginals;        // marginals of the outgoing arcs instead of the geometric mean of both sides
    int64_t* best_tags;             // [B][n]: the tag with the largest marginal
    double* residual;               // [B]: max |incoming marginal - outgoing marginal|
};

// How to run the Bregman projections.
struct Projections {
    const double* omegas;  // [iterations]: relaxation of each step
    int64_t iterations;
    int64_t first;         // position where step 0 starts: 1 or 2
    double tolerance;      // stop at this residual; negative: run all iterations
    const void* start;     // [B][n][T]: lam at the start; null: lam = 0, or as gauge_right says
    bool gauge_right;      // start at lam = unary share, which moves the whole unary score to the incoming arcs
    bool several_sweeps;   // the iterations are run by several calls of `sweep` (certified decoding)
};

// Each kernel returns 0, or 1 + the index of the first sentence that is invalid: a score is NaN or +inf, a
// length or tag is out of range, a gold tag or arc is removed, no path is left, or the value overflows the
// dtype of the scores. The outputs are then meaningless. Invalid shared transitions belong to sentence 0.
struct Kernels {
    int64_t (*crf)(const Problem&, const int64_t* gold, const Outputs&);
    int64_t (*bregman)(const Problem&, const Projections&, const int64_t* gold, const Outputs&);
    int64_t (*viterbi)(const Problem&, int64_t* tags, double* scores);
    int64_t (*certified)(
        const Problem&, const Projections&, double temperature, int64_t* tags, double* scores,
        bool* certified);
};

// The kernels are compiled once for each instruction set, in a namespace of its name (CMakeLists.txt).
#define BCRF_DECLARE_KERNELS(isa)                                                                      \
    namespace isa {                                                                                    \
    template <class Score> int64_t crf(const Problem&, const int64_t*, const Outputs&);                \
    template <class Score>                                                                             \
    int64_t bregman(const Problem&, const Projections&, const int64_t*, const Outputs&);               \
    template <class Score> int64_t viterbi(const Problem&, int64_t*, double*);                         \
    template <class Score>                                                                             \
    int64_t certified(const Problem&, const Projections&, double, int64_t*, double*, bool*);           \
    template <class Score> constexpr Kernels kernels() {                                               \
        return {crf<Score>, bregman<Score>, viterbi<Score>, certified<Score>};                         \
    }                                                                                                  \
    }

BCRF_DECLARE_KERNELS(baseline)
BCRF_DECLARE_KERNELS(avx2)  // defined only if CMake sets BCRF_HAVE_AVX2

}  // namespace bcrf
