// Memory that is aligned, never initialised, and kept for the next call when it is given back.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <new>

namespace {

// What was given back, for the next call, which mostly wants about as much: memory that is new from the
// system costs a fault per page, as much as some of the kernels.
class Spare {
  public:
    // `most`: bytes that are kept.
    explicit constexpr Spare(size_t most) : most_(most) {}
    ~Spare() {
        for (Piece& piece : pieces_) drop(piece);
    }

    // A piece of rounded(bytes), or null; the one that was given back last, if there is one.
    void* take(size_t bytes) {
        bytes = rounded(bytes);
        for (size_t k = 1; k <= kPieces; ++k) {
            Piece& piece = pieces_[(next_ - k) % kPieces];
            if (!piece.data || piece.bytes != bytes) continue;
            void* data = piece.data;
            piece.data = nullptr, held_ -= bytes;
            return data;
        }
        return fresh(bytes);
    }
    static void* fresh(size_t bytes) { return std::aligned_alloc(64, rounded(bytes)); }
    void give(void* data, size_t bytes) {
        bytes = rounded(bytes);
        if (!data || bytes > most_) return std::free(data);
        // Those that have waited longest make room.
        drop(pieces_[next_]);
        for (size_t k = next_; held_ + bytes > most_; k = (k + 1) % kPieces) drop(pieces_[k]);
        pieces_[next_] = {data, bytes}, held_ += bytes;
        next_ = (next_ + 1) % kPieces;
    }

  private:
    static constexpr size_t kPieces = 128;  // a power of two
    struct Piece {
        void* data;
        size_t bytes;
    };
    Piece pieces_[kPieces] = {};
    size_t next_ = 0, held_ = 0, most_;

    // Up to an eighth more: batches are seldom of exactly the same size. (A page that nobody writes to
    // takes no memory.)
    static size_t rounded(size_t bytes) {
        size_t step = 64;
        while (16 * step <= bytes) step *= 2;
        return (bytes + step - 1) / step * step;
    }
    void drop(Piece& piece) {
        if (!piece.data) return;
        std::free(piece.data);
        piece.data = nullptr, held_ -= piece.bytes;
    }
};

// Scratch memory of one thread.
inline Spare& spare() {
    static thread_local Spare mine(size_t(8) << 20);
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
