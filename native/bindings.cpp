// The Python door of the kernels: tensors in, tensors out, or None if a sentence has no answer. The
// one caller, bcrf/kernels/native.py, vouches for shapes, dtypes and devices.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"
#include "tensors.h"

using namespace nb::literals;
using bcrf::Number;
using bcrf::View;

namespace {

struct Choice {
    const char* name;
    const bcrf::Kernels *single, *wide;
};

const Choice kBaseline = {"baseline", &bcrf::baseline_float, &bcrf::baseline_double};

// What this processor can run, best last.
std::vector<Choice> choices() {
    std::vector<Choice> found = {kBaseline};
#ifdef BCRF_HAVE_AVX2
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2"))
        found.push_back({"avx2", &bcrf::avx2_float, &bcrf::avx2_double});
#endif
    return found;
}

Choice chosen = choices().back();

// A problem, and the tensors that hold it. `lengths` may be None: all n.
struct Task {
    bcrf::Problem problem = {};
    Number number = Number::kOther;

    Task(nb::handle unary, nb::handle pair, nb::handle lengths, int64_t threads, double scale = 1) {
        View view;
        keep(unary, 1, view);
        nodes(view, view.shape[1]);
        problem.unary = view.data;
        rest(pair, lengths, threads, scale);
    }
    Task(
        nb::handle left, nb::handle right, int64_t n, nb::handle pair, nb::handle lengths,
        int64_t threads) {
        View view, other;
        keep(left, 3, view);
        keep(right, 3, other);
        nodes(view, n);
        problem.left = view.data;
        problem.right = other.data;
        rest(pair, lengths, threads, 1);
    }

    template <class Body> bool solved(Body body) const {
        const bcrf::Kernels& kernels = number == Number::kDouble ? *chosen.wide : *chosen.single;
        const nb::gil_scoped_release release;
        return body(kernels, problem) == 0;
    }

    void* keep(nb::handle tensor, int dims, View& view) {
        kept_.push_back(bcrf::packed(tensor, dims, view));
        return view.data;
    }
    const int64_t* integers(nb::handle tensor, int dims) {
        if (tensor.is_none()) return nullptr;
        View view;
        keep(tensor, dims, view);
        if (view.number != Number::kInt) throw std::invalid_argument("expected int64");
        return static_cast<const int64_t*>(view.data);
    }
    // Which pairs are not removed from every edge; None: all.
    void constrain(nb::handle follow) {
        if (follow.is_none()) return;
        View view;
        keep(follow, 2, view);
        if (problem.shared || view.number != Number::kBool)
            throw std::invalid_argument("expected bool, and pairs for every edge");
        problem.follow = static_cast<const bool*>(view.data);
    }
    nb::object make(Number kind, std::initializer_list<int64_t> shape, void*& data) const {
        View view;
        nb::object tensor = bcrf::make_tensor(kind, shape, view);
        data = view.data;
        return tensor;
    }

  private:
    std::vector<nb::object> kept_;
    std::vector<int64_t> full_;

    void nodes(const View& view, int64_t n) {
        number = view.number;
        if (view.dims != 3 || (number != Number::kFloat && number != Number::kDouble))
            throw std::invalid_argument("expected float32 or float64 scores with 3 dimensions");
        problem.batch = view.shape[0], problem.n = n, problem.tags = view.shape[2];
        problem.node_strides[0] = view.strides[0], problem.node_strides[1] = view.strides[1];
    }
    void rest(nb::handle pair, nb::handle lengths, int64_t threads, double scale) {
        View view;
        keep(pair, 2, view);
        if (view.number != number) throw std::invalid_argument("scores differ in dtype");
        problem.pair = view.data;
        problem.shared = view.dims == 2;
        if (!problem.shared)
            problem.pair_strides[0] = view.strides[0], problem.pair_strides[1] = view.strides[1];
        problem.lengths = integers(lengths, 1);
        if (!problem.lengths) {
            full_.assign(size_t(problem.batch), problem.n);
            problem.lengths = full_.data();
        }
        problem.threads = threads;
        problem.scale = scale;
    }
};

// Memory for a value and the slopes that are wanted of it.
struct Slopes {
    bcrf::Outputs out = {};
    nb::object value, unary = nb::none(), pair = nb::none(), total = nb::none();

    Slopes(const Task& task, bool by_unary, bool by_pair, bool every_edge, bool wide) {
        const bcrf::Problem& p = task.problem;
        out.wide_value = wide || task.number == Number::kDouble;
        value = task.make(out.wide_value ? Number::kDouble : Number::kFloat, {p.batch}, out.value);
        if (by_unary) unary = task.make(task.number, {p.batch, p.n, p.tags}, out.unary_gradient);
        out.every_edge = every_edge;
        const int64_t m = p.n > 0 ? p.n - 1 : 0;
        if (by_pair && p.shared && !every_edge) {
            pair = task.make(task.number, {p.batch, p.tags, p.tags}, out.pair_gradient);
            total = task.make(task.number, {p.tags, p.tags}, out.pair_total);
        } else if (by_pair) {
            pair = task.make(task.number, {p.batch, m, p.tags, p.tags}, out.pair_gradient);
        }
    }
    nb::object result(bool solved) const {
        return solved ? nb::object(nb::make_tuple(value, unary, pair, total)) : nb::none();
    }
};

bcrf::Projections projections(
    const std::vector<double>& omegas, int64_t first, double tolerance, bool right) {
    return {omegas.data(), int64_t(omegas.size()), first, tolerance, nullptr, right, false};
}

nb::object crf(
    nb::handle unary, nb::handle pair, nb::handle lengths, nb::handle follow, nb::handle tags,
    bool by_unary, bool by_pair, bool every_edge, bool wide, int64_t threads) {
    Task task(unary, pair, lengths, threads);
    task.constrain(follow);
    const int64_t* gold = task.integers(tags, 2);
    const Slopes slopes(task, by_unary, by_pair, every_edge, wide);
    return slopes.result(task.solved(
        [&](auto& kernels, auto& problem) { return kernels.crf(problem, gold, slopes.out); }));
}

nb::object bregman(
    nb::handle unary, nb::handle pair, nb::handle lengths, nb::handle follow, nb::handle tags,
    bool by_unary, bool by_pair, bool every_edge, bool wide, int64_t threads,
    const std::vector<double>& omegas, int64_t first, double tolerance, bool gauge_right) {
    Task task(unary, pair, lengths, threads);
    task.constrain(follow);
    const int64_t* gold = task.integers(tags, 2);
    const Slopes slopes(task, by_unary, by_pair, every_edge, wide);
    const bcrf::Projections steps = projections(omegas, first, tolerance, gauge_right);
    return slopes.result(task.solved([&](auto& kernels, auto& problem) {
        return kernels.bregman(problem, steps, gold, slopes.out);
    }));
}

nb::object flow(
    nb::handle unary, nb::handle pair, nb::handle lengths, int64_t threads,
    const std::vector<double>& omegas, int64_t first, double tolerance, bool gauge_right,
    bool outgoing) {
    const Task task(unary, pair, lengths, threads);
    const bcrf::Problem& p = task.problem;
    bcrf::Outputs out = {};
    out.wide_value = true;
    out.outgoing = outgoing;
    void* residual;
    const nb::object value = task.make(Number::kDouble, {p.batch}, out.value);
    const nb::object gap = task.make(Number::kDouble, {p.batch}, residual);
    const nb::object lam = task.make(task.number, {p.batch, p.n, p.tags}, out.dual);
    const nb::object marginals = task.make(task.number, {p.batch, p.n, p.tags}, out.marginals);
    out.residual = static_cast<double*>(residual);
    const bcrf::Projections steps = projections(omegas, first, tolerance, gauge_right);
    const bool solved = task.solved([&](auto& kernels, auto& problem) {
        return kernels.bregman(problem, steps, nullptr, out);
    });
    return solved ? nb::object(nb::make_tuple(value, gap, lam, marginals)) : nb::none();
}

nb::object most_probable(
    nb::handle unary, nb::handle pair, nb::handle lengths, int64_t threads,
    const std::vector<double>& omegas, int64_t first, double tolerance, bool gauge_right,
    bool outgoing, double temperature) {
    const Task task(unary, pair, lengths, threads, 1 / temperature);
    bcrf::Outputs out = {};
    out.outgoing = outgoing;
    void* best;
    const nb::object tags = task.make(Number::kInt, {task.problem.batch, task.problem.n}, best);
    out.best = static_cast<int64_t*>(best);
    const bcrf::Projections steps = projections(omegas, first, tolerance, gauge_right);
    const bool solved = task.solved([&](auto& kernels, auto& problem) {
        return kernels.bregman(problem, steps, nullptr, out);
    });
    return solved ? tags : nb::none();
}

// Folded arcs: the shares of the unary scores instead of these.
nb::object project(
    nb::handle left, nb::handle right, nb::handle pair, nb::handle lengths, nb::handle start,
    int64_t threads, const std::vector<double>& omegas, int64_t first, double tolerance) {
    View view;
    const nb::object lam = bcrf::packed(start, 3, view);
    const Task task(left, right, view.shape[1], pair, lengths, threads);
    bcrf::Projections steps = projections(omegas, first, tolerance, false);
    steps.start = view.data;
    bcrf::Outputs out = {};
    const nb::object dual =
        task.make(task.number, {view.shape[0], view.shape[1], view.shape[2]}, out.dual);
    const bool solved = task.solved([&](auto& kernels, auto& problem) {
        return kernels.bregman(problem, steps, nullptr, out);
    });
    return solved ? dual : nb::none();
}

// Tags [B, n] and scores [B], these in double precision or (not `wide`) that of the problem.
struct Paths {
    void *tags_data, *score_data;
    nb::object tags, score;
    std::vector<double> scores;

    Paths(const Task& task, bool wide)
        : tags(task.make(Number::kInt, {task.problem.batch, task.problem.n}, tags_data)),
          score(task.make(wide ? Number::kDouble : task.number, {task.problem.batch}, score_data)),
          scores(size_t(task.problem.batch)), narrow_(!wide && task.number == Number::kFloat) {}
    int64_t* best() const { return static_cast<int64_t*>(tags_data); }
    void write_scores() const {
        for (size_t b = 0; b < scores.size(); ++b)
            if (narrow_) static_cast<float*>(score_data)[b] = float(scores[b]);
            else static_cast<double*>(score_data)[b] = scores[b];
    }

  private:
    bool narrow_;
};

nb::object viterbi(
    nb::handle unary, nb::handle pair, nb::handle lengths, bool wide, int64_t threads) {
    const Task task(unary, pair, lengths, threads);
    Paths paths(task, wide);
    const bool solved = task.solved([&](auto& kernels, auto& problem) {
        return kernels.viterbi(problem, paths.best(), paths.scores.data());
    });
    if (!solved) return nb::none();
    paths.write_scores();
    return nb::make_tuple(paths.tags, paths.score);
}

nb::object certified(
    nb::handle unary, nb::handle pair, nb::handle lengths, bool wide, int64_t threads,
    const std::vector<double>& omegas, double temperature) {
    const Task task(unary, pair, lengths, threads);
    Paths paths(task, wide);
    void* proved;
    const nb::object certain = task.make(Number::kBool, {task.problem.batch}, proved);
    const bcrf::Projections steps = projections(omegas, 1, -1, false);
    const bool solved = task.solved([&](auto& kernels, auto& problem) {
        return kernels.certified(
            problem, steps, temperature, paths.best(), paths.scores.data(),
            static_cast<bool*>(proved));
    });
    if (!solved) return nb::none();
    paths.write_scores();
    return nb::make_tuple(paths.tags, paths.score, certain);
}

template <class Real> void multiply(void* data, int64_t count, double factor) {
    Real* x = static_cast<Real*>(data);
    for (int64_t k = 0; k < count; ++k) x[k] *= Real(factor);
}

// Multiplies both slopes in their own memory by `grad` [B], if that is one number: False if not.
bool scale(nb::handle grad, nb::handle unary, nb::handle pair) {
    View by;
    const nb::object kept = bcrf::packed(grad, 0, by);
    if (by.shape[0] != 1 && by.strides[0] != 0) return false;
    const bool wide = by.number == Number::kDouble;
    if (by.shape[0] == 0 || (!wide && by.number != Number::kFloat)) return false;
    const double factor =
        wide ? *static_cast<const double*>(by.data) : double(*static_cast<const float*>(by.data));
    if (factor == 1) return true;
    for (const nb::handle slope : {unary, pair}) {
        if (slope.is_none()) continue;
        View view;
        bcrf::packed(slope, 4, view);
        if (view.number == Number::kDouble) multiply<double>(view.data, view.size(), factor);
        else multiply<float>(view.data, view.size(), factor);
    }
    return true;
}

}  // namespace

NB_MODULE(_native, m) {
    m.def("use_torch", bcrf::use_torch);
    m.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const Choice& choice : choices()) names.push_back(choice.name);
        return names;
    });
    m.def("instruction_set", [] { return std::string(chosen.name); });
    m.def(
        "use_instruction_set",
        [](const std::string& name) {
            for (const Choice& choice : choices())
                if (name == choice.name) {
                    chosen = choice;
                    return;
                }
            throw std::invalid_argument("this processor, or this build, has no " + name);
        },
        "name"_a);
#ifdef _OPENMP
    m.attr("threads") = true;
#else
    m.attr("threads") = false;
#endif
    // Nameless arguments, because calls are quicker so; where a tensor may be missing, None.
    const auto given = nb::arg();
    const auto maybe = nb::arg().none();
    m.def("crf", crf, given, given, maybe, maybe, maybe, given, given, given, given, given);
    m.def(
        "bregman", bregman, given, given, maybe, maybe, maybe, given, given, given, given, given,
        given, given, given, given);
    m.def("flow", flow, given, given, maybe, given, given, given, given, given, given);
    m.def(
        "most_probable", most_probable, given, given, maybe, given, given, given, given, given,
        given, given);
    m.def("project", project);
    m.def("viterbi", viterbi, given, given, maybe, given, given);
    m.def("certified", certified, given, given, maybe, given, given, given, given);
    m.def("scale", scale, given, maybe, maybe);
}
