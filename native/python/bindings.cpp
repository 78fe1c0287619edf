// The Python bindings of the kernels: they take tensors and return tensors, or None if a sentence is invalid.
// The only caller, bcrf/kernels/native.py, guarantees shapes, dtypes and devices.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "../kernels.h"
#include "mask_scan.h"
#include "start_end.h"
#include "tensors.h"

using namespace nb::literals;
using bcrf::DType;
using bcrf::View;

namespace {

// The kernels of one instruction set, for float and for double scores.
struct InstructionSet {
    const char* name;
    bcrf::Kernels for_float, for_double;
};

// The instruction sets that this build has and this processor supports, the best one last.
std::vector<InstructionSet> supported() {
    std::vector<InstructionSet> found = {
        {"baseline", bcrf::baseline::kernels<float>(), bcrf::baseline::kernels<double>()}};
#ifdef BCRF_HAVE_AVX2
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2"))
        found.push_back({"avx2", bcrf::avx2::kernels<float>(), bcrf::avx2::kernels<double>()});
#endif
    return found;
}

InstructionSet chosen = supported().back();

// A problem and the tensors that hold it. `lengths` may be None: all sentences have length n.
struct Call {
    bcrf::Problem problem = {};
    DType dtype = DType::kOther;

    Call(nb::handle unary, nb::handle transitions, nb::handle lengths, int64_t threads, double scale = 1) {
        View view;
        keep(unary, 1, view);
        set_unary(view, view.shape[1]);
        problem.unary = view.data;
        set_transitions(transitions, lengths, threads, scale);
    }
    Call(
        nb::handle left, nb::handle right, int64_t n, nb::handle transitions, nb::handle lengths,
        int64_t threads) {
        View view, other;
        keep(left, 3, view);
        keep(right, 3, other);
        set_unary(view, n);
        problem.left = view.data;
        problem.right = other.data;
        set_transitions(transitions, lengths, threads, 1);
    }

    template <class Body> bool run(Body body) const {
        const bcrf::Kernels& kernels = dtype == DType::kDouble ? chosen.for_double : chosen.for_float;
        const nb::gil_scoped_release release;
        return body(kernels, problem) == 0;
    }

    void* keep(nb::handle tensor, int dims, View& view) {
        kept_.push_back(bcrf::packed(tensor, dims, view));
        return view.data;
    }
    const int64_t* int64_data(nb::handle tensor, int dims) {
        if (tensor.is_none()) return nullptr;
        View view;
        keep(tensor, dims, view);
        if (view.dtype != DType::kInt) throw std::invalid_argument("expected int64");
        return static_cast<const int64_t*>(view.data);
    }
    // Sets which transitions are allowed; the others are removed from every edge. None: all are allowed.
    void set_allowed(nb::handle allowed) {
        if (allowed.is_none()) return;
        View view;
        keep(allowed, 2, view);
        if (problem.shared || view.dtype != DType::kBool)
            throw std::invalid_argument("allowed must be bool, and needs transitions per edge");
        problem.allowed = static_cast<const bool*>(view.data);
    }
    nb::object make(DType kind, std::initializer_list<int64_t> shape, void*& data) const {
        View view;
        nb::object tensor = bcrf::make_tensor(kind, shape, view);
        data = view.data;
        return tensor;
    }

  private:
    std::vector<nb::object> kept_;
    std::vector<int64_t> full_;

    void set_unary(const View& view, int64_t n) {
        dtype = view.dtype;
        if (view.dims != 3 || (dtype != DType::kFloat && dtype != DType::kDouble))
            throw std::invalid_argument("expected float32 or float64 scores with 3 dimensions");
        problem.batch = view.shape[0], problem.n = n, problem.num_tags = view.shape[2];
        problem.unary_strides[0] = view.strides[0], problem.unary_strides[1] = view.strides[1];
    }
    void set_transitions(nb::handle transitions, nb::handle lengths, int64_t threads, double scale) {
        View view;
        keep(transitions, 2, view);
        if (view.dtype != dtype) throw std::invalid_argument("scores differ in dtype");
        problem.transitions = view.data;
        problem.shared = view.dims == 2;
        if (!problem.shared)
            problem.transition_strides[0] = view.strides[0], problem.transition_strides[1] = view.strides[1];
        problem.lengths = int64_data(lengths, 1);
        if (!problem.lengths) {
            full_.assign(size_t(problem.batch), problem.n);
            problem.lengths = full_.data();
        }
        problem.threads = threads;
        problem.scale = scale;
    }
};

// Output tensors for a value and the derivatives that are asked for.
struct ValueAndGradient {
    bcrf::Outputs out = {};
    nb::object value, unary = nb::none(), transitions = nb::none(), total = nb::none();

    ValueAndGradient(const Call& call, bool by_unary, bool by_pair, bool every_edge, bool in_double) {
        const bcrf::Problem& p = call.problem;
        out.value_in_double = in_double || call.dtype == DType::kDouble;
        value = call.make(out.value_in_double ? DType::kDouble : DType::kFloat, {p.batch}, out.value);
        if (by_unary) unary = call.make(call.dtype, {p.batch, p.n, p.num_tags}, out.unary_gradient);
        out.every_edge = every_edge;
        const int64_t m = p.n > 0 ? p.n - 1 : 0;
        if (by_pair && p.shared && !every_edge) {
            transitions = call.make(call.dtype, {p.batch, p.num_tags, p.num_tags}, out.transition_gradient);
            total = call.make(call.dtype, {p.num_tags, p.num_tags}, out.transition_gradient_sum);
        } else if (by_pair) {
            transitions = call.make(call.dtype, {p.batch, m, p.num_tags, p.num_tags}, out.transition_gradient);
        }
    }
    nb::object result(bool solved) const {
        return solved ? nb::object(nb::make_tuple(value, unary, transitions, total)) : nb::none();
    }
};

bcrf::Projections projections(
    const std::vector<double>& omegas, int64_t first, double tolerance, bool right) {
    return {omegas.data(), int64_t(omegas.size()), first, tolerance, nullptr, right, false};
}

nb::object crf(
    nb::handle unary, nb::handle transitions, nb::handle lengths, nb::handle allowed, nb::handle tags,
    bool by_unary, bool by_pair, bool every_edge, bool in_double, int64_t threads) {
    Call call(unary, transitions, lengths, threads);
    call.set_allowed(allowed);
    const int64_t* gold = call.int64_data(tags, 2);
    const ValueAndGradient gradients(call, by_unary, by_pair, every_edge, in_double);
    return gradients.result(call.run(
        [&](auto& kernels, auto& problem) { return kernels.crf(problem, gold, gradients.out); }));
}

nb::object bregman(
    nb::handle unary, nb::handle transitions, nb::handle lengths, nb::handle allowed, nb::handle tags,
    bool by_unary, bool by_pair, bool every_edge, bool in_double, int64_t threads,
    const std::vector<double>& omegas, int64_t first, double tolerance, bool gauge_right) {
    Call call(unary, transitions, lengths, threads);
    call.set_allowed(allowed);
    const int64_t* gold = call.int64_data(tags, 2);
    const ValueAndGradient gradients(call, by_unary, by_pair, every_edge, in_double);
    const bcrf::Projections steps = projections(omegas, first, tolerance, gauge_right);
    return gradients.result(call.run([&](auto& kernels, auto& problem) {
        return kernels.bregman(problem, steps, gold, gradients.out);
    }));
}

nb::object bregman_result(
    nb::handle unary, nb::handle transitions, nb::handle lengths, int64_t threads,
    const std::vector<double>& omegas, int64_t first, double tolerance, bool gauge_right,
    bool outgoing) {
    const Call call(unary, transitions, lengths, threads);
    const bcrf::Problem& p = call.problem;
    bcrf::Outputs out = {};
    out.value_in_double = true;
    out.outgoing_marginals = outgoing;
    void* residual;
    const nb::object value = call.make(DType::kDouble, {p.batch}, out.value);
    const nb::object residuals = call.make(DType::kDouble, {p.batch}, residual);
    const nb::object lam = call.make(call.dtype, {p.batch, p.n, p.num_tags}, out.dual);
    const nb::object marginals = call.make(call.dtype, {p.batch, p.n, p.num_tags}, out.marginals);
    out.residual = static_cast<double*>(residual);
    const bcrf::Projections steps = projections(omegas, first, tolerance, gauge_right);
    const bool solved = call.run([&](auto& kernels, auto& problem) {
        return kernels.bregman(problem, steps, nullptr, out);
    });
    return solved ? nb::object(nb::make_tuple(value, residuals, lam, marginals)) : nb::none();
}

nb::object most_probable(
    nb::handle unary, nb::handle transitions, nb::handle lengths, int64_t threads,
    const std::vector<double>& omegas, int64_t first, double tolerance, bool gauge_right,
    bool outgoing, double temperature) {
    const Call call(unary, transitions, lengths, threads, 1 / temperature);
    bcrf::Outputs out = {};
    out.outgoing_marginals = outgoing;
    void* best;
    const nb::object tags = call.make(DType::kInt, {call.problem.batch, call.problem.n}, best);
    out.best_tags = static_cast<int64_t*>(best);
    const bcrf::Projections steps = projections(omegas, first, tolerance, gauge_right);
    const bool solved = call.run([&](auto& kernels, auto& problem) {
        return kernels.bregman(problem, steps, nullptr, out);
    });
    return solved ? tags : nb::none();
}

// The projections of a folded chain: `left` and `right` are the shares of the unary scores.
nb::object project(
    nb::handle left, nb::handle right, nb::handle transitions, nb::handle lengths, nb::handle start,
    int64_t threads, const std::vector<double>& omegas, int64_t first, double tolerance) {
    View view;
    const nb::object lam = bcrf::packed(start, 3, view);
    const Call call(left, right, view.shape[1], transitions, lengths, threads);
    bcrf::Projections steps = projections(omegas, first, tolerance, false);
    steps.start = view.data;
    bcrf::Outputs out = {};
    const nb::object dual =
        call.make(call.dtype, {view.shape[0], view.shape[1], view.shape[2]}, out.dual);
    const bool solved = call.run([&](auto& kernels, auto& problem) {
        return kernels.bregman(problem, steps, nullptr, out);
    });
    return solved ? dual : nb::none();
}

// Output tensors for tags [B, n] and scores [B]. The scores are double if `in_double`; otherwise they have the
// dtype of the given scores.
struct PathsAndScores {
    void *tags_data, *score_data;
    nb::object tags, score;
    std::vector<double> scores;

    PathsAndScores(const Call& call, bool in_double)
        : tags(call.make(DType::kInt, {call.problem.batch, call.problem.n}, tags_data)),
          score(call.make(in_double ? DType::kDouble : call.dtype, {call.problem.batch}, score_data)),
          scores(size_t(call.problem.batch)), narrow_(!in_double && call.dtype == DType::kFloat) {}
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
    nb::handle unary, nb::handle transitions, nb::handle lengths, bool in_double, int64_t threads) {
    const Call call(unary, transitions, lengths, threads);
    PathsAndScores paths(call, in_double);
    const bool solved = call.run([&](auto& kernels, auto& problem) {
        return kernels.viterbi(problem, paths.best(), paths.scores.data());
    });
    if (!solved) return nb::none();
    paths.write_scores();
    return nb::make_tuple(paths.tags, paths.score);
}

nb::object certified(
    nb::handle unary, nb::handle transitions, nb::handle lengths, bool in_double, int64_t threads,
    const std::vector<double>& omegas, double temperature) {
    const Call call(unary, transitions, lengths, threads);
    PathsAndScores paths(call, in_double);
    void* proved;
    const nb::object certain = call.make(DType::kBool, {call.problem.batch}, proved);
    const bcrf::Projections steps = projections(omegas, 1, -1, false);
    const bool solved = call.run([&](auto& kernels, auto& problem) {
        return kernels.certified(
            problem, steps, temperature, paths.best(), paths.scores.data(),
            static_cast<bool*>(proved));
    });
    if (!solved) return nb::none();
    paths.write_scores();
    return nb::make_tuple(paths.tags, paths.score, certain);
}

// Returns keep [B, n] and lengths [B] (both None: every position is kept), whether the kept positions come first
// in every sentence, and whether the mask keeps every first position. `mask` is bool, `tags` is int64; one of
// them may be None.
nb::object scan_mask(nb::handle mask, nb::handle tags) {
    View mask_view, tags_view, keep_view, lengths_view;
    nb::object kept[2];
    if (!mask.is_none()) kept[0] = bcrf::packed(mask, 0, mask_view);
    if (!tags.is_none()) kept[1] = bcrf::packed(tags, 0, tags_view);
    const View& given = mask.is_none() ? tags_view : mask_view;
    if (given.dims != 2 || (!mask.is_none() && mask_view.dtype != DType::kBool) ||
        (!tags.is_none() && tags_view.dtype != DType::kInt))
        throw std::invalid_argument("expected a bool mask [B, n] or int64 tags [B, n]");
    const int64_t batch = given.shape[0], n = given.shape[1];
    const nb::object keep = bcrf::make_tensor(DType::kBool, {batch, n}, keep_view);
    const nb::object lengths = bcrf::make_tensor(DType::kInt, {batch}, lengths_view);
    const bcrf::MaskScan found = bcrf::scan_mask(
        mask_view, tags_view, batch, n, static_cast<bool*>(keep_view.data),
        static_cast<int64_t*>(lengths_view.data));
    if (found.all_kept) return nb::make_tuple(nb::none(), nb::none(), true, found.mask_first);
    return nb::make_tuple(keep, lengths, found.compact, found.mask_first);
}

// The unary scores [B, n, T] plus start scores and end scores, which are `start_end` [2T].
nb::object add_start_end(nb::handle unary, nb::handle start_end, nb::handle lengths) {
    View scores, added, ends, result;
    const nb::object kept[] = {
        bcrf::packed(unary, 1, scores), bcrf::packed(start_end, 1, added), bcrf::packed(lengths, 1, ends)};
    if (scores.dims != 3 || added.dtype != scores.dtype || ends.dtype != DType::kInt)
        throw std::invalid_argument("expected [B, n, T] and [2T] of one dtype, and int64 lengths");
    const nb::object tensor =
        bcrf::make_tensor(scores.dtype, {scores.shape[0], scores.shape[1], scores.shape[2]}, result);
    const int64_t* length = static_cast<const int64_t*>(ends.data);
    if (scores.dtype == DType::kDouble) bcrf::add_start_end<double>(scores, added.data, length, result.data);
    else bcrf::add_start_end<float>(scores, added.data, length, result.data);
    return tensor;
}

// The gradient [2T] with respect to start and end scores: the sums over the sentences of the gradient [B, n, T] with
// respect to the unary scores, at the first and at the last positions.
nb::object sum_start_end(nb::handle by_unary, nb::handle lengths) {
    View gradient, ends, result;
    const nb::object kept[] = {bcrf::packed(by_unary, 1, gradient), bcrf::packed(lengths, 1, ends)};
    const nb::object tensor = bcrf::make_tensor(gradient.dtype, {2 * gradient.shape[2]}, result);
    const int64_t* length = static_cast<const int64_t*>(ends.data);
    if (gradient.dtype == DType::kDouble) bcrf::sum_start_end<double>(gradient, length, result.data);
    else bcrf::sum_start_end<float>(gradient, length, result.data);
    return tensor;
}

template <class Real> void multiply(void* data, int64_t count, double factor) {
    Real* x = static_cast<Real*>(data);
    for (int64_t k = 0; k < count; ++k) x[k] *= Real(factor);
}

// Multiplies both gradients in place by `grad` [B] if all its elements are one number in memory. Returns False
// if they are not.
bool scale(nb::handle grad, nb::handle unary, nb::handle transitions) {
    View by;
    const nb::object kept = bcrf::packed(grad, 0, by);
    if (by.shape[0] != 1 && by.strides[0] != 0) return false;
    const bool in_double = by.dtype == DType::kDouble;
    if (by.shape[0] == 0 || (!in_double && by.dtype != DType::kFloat)) return false;
    const double factor =
        in_double ? *static_cast<const double*>(by.data) : double(*static_cast<const float*>(by.data));
    if (factor == 1) return true;
    for (const nb::handle gradient : {unary, transitions}) {
        if (gradient.is_none()) continue;
        View view;
        bcrf::packed(gradient, 4, view);
        if (view.dtype == DType::kDouble) multiply<double>(view.data, view.size(), factor);
        else multiply<float>(view.data, view.size(), factor);
    }
    return true;
}

}  // namespace

NB_MODULE(_native, m) {
    m.def("use_torch", bcrf::use_torch);
    m.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const InstructionSet& set : supported()) names.push_back(set.name);
        return names;
    });
    m.def("instruction_set", [] { return std::string(chosen.name); });
    m.def(
        "use_instruction_set",
        [](const std::string& name) {
            for (const InstructionSet& set : supported())
                if (name == set.name) {
                    chosen = set;
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
    // Positional arguments without names make calls faster. `maybe` marks arguments that may be None.
    const auto given = nb::arg();
    const auto maybe = nb::arg().none();
    m.def("crf", crf, given, given, maybe, maybe, maybe, given, given, given, given, given);
    m.def(
        "bregman", bregman, given, given, maybe, maybe, maybe, given, given, given, given, given,
        given, given, given, given);
    m.def("bregman_result", bregman_result, given, given, maybe, given, given, given, given, given, given);
    m.def(
        "most_probable", most_probable, given, given, maybe, given, given, given, given, given,
        given, given);
    m.def("project", project);
    m.def("viterbi", viterbi, given, given, maybe, given, given);
    m.def("certified", certified, given, given, maybe, given, given, given, given);
    m.def("scale", scale, given, maybe, maybe);
    m.def("scan_mask", scan_mask, maybe, maybe);
    m.def("add_start_end", add_start_end, given, given, given);
    m.def("sum_start_end", sum_start_end, given, given);
}
