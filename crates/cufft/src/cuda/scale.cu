// Multiplies the elements of a batch of transforms where they lie.
//
// Element [i][j][k] of transform b begins at b * distance + i * step0 + j * step1 + k * step2, in
// elements of PARTS numbers each (1: real, 2: complex).

typedef long long i64;

#if HALF
// The two conversions that are needed, without the toolkit's headers.
struct Number {
    unsigned short bits;
};
__device__ __forceinline__ void multiply(Number& number, double factor) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(number.bits));
    value *= static_cast<float>(factor);
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(number.bits) : "f"(value));
}
#else
typedef NUMBER Number;
__device__ __forceinline__ void multiply(Number& number, double factor) { number *= static_cast<Number>(factor); }
#endif

extern "C" __global__ void scale(Number* data, double factor, i64 count, i64 distance, i64 n0, i64 n1, i64 n2,
                                 i64 step0, i64 step1, i64 step2) {
    const i64 stride = static_cast<i64>(gridDim.x) * blockDim.x;
    for (i64 at = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += stride) {
        i64 rest = at;
        const i64 k = rest % n2;
        rest /= n2;
        const i64 j = rest % n1;
        rest /= n1;
        const i64 i = rest % n0;
        const i64 b = rest / n0;
        Number* element = data + PARTS * (b * distance + i * step0 + j * step1 + k * step2);
        for (int part = 0; part < PARTS; ++part) multiply(element[part], factor);
    }
}
