// One pass over a mask and gold tags: which positions are kept, and whether the sentences are compact already.
#pragma once
#include <cstdint>

#include "../kernels.h"
#include "tensors.h"

namespace bcrf {

struct MaskScan {
    bool all_kept = true;      // no position is removed
    bool compact = true;       // the kept positions of every sentence come first
    bool mask_first = true;    // the mask keeps the first position of every sentence
};

// Writes keep [B][n] and lengths [B]. A position is removed if `mask` is false there, or if its tag is kPaddingTag.
// Either may be absent (data null).
inline MaskScan scan_mask(
    const View& mask, const View& tags, int64_t batch, int64_t n, bool* keep, int64_t* lengths) {
    MaskScan found;
    for (int64_t b = 0; b < batch; ++b, keep += n) {
        int64_t kept = 0;
        for (int64_t i = 0; i < n; ++i) {
            const bool by_mask = !mask.data || static_cast<const bool*>(mask.data)[b * mask.strides[0] + i * mask.strides[1]];
            const bool by_tag =
                !tags.data ||
                static_cast<const int64_t*>(tags.data)[b * tags.strides[0] + i * tags.strides[1]] != kPaddingTag;
            if (i == 0) found.mask_first &= by_mask;
            keep[i] = by_mask && by_tag;
            found.compact &= !keep[i] || kept == i;  // a kept position after a removed one
            kept += keep[i];
        }
        lengths[b] = kept;
        found.all_kept &= kept == n;
    }
    return found;
}

}  // namespace bcrf
