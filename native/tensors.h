// Tensors of Python, seen from C++, without torch's headers or ABI: through the table of functions
// that DLPack defines for this (`__dlpack_c_exchange_api__`, 0.1 us a tensor), or, where torch is
// older than that table, through the tensors' own methods.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <initializer_list>

namespace nb = nanobind;

namespace bcrf {

enum class Number { kFloat, kDouble, kInt, kBool, kOther };

// The memory of a tensor, which its owner keeps alive. Strides count elements.
struct View {
    void* data = nullptr;
    int dims = 0;
    int64_t shape[4] = {}, strides[4] = {};
    Number number = Number::kOther;

    int64_t size() const {
        int64_t product = 1;
        for (int d = 0; d < dims; ++d) product *= shape[d];
        return product;
    }
    // No gaps in the last `count` dimensions.
    bool packed(int count) const {
        int64_t expected = 1;
        for (int d = dims - 1; d >= 0 && d >= dims - count; --d) {
            if (shape[d] != 1 && strides[d] != expected) return false;
            expected *= shape[d];
        }
        return true;
    }
};

// Called first of all, with `torch`.
void use_torch(nb::object torch);

// `tensor`, copied if it has gaps in its last `count` dimensions or is negated when it is read.
nb::object packed(nb::handle tensor, int count, View& view);

// A new tensor on the CPU, its memory not set.
nb::object make_tensor(Number number, std::initializer_list<int64_t> shape, View& view);

}  // namespace bcrf
