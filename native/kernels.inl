// The kernels over a batch: sentences, or groups of them, are divided among threads, on whose number no
// result depends. Included once per instruction set, which BCRF_ISA names.
#include "abreast.h"
#include "team.h"
#include "viterbi.h"

namespace {

using bcrf::Kernels;

template <class T> struct Type {
    using type = T;
};

template <int N> struct Width {
    static constexpr int vectors = N;
};

// Calls body(Width<N>) with the number of vectors that T tags fill, if it is one of the common small
// ones: loops over tags are then unrolled. 0 stands for any.
template <class Real, class Body> void with_width(int64_t T, Body body) {
#ifdef __AVX2__
    switch (padded<Real>(T) / lanes<Real>()) {
        case 1: return body(Width<1>());
        case 2: return body(Width<2>());
        case 3: return body(Width<3>());
        case 4: return body(Width<4>());
        case 5: return body(Width<5>());
    }
#endif
    (void)T;
    body(Width<0>());
}

// kRedo: still to be done. kNarrow: the same, after the range of numbers was too small.
enum Status : char { kFine, kBad, kRedo, kNarrow };

class Statuses {
  public:
    explicit Statuses(int64_t batch) : batch_(batch) {
        status_.allocate(batch);
        for (int64_t b = 0; b < batch; ++b) status_[b] = kRedo;
    }
    Status& operator[](int64_t b) { return status_[b]; }
    // 0 if no sentence has that status, else 1 + the first that has.
    int64_t first(Status wanted) const {
        for (int64_t b = 0; b < batch_; ++b)
            if (status_[b] == wanted) return b + 1;
        return 0;
    }

  private:
    int64_t batch_;
    Array<Status> status_;
};

// Whether the gold sequence of the sentence in `chain` is one of its paths.
template <class In, class Real, int N>
bool legal(const Chain<In, Real, N>& chain, const int64_t* tags) {
    const int64_t T = chain.T;
    for (int64_t i = 0; i < chain.L; ++i) {
        if (tags[i] < 0 || tags[i] >= T) return false;
        if (chain.nodes[i * chain.P + tags[i]] == -infinity<Real>()) return false;
        if (i > 0 && chain.raw(i - 1)[tags[i - 1] * T + tags[i]] == -infinity<In>()) return false;
    }
    return true;
}

// Reads sentence b and calls solve(): in haste, if that is wanted and the solver can, then with care.
template <class Solver, class Solve>
Status attempt(Solver& solver, int64_t b, const int64_t* gold, bool haste, Solve solve) {
    for (const bool hasty : {haste && Solver::kHasty, false}) {
        if (!solver.chain.read(b, hasty) || (gold && !legal(solver.chain, gold))) return kBad;
        if (solve()) return kFine;
        if (!solver.chain.hasty()) break;
    }
    return kNarrow;
}

// Whether a sum of scores can be told in the precision of the scores: huge ones add up to infinity.
template <class In> bool representable(double value) { return In(value) - In(value) == In(0); }

// Writes the value of a sentence that was solved.
template <class In> Status write_value(const Outputs& out, int64_t b, double value) {
    if (!out.value) return kFine;
    if (out.wide_value) static_cast<double*>(out.value)[b] = value;
    else static_cast<In*>(out.value)[b] = In(value);
    return representable<In>(value) ? kFine : kBad;
}

// In the order of the sentences, whoever solved them.
template <class In> void add_up(const Problem& p, const Outputs& out) {
    if (!out.pair_total) return;
    const int64_t size = p.tags * p.tags;
    In* total = static_cast<In*>(out.pair_total);
    std::memset(total, 0, size_t(size) * sizeof(In));
    for (int64_t b = 0; b < p.batch; ++b) {
        const In* counts = static_cast<const In*>(out.pair_gradient) + b * size;
        for (int64_t k = 0; k < size; ++k) total[k] += counts[k];
    }
}

constexpr double kCrfPasses = 3;

// Solves sentences of similar lengths together; those that this does not suit stay to be done.
template <class In, class Solver>
void crf_abreast(const Problem& p, const int64_t* tags, const Outputs& out, Statuses& statuses) {
    if (!Solver::suits(p, out)) return;
    Array<int64_t> order, lengths, groups;  // longest first; groups by where they begin
    for (Array<int64_t>* a : {&order, &lengths, &groups}) a->allocate(p.batch);
    for (int64_t b = 0; b < p.batch; ++b) order[b] = b;
    std::stable_sort(+order, order + p.batch, [&](int64_t a, int64_t b) {
        return p.lengths[a] > p.lengths[b];
    });
    for (int64_t k = 0; k < p.batch; ++k) lengths[k] = p.lengths[order[k]];
    const auto size = [&](int64_t from) { return std::min(p.batch - from, Solver::W); };
    int64_t count = 0;
    for (int64_t k = 0; k < p.batch;) {
        const bool together = Solver::suits(lengths + k, size(k));
        if (together) groups[count++] = k;
        k += together ? size(k) : 1;
    }
    if (count == 0) return;
    const auto take = [&](Solver& solver, int64_t group) {
        solver.take(order + groups[group], size(groups[group]));
    };
    const auto report = [&](Solver& solver) {
        solver.report([&](int64_t b, double value) {
            statuses[b] = write_value<In>(out, b, value);
        });
    };
    const auto alone = [&](Solver& solver, int64_t group) {
        take(solver, group);
        solver.solve();
        report(solver);
    };
    const auto half = [&](Solver& solver, int64_t group, bool left, Meeting& meet) {
        if (left) take(solver, group);
        meet();
        solver.solve_half(left, meet);
        meet();
        if (left) report(solver);
    };
    // Two threads for each group where some would have nothing to do.
    const int64_t threads = paying_threads(p, kCrfPasses);
    const bool pairs = threads > 1 && count % threads != 0 && count < 2 * threads;
    Team<Solver> team(pairs ? threads / 2 : threads, count, [&] { return new Solver(p, tags, out); });
    if (pairs) team.run_in_pairs(half, alone);
    else team.run(alone);
}

template <class In, int N>
void crf_abreast(const Problem& p, const int64_t* tags, const Outputs& out, Statuses& statuses) {
    if (p.shared) crf_abreast<In, Abreast<In, N, true>>(p, tags, out, statuses);
    else crf_abreast<In, Abreast<In, N, false>>(p, tags, out, statuses);
}

// Solves the sentences that are still to be done; those beyond the range of Real stay so.
template <class In, class Solver, class Real>
void crf_pass(
    const Problem& p, const int64_t* tags, const Outputs& out, Statuses& statuses, Real) {
    SharedPairs<In, Real> shared;
    shared.prepare(p);
    Team<Solver> team(paying_threads(p, kCrfPasses), p.batch, [&] { return new Solver(p, shared); });
    team.run([&](Solver& solver, int64_t b) {
        if (statuses[b] != kRedo) return;
        const int64_t* gold = tags ? tags + b * p.n : nullptr;
        double value;
        const Status status = attempt(solver, b, gold, true, [&] {
            return solver.solve(gold, Gradient<In>(p, out, b), value);
        });
        if (status == kFine) statuses[b] = write_value<In>(out, b, value);
        else statuses[b] = status == kNarrow ? kRedo : status;
    });
}

template <class In> int64_t crf(const Problem& p, const int64_t* tags, const Outputs& out) {
    Statuses statuses(p.batch);
    // Known to the compiler: IOB2 tags of four types of entities, universal parts of speech.
    if (p.tags == 9) crf_abreast<In, 9>(p, tags, out, statuses);
    else if (p.tags == 17) crf_abreast<In, 17>(p, tags, out, statuses);
    else crf_abreast<In, 0>(p, tags, out, statuses);
    if (statuses.first(kRedo))
        with_width<In>(p.tags, [&](auto width) {
            crf_pass<In, ForwardBackward<In, In, width.vectors>>(p, tags, out, statuses, In(0));
        });
    if constexpr (sizeof(In) == 4)
        if (statuses.first(kRedo))
            crf_pass<In, ForwardBackward<In, double, 0>>(p, tags, out, statuses, 0.0);
    if (statuses.first(kRedo)) crf_pass<In, LogForwardBackward<In>>(p, tags, out, statuses, 0.0);
    add_up<In>(p, out);
    return statuses.first(kBad);
}

// Solves the sentences with that status; those beyond the range of the solver are narrow then.
template <class In, class Solver, class Real>
void bregman_pass(
    const Problem& p, const SharedPairs<In, Real>& shared, const Projections& s, const int64_t* tags,
    const Outputs& out, Statuses& statuses, Status todo) {
    const int64_t threads = paying_threads(p, double(s.iterations + 3));
    Team<Solver> team(threads, p.batch, [&] { return new Solver(p, shared, s); });
    team.run([&](Solver& solver, int64_t b) {
        if (statuses[b] != todo || !Solver::suits(p, p.lengths[b])) return;
        const int64_t* gold = tags ? tags + b * p.n : nullptr;
        const In* start = s.start ? static_cast<const In*>(s.start) + b * p.n * p.tags : nullptr;
        double value, gap;
        // Scores that are divided by a low temperature are hardly ever of a small range.
        statuses[b] = attempt(solver, b, gold, p.scale <= 1, [&] {
            solver.start(start);
            return solver.solve(gold, Wanted<In>(p, out, b), value, gap);
        });
        if (statuses[b] != kFine) return;
        statuses[b] = write_value<In>(out, b, value);
        if (out.residual) out.residual[b] = gap;
        if (out.dual) solver.write_dual(static_cast<In*>(out.dual) + b * p.n * p.tags);
    });
}

// Calls pass(Type<solver>, pairs, status) for one way of solving after the other, as long as there
// are sentences with that status: positions in lanes, the same in double precision (with pairs for
// every edge that would be too much to read), tags in lanes.
template <class In, class Pass>
void with_solvers(const Problem& p, bool lanes, Statuses& statuses, Pass pass) {
    SharedPairs<In, In> shared;
    shared.prepare(p);
    if (lanes && p.shared) pass(Type<LaneBregman<In, In, true>>(), shared, kRedo);
    if (lanes && !p.shared) pass(Type<LaneBregman<In, In, false>>(), shared, kRedo);
    if constexpr (sizeof(In) == 4)
        if (p.shared && statuses.first(kNarrow)) {
            SharedPairs<In, double> wide;
            wide.prepare(p);
            pass(Type<LaneBregman<In, double, true>>(), wide, kNarrow);
        }
    for (const Status status : {kRedo, kNarrow})
        if (statuses.first(status))
            with_width<In>(p.tags, [&](auto width) {
                pass(Type<Bregman<In, In, width.vectors>>(), shared, status);
            });
}

template <class In>
int64_t bregman(const Problem& p, const Projections& s, const int64_t* tags, const Outputs& out) {
    Statuses statuses(p.batch);
    const bool lanes = s.tolerance < 0 && !(p.shared && out.pair_gradient && out.every_edge);
    with_solvers<In>(p, lanes, statuses, [&](auto type, const auto& shared, Status todo) {
        using Solver = typename decltype(type)::type;
        bregman_pass<In, Solver>(p, shared, s, tags, out, statuses, todo);
    });
    add_up<In>(p, out);
    return statuses.first(kBad);
}

template <class In> int64_t viterbi(const Problem& p, int64_t* tags, double* score) {
    const WidePairs<In> pairs(p);
    if (pairs.bad) return 1;
    Statuses statuses(p.batch);
    Team<Viterbi<In>> team(paying_threads(p, 2), p.batch, [&] { return new Viterbi<In>(p, pairs); });
    team.run([&](Viterbi<In>& solver, int64_t b) {
        const bool found = solver.solve(b, tags + b * p.n, score[b]);
        statuses[b] = found && representable<In>(score[b]) ? kFine : kBad;
    });
    return statuses.first(kBad);
}

// How many projections come before the certificate is tried for the first and the second time; the
// last time is after all of them. (At a temperature of 0.1, half and four fifths of chains with
// peaked scores are proved by then.)
constexpr int64_t kTries[] = {4, 6};

template <class In, class Solver, class Real>
void certified_pass(
    const Problem& p, const Problem& cold, const SharedPairs<In, Real>& shared,
    const WidePairs<In>& pairs, const Projections& s, int64_t* tags, double* score, bool* proved,
    Statuses& statuses, Status todo) {
    struct Worker {
        Solver solver;
        Viterbi<In> viterbi;
    };
    Team<Worker> team(paying_threads(p, double(s.iterations + 3)), p.batch, [&] {
        return new Worker{{cold, shared, s}, {p, pairs}};
    });
    team.run([&](Worker& worker, int64_t b) {
        if (statuses[b] != todo || !Solver::suits(p, p.lengths[b])) return;
        Solver& solver = worker.solver;
        proved[b] = false;
        if (!solver.chain.read(b)) {
            statuses[b] = kBad;
            return;
        }
        solver.start(nullptr);
        solver.enter_all();
        for (int64_t k = 0; !proved[b];) {
            int64_t next = s.iterations;
            for (const int64_t stop : kTries)
                if (k < stop && stop < next) next = stop;
            solver.sweep(k, next);
            if (solver.failed()) {
                statuses[b] = kNarrow;
                return;
            }
            proved[b] = solver.may_join() &&
                        worker.viterbi.certify(b, solver, 1 / cold.scale, tags + b * p.n, score[b]);
            if (next == s.iterations) break;
            k = next;
        }
        const bool found = proved[b] || worker.viterbi.solve(b, tags + b * p.n, score[b]);
        statuses[b] = found && representable<In>(score[b]) ? kFine : kBad;
    });
}

template <class In>
int64_t certified(
    const Problem& p, const Projections& settings, double temperature, int64_t* tags, double* score,
    bool* proved) {
    Projections s = settings;
    s.again = true;
    const WidePairs<In> pairs(p);
    if (pairs.bad) return 1;
    Problem cold = p;
    cold.scale = 1 / temperature;
    Statuses statuses(p.batch);
    with_solvers<In>(cold, true, statuses, [&](auto type, const auto& shared, Status todo) {
        using Solver = typename decltype(type)::type;
        certified_pass<In, Solver>(p, cold, shared, pairs, s, tags, score, proved, statuses, todo);
    });
    return statuses.first(kBad);
}

}  // namespace

#define BCRF_JOIN(a, b) a##_##b
#define BCRF_TABLE(isa, real) BCRF_JOIN(isa, real)

namespace bcrf {
extern const Kernels BCRF_TABLE(BCRF_ISA, float), BCRF_TABLE(BCRF_ISA, double);
const Kernels BCRF_TABLE(BCRF_ISA, float) = {
    ::crf<float>, ::bregman<float>, ::viterbi<float>, ::certified<float>};
const Kernels BCRF_TABLE(BCRF_ISA, double) = {
    ::crf<double>, ::bregman<double>, ::viterbi<double>, ::certified<double>};
}  // namespace bcrf
