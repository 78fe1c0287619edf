// Memory that is aligned to 64 bytes, not initialised, and reused by the next call.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <new>

namespace {

// Keeps blocks that were freed, for the next call, which usually needs blocks of about the same sizes.
// A block that is new from the system costs one page fault per 4 KiB, which takes as long as some kernels.
class FreeList {
  public:
    // `capacity`: how many bytes are kept at most.
    explicit constexpr FreeList(size_t capacity) : capacity_(capacity) {}
    ~FreeList() {
        for (Block& block : blocks_) drop(block);
    }

    // Returns a block of rounded(bytes), or null. Blocks that were freed last are reused first, because
    // they may still be in the cache.
    void* take(size_t bytes) {
        bytes = rounded(bytes);
        for (size_t k = 1; k <= kBlocks; ++k) {
            Block& block = blocks_[(next_ - k) % kBlocks];
            if (!block.data || block.bytes != bytes) continue;
            void* data = block.data;
            block.data = nullptr, held_ -= bytes;
            return data;
        }
        return allocate(bytes);
    }
    static void* allocate(size_t bytes) { return std::aligned_alloc(64, rounded(bytes)); }
    void give_back(void* data, size_t bytes) {
        bytes = rounded(bytes);
        if (!data || bytes > capacity_) return std::free(data);
        // The oldest blocks make room.
        drop(blocks_[next_]);
        for (size_t k = next_; held_ + bytes > capacity_; k = (k + 1) % kBlocks) drop(blocks_[k]);
        blocks_[next_] = {data, bytes}, held_ += bytes;
        next_ = (next_ + 1) % kBlocks;
    }

  private:
    static constexpr size_t kBlocks = 128;  // a power of two, because `take` relies on unsigned overflow
    struct Block {
        void* data;
        size_t bytes;
    };
    Block blocks_[kBlocks] = {};  // a ring; the next block goes to next_
    size_t next_ = 0, held_ = 0, capacity_;

    // Rounds up by at most an eighth, so that batches of similar sizes can share blocks. A page that is
    // never written takes no memory.
    static size_t rounded(size_t bytes) {
        size_t step = 64;
        while (16 * step <= bytes) step *= 2;
        return (bytes + step - 1) / step * step;
    }
    void drop(Block& block) {
        if (!block.data) return;
        std::free(block.data);
        block.data = nullptr, held_ -= block.bytes;
    }
};

// The scratch memory of the calling thread.
inline FreeList& scratch() {
    static thread_local FreeList mine(size_t(8) << 20);
    return mine;
}

// An array in scratch memory.
template <class Real> class Array {
  public:
    Array() = default;
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    ~Array() { scratch().give_back(data_, bytes_); }

    void allocate(int64_t count) {
        scratch().give_back(data_, bytes_);
        bytes_ = (size_t(count) * sizeof(Real) / 64 + 1) * 64;
        data_ = static_cast<Real*>(scratch().take(bytes_));
        if (!data_) throw std::bad_alloc();
    }
    operator Real*() const { return data_; }

  private:
    Real* data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace
