#define BCRF_ISA avx2
#include "kernels.inl"
