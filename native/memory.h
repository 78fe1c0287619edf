// Scratch memory of one thread: aligned, never initialised, freed at the end of the call.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <new>

namespace {

template <class Real> class Array {
  public:
    Array() = default;
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    ~Array() { std::free(data_); }

    void allocate(int64_t count) {
        const size_t bytes = (size_t(count) * sizeof(Real) / 64 + 1) * 64;
        std::free(data_);
        data_ = static_cast<Real*>(std::aligned_alloc(64, bytes));
        if (!data_) throw std::bad_alloc();
    }
    operator Real*() const { return data_; }

  private:
    Real* data_ = nullptr;
};

}  // namespace
