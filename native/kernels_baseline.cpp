#define BCRF_ISA baseline
#include "kernels.inl"
