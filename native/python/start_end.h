// Start and end scores: added to unary scores before a kernel runs, and their gradient afterwards.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensors.h"

namespace bcrf {

// Calls body(sentence, last position) for each sentence whose length is in 1..n.
template <class Body> void for_each_end(const View& view, const int64_t* lengths, Body body) {
    for (int64_t b = 0; b < view.shape[0]; ++b)
        if (lengths[b] > 0 && lengths[b] <= view.shape[1]) body(b, lengths[b] - 1);
}

// Copies the scores [B][n][T] to `result`; adds start_end[0..T) to the first position and start_end[T..2T) to the
// last position of each sentence.
template <class Real>
void add_start_end(const View& scores, const void* start_end, const int64_t* lengths, void* result) {
    const int64_t n = scores.shape[1], tags = scores.shape[2];
    const Real *source = static_cast<const Real*>(scores.data), *added = static_cast<const Real*>(start_end);
    Real* target = static_cast<Real*>(result);
    const bool whole_rows = scores.strides[1] == tags;  // the positions of a sentence have no gaps
    for (int64_t b = 0; b < scores.shape[0]; ++b) {
        const Real* from = source + b * scores.strides[0];
        Real* to = target + b * n * tags;
        if (whole_rows) std::copy_n(from, n * tags, to);
        else
            for (int64_t i = 0; i < n; ++i) std::copy_n(from + i * scores.strides[1], tags, to + i * tags);
    }
    for_each_end(scores, lengths, [&](int64_t b, int64_t last) {
        Real* sentence = target + b * n * tags;
        for (int64_t t = 0; t < tags; ++t) sentence[t] += added[t];
        for (int64_t t = 0; t < tags; ++t) sentence[last * tags + t] += added[tags + t];
    });
}

// Writes to `result` [2T] the sums over the sentences of the gradient [B][n][T] at the first and last positions.
template <class Real> void sum_start_end(const View& gradient, const int64_t* lengths, void* result) {
    const int64_t tags = gradient.shape[2];
    std::vector<double> sums(size_t(2 * tags));
    for_each_end(gradient, lengths, [&](int64_t b, int64_t last) {
        const Real* first = static_cast<const Real*>(gradient.data) + b * gradient.strides[0];
        for (int64_t t = 0; t < tags; ++t) sums[size_t(t)] += first[t];
        for (int64_t t = 0; t < tags; ++t) sums[size_t(tags + t)] += first[last * gradient.strides[1] + t];
    });
    std::copy(sums.begin(), sums.end(), static_cast<Real*>(result));
}

}  // namespace bcrf
