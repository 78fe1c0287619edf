// Scratch memory of one thread: aligned, never initialised, given back at the end of the call.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <new>

namespace {

// What a thread gave back, for its next call, which mostly wants the same: memory that is new from the
// system costs a fault per page, as much as some of the kernels.
class Spare {
  public:
    ~Spare() {
        for (Piece& piece : pieces_) drop(piece);
    }
    void* take(size_t bytes) {
        for (Piece& piece : pieces_)
            if (piece.data && piece.bytes == bytes) {
                void* data = piece.data;
                piece.data = nullptr, held_ -= bytes;
                return data;
            }
        return std::aligned_alloc(64, bytes);
    }
    void give(void* data, size_t bytes) {
        if (!data || bytes > kMost) return std::free(data);
        // Those that have waited longest make room.
        drop(pieces_[next_]);
        for (size_t k = next_; held_ + bytes > kMost; k = (k + 1) % kPieces) drop(pieces_[k]);
        pieces_[next_] = {data, bytes}, held_ += bytes;
        next_ = (next_ + 1) % kPieces;
    }

  private:
    static constexpr size_t kMost = size_t(8) << 20, kPieces = 128;
    struct Piece {
        void* data;
        size_t bytes;
    };
    Piece pieces_[kPieces] = {};
    size_t next_ = 0, held_ = 0;

    void drop(Piece& piece) {
        if (!piece.data) return;
        std::free(piece.data);
        piece.data = nullptr, held_ -= piece.bytes;
    }
};

inline Spare& spare() {
    static thread_local Spare mine;
    return mine;
}

template <class Real> class Array {
  public:
    Array() = default;
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    ~Array() { spare().give(data_, bytes_); }

    void allocate(int64_t count) {
        spare().give(data_, bytes_);
        bytes_ = (size_t(count) * sizeof(Real) / 64 + 1) * 64;
        data_ = static_cast<Real*>(spare().take(bytes_));
        if (!data_) throw std::bad_alloc();
    }
    operator Real*() const { return data_; }

  private:
    Real* data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace
