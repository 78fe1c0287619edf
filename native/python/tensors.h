// Access to torch tensors without torch's headers or ABI: through the table of C functions that DLPack defines
// (`__dlpack_c_exchange_api__`, 0.1 us per tensor), or, if torch is older than that table, through the methods of
// the tensors.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <initializer_list>

namespace nb = nanobind;

namespace bcrf {

enum class DType { kFloat, kDouble, kInt, kBool, kOther };

// The memory of a tensor. It does not own the tensor. Strides count elements.
struct View {
    void* data = nullptr;
    int dims = 0;
    int64_t shape[4] = {}, strides[4] = {};
    DType dtype = DType::kOther;

    int64_t size() const {
        int64_t product = 1;
        for (int d = 0; d < dims; ++d) product *= shape[d];
        return product;
    }
    // Whether the last `count` dimensions have no gaps.
    bool packed(int count) const {
        int64_t expected = 1;
        for (int d = dims - 1; d >= 0 && d >= dims - count; --d) {
            if (shape[d] != 1 && strides[d] != expected) return false;
            expected *= shape[d];
        }
        return true;
    }
};

// Looks up what the other functions need; must be called first, with the module `torch`.
void use_torch(nb::object torch);

// Returns `tensor`, or a copy if its last `count` dimensions have gaps or its negative bit is set.
nb::object packed(nb::handle tensor, int count, View& view);

// Returns a new, uninitialised tensor on the CPU.
nb::object make_tensor(DType dtype, std::initializer_list<int64_t> shape, View& view);

}  // namespace bcrf
