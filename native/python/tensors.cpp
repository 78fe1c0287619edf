#include "tensors.h"

#include "../runtime/memory.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <string>

namespace bcrf {
namespace {

// The structures of dlpack.h, DLPack 1.3.
namespace dl {
struct Type {
    uint8_t code, bits;
    uint16_t lanes;
};
struct Tensor {
    void* data;
    struct {
        int32_t type, index;
    } device;
    int32_t dims;
    Type dtype;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
};
struct Managed {
    uint32_t major, minor;
    void* context;
    void (*release)(Managed*);
    uint64_t flags;
    Tensor tensor;
};
struct Exchange {
    uint32_t major, minor;
    void* older;
    int (*allocate)(Tensor*, Managed**, void*, void (*)(void*, const char*, const char*));
    int (*from_python)(void*, Managed**);
    int (*to_python)(Managed*, void**);
    int (*view)(void*, Tensor*);
    int (*stream)(int, int32_t, void**);
};
constexpr int32_t kCpu = 1;
enum Code : uint8_t { kInt = 0, kFloat = 2, kBool = 6 };
}  // namespace dl

const dl::Exchange* exchange = nullptr;
// Used if torch has no exchange table. These references are never released: a destructor would run after Python
// has cleared its modules.
PyObject *torch_empty, *dtypes[4], *cpu;

DType dtype_of(const dl::Tensor& x) {
    if (x.dtype.lanes != 1) return DType::kOther;
    if (x.dtype.code == dl::kFloat && x.dtype.bits == 32) return DType::kFloat;
    if (x.dtype.code == dl::kFloat && x.dtype.bits == 64) return DType::kDouble;
    if (x.dtype.code == dl::kInt && x.dtype.bits == 64) return DType::kInt;
    if (x.dtype.code == dl::kBool && x.dtype.bits == 8) return DType::kBool;
    return DType::kOther;
}

View view_of(nb::handle tensor) {
    View view;
    if (exchange) {
        dl::Tensor x;
        if (exchange->view(tensor.ptr(), &x)) throw nb::python_error();
        if (x.dims > 4 || x.device.type != dl::kCpu)
            throw std::invalid_argument("expected a tensor of at most 4 dimensions on the CPU");
        view.data = static_cast<char*>(x.data) + x.byte_offset;
        view.dims = x.dims;
        for (int d = 0; d < x.dims; ++d) view.shape[d] = x.shape[d], view.strides[d] = x.strides[d];
        view.dtype = dtype_of(x);
    } else {
        view.data = reinterpret_cast<void*>(nb::cast<uintptr_t>(tensor.attr("data_ptr")()));
        view.dims = nb::cast<int>(tensor.attr("dim")());
        if (view.dims > 4) throw std::invalid_argument("expected at most 4 dimensions");
        const nb::object shape = tensor.attr("shape"), strides = tensor.attr("stride")();
        for (int d = 0; d < view.dims; ++d) {
            view.shape[d] = nb::cast<int64_t>(shape[d]);
            view.strides[d] = nb::cast<int64_t>(strides[d]);
        }
        const nb::object dtype = tensor.attr("dtype");
        for (int k = 0; k < 4; ++k)
            if (dtype.is(dtypes[k])) view.dtype = DType(k);
    }
    if (!view.data && view.size() > 0) throw std::invalid_argument("a tensor has no memory");
    return view;
}

dl::Type type_of(DType dtype) {
    switch (dtype) {
        case DType::kFloat: return {dl::kFloat, 32, 1};
        case DType::kDouble: return {dl::kFloat, 64, 1};
        case DType::kInt: return {dl::kInt, 64, 1};
        default: return {dl::kBool, 8, 1};
    }
}

// Memory of freed result tensors, whichever thread freed them. The list is never destroyed, because tensors may
// outlive it. It is off under the sanitizers, which must see every allocation.
#ifdef BCRF_SANITIZE
constexpr size_t kMaxKeptBytes = 0;
#else
constexpr size_t kMaxKeptBytes = size_t(64) << 20;  // the gradients of a few large batches
#endif
FreeList& results = *new FreeList(kMaxKeptBytes);
std::mutex results_mutex;

// A result tensor: this header, followed by its elements in the same block of memory.
struct alignas(64) Result {
    dl::Managed managed;
    int64_t shape[4], strides[4];
    size_t bytes;  // of header and elements

    static Result* create(DType dtype, std::initializer_list<int64_t> shape) {
        const dl::Type type = type_of(dtype);
        int64_t count = 1;
        for (const int64_t size : shape) count *= size;
        const size_t bytes = sizeof(Result) + size_t(count) * type.bits / 8;
        Result* result = static_cast<Result*>(take(bytes));
        if (!result) throw std::bad_alloc();
        result->bytes = bytes;
        dl::Tensor x = {};
        x.data = result + 1, x.device.type = dl::kCpu, x.dtype = type;
        for (const int64_t size : shape) result->shape[x.dims++] = size;
        int64_t stride = 1;
        for (int d = x.dims - 1; d >= 0; --d) {
            result->strides[d] = stride;
            stride *= std::max(result->shape[d], int64_t(1));
        }
        x.shape = result->shape, x.strides = result->strides;
        result->managed = {1, 0, result, release, 0, x};
        return result;
    }

  private:
    // If another thread holds the lock (or held it when this process was forked), memory is not reused.
    static void* take(size_t bytes) {
        const std::unique_lock<std::mutex> lock(results_mutex, std::try_to_lock);
        return lock ? results.take(bytes) : FreeList::allocate(bytes);
    }
    static void release(dl::Managed* managed) {
        Result* result = static_cast<Result*>(managed->context);
        const std::unique_lock<std::mutex> lock(results_mutex, std::try_to_lock);
        if (lock) results.give_back(result, result->bytes);
        else std::free(result);
    }
};

}  // namespace

void use_torch(nb::object torch) {
    const nb::object type = torch.attr("Tensor");
    exchange = nullptr;
    if (nb::hasattr(type, "__dlpack_c_exchange_api__")) {
        const nb::object capsule = type.attr("__dlpack_c_exchange_api__");
        const auto* table = static_cast<const dl::Exchange*>(
            PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
        if (!table) PyErr_Clear();  // a capsule of another version of DLPack
        if (table && table->major == 1 && table->view && table->to_python)
            exchange = table;
    }
    torch_empty = nb::object(torch.attr("empty")).release().ptr();
    const char* names[] = {"float32", "float64", "int64", "bool"};
    for (int k = 0; k < 4; ++k) dtypes[k] = nb::object(torch.attr(names[k])).release().ptr();
    cpu = nb::object(torch.attr("device")("cpu")).release().ptr();
}

nb::object packed(nb::handle tensor, int count, View& view) {
    nb::object x = nb::borrow(tensor);
    view = view_of(x);
    if (nb::cast<bool>(x.attr("is_neg")())) {
        x = x.attr("detach")().attr("resolve_neg")();
        view = view_of(x);
    }
    if (!view.packed(count)) {
        x = x.attr("detach")().attr("contiguous")();
        view = view_of(x);
    }
    return x;
}

nb::object make_tensor(DType dtype, std::initializer_list<int64_t> shape, View& view) {
    nb::object tensor;
    if (exchange) {
        void* object = nullptr;
        if (exchange->to_python(&Result::create(dtype, shape)->managed, &object))
            throw nb::python_error();
        tensor = nb::steal(static_cast<PyObject*>(object));
    } else {
        nb::list sizes;
        for (const int64_t size : shape) sizes.append(size);
        tensor = nb::borrow(torch_empty)(
            sizes, nb::arg("dtype") = nb::borrow(dtypes[int(dtype)]),
            nb::arg("device") = nb::borrow(cpu));
    }
    view = view_of(tensor);
    return tensor;
}

}  // namespace bcrf
