// The Python door of the kernels. Tensors come as addresses of detached, checked memory: the one
// caller, bcrf/kernels/native.py, vouches for them. (An address costs a tenth of a microsecond, a
// DLPack capsule four; a small problem is solved in ten.)
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Address = uintptr_t;

template <class T> T* pointer(Address address) { return reinterpret_cast<T*>(address); }

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

struct Task {
    bcrf::Problem problem;
    bool wide;
    const bcrf::Kernels& kernels() const { return wide ? *chosen.wide : *chosen.single; }
};

bcrf::Projections projections(
    const std::vector<double>& omegas, int64_t first, double tolerance, Address start, bool right) {
    return {omegas.data(), int64_t(omegas.size()), first, tolerance, pointer<void>(start), right, false};
}

}  // namespace

NB_MODULE(_native, m) {
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

    nb::class_<Task>(m, "Problem")
        .def(
            "__init__",
            [](Task* self, bool wide, int64_t threads, int64_t batch, int64_t n, int64_t tags,
               Address lengths, Address unary, Address left, Address right, int64_t by_sentence,
               int64_t by_position, Address pair, int64_t pairs_by_sentence, int64_t pairs_by_edge,
               bool shared, double scale) {
                new (self) Task{
                    {batch, n, tags, pointer<int64_t>(lengths), pointer<void>(unary),
                     pointer<void>(left), pointer<void>(right), {by_sentence, by_position},
                     pointer<void>(pair), {pairs_by_sentence, pairs_by_edge}, shared, scale,
                     threads},
                    wide};
            });

    using release = nb::call_guard<nb::gil_scoped_release>;
    m.def(
        "crf",
        [](const Task& task, Address tags, Address value, Address unary_gradient,
           Address pair_gradient, Address pair_total, bool every_edge) {
            bcrf::Outputs out = {};
            out.value = pointer<double>(value);
            out.unary_gradient = pointer<void>(unary_gradient);
            out.pair_gradient = pointer<void>(pair_gradient);
            out.pair_total = pointer<void>(pair_total);
            out.every_edge = every_edge;
            return task.kernels().crf(task.problem, pointer<int64_t>(tags), out);
        },
        release(), "problem"_a, nb::kw_only(), "tags"_a = 0, "value"_a = 0, "unary_gradient"_a = 0,
        "pair_gradient"_a = 0, "pair_total"_a = 0, "every_edge"_a = false);
    m.def(
        "bregman",
        [](const Task& task, const std::vector<double>& omegas, int64_t first, double tolerance,
           Address start, bool gauge_right, Address tags, Address value, Address unary_gradient,
           Address pair_gradient, Address pair_total, bool every_edge, Address dual, Address marginals, bool outgoing,
           Address best, Address residual) {
            const bcrf::Outputs out = {
                pointer<double>(value), pointer<void>(unary_gradient), pointer<void>(pair_gradient),
                every_edge, pointer<void>(pair_total), pointer<void>(dual), pointer<void>(marginals), outgoing,
                pointer<int64_t>(best), pointer<double>(residual)};
            return task.kernels().bregman(
                task.problem, projections(omegas, first, tolerance, start, gauge_right),
                pointer<int64_t>(tags), out);
        },
        release(), "problem"_a, "omegas"_a, "first"_a, "tolerance"_a, nb::kw_only(), "start"_a = 0,
        "gauge_right"_a = false, "tags"_a = 0, "value"_a = 0, "unary_gradient"_a = 0,
        "pair_gradient"_a = 0, "pair_total"_a = 0, "every_edge"_a = false, "dual"_a = 0, "marginals"_a = 0,
        "outgoing"_a = false, "best"_a = 0, "residual"_a = 0);
    m.def(
        "viterbi",
        [](const Task& task, Address tags, Address score) {
            return task.kernels().viterbi(
                task.problem, pointer<int64_t>(tags), pointer<double>(score));
        },
        release());
    m.def(
        "certified",
        [](const Task& task, const std::vector<double>& omegas, double temperature, Address tags,
           Address score, Address certified) {
            return task.kernels().certified(
                task.problem, projections(omegas, 1, -1, 0, false), temperature,
                pointer<int64_t>(tags), pointer<double>(score), pointer<bool>(certified));
        },
        release());
}
