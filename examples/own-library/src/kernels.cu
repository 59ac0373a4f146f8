// Row-wise softmax and cross-entropy. Blocks have THREADS threads; a block takes one row after another.

typedef unsigned long long u64;

constexpr unsigned THREADS = 256;
constexpr unsigned WARP = 32;

struct Add {
    template <typename T> static __device__ T apply(T a, T b) { return a + b; }
};

struct Max {
    static __device__ float apply(float a, float b) { return fmaxf(a, b); }
};

// The reduction of every thread's value, in every thread. All threads of the block must call it.
template <typename Reduce, typename T> __device__ T over_block(T value) {
    __shared__ T warps[THREADS / WARP];
    for (unsigned distance = WARP / 2; distance > 0; distance /= 2) {
        value = Reduce::apply(value, __shfl_xor_sync(0xffffffff, value, distance));
    }
    if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = value;
    __syncthreads();
    value = warps[0];
    for (unsigned warp = 1; warp < THREADS / WARP; warp++) value = Reduce::apply(value, warps[warp]);
    // The next reduction writes the same places.
    __syncthreads();
    return value;
}

extern "C" __global__ void __launch_bounds__(THREADS)
softmax(const float *x, float *y, float *log_sums, u64 rows, u64 columns) {
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *from = x + row * columns;
        float *to = y + row * columns;
        float largest = from[0];
        for (u64 i = threadIdx.x; i < columns; i += THREADS) largest = fmaxf(largest, from[i]);
        largest = over_block<Max>(largest);
        // An infinity less itself would be NaN.
        float base = isinf(largest) ? 0.0f : largest;
        float sum = 0.0f;
        for (u64 i = threadIdx.x; i < columns; i += THREADS) sum += expf(from[i] - base);
        sum = over_block<Add>(sum);
        for (u64 i = threadIdx.x; i < columns; i += THREADS) to[i] = expf(from[i] - base) / sum;
        if (threadIdx.x == 0) log_sums[row] = base + logf(sum);
    }
}

// What comes back of a cross-entropy: the sum, and how many labels name no column.
struct Loss {
    double sum;
    u64 wrong;
};

__device__ void write_loss(Loss *to, double sum, u64 wrong) {
    sum = over_block<Add>(sum);
    wrong = over_block<Add>(wrong);
    if (threadIdx.x == 0) *to = Loss{sum, wrong};
}

// One partial loss a block, so that the sum does not depend on which block is first.
extern "C" __global__ void __launch_bounds__(THREADS)
partial_losses(const float *x, const float *log_sums, const unsigned *labels, Loss *partial, u64 rows, u64 columns) {
    double sum = 0.0;
    u64 wrong = 0;
    for (u64 row = (u64)blockIdx.x * THREADS + threadIdx.x; row < rows; row += (u64)gridDim.x * THREADS) {
        // A label is data: nobody has checked it, and reading outside x would cost the context.
        if (labels[row] < columns) {
            sum += (double)log_sums[row] - (double)x[row * columns + labels[row]];
        } else {
            wrong += 1;
        }
    }
    write_loss(&partial[blockIdx.x], sum, wrong);
}

// One block.
extern "C" __global__ void __launch_bounds__(THREADS)
total_loss(const Loss *partial, Loss *reply, u64 count) {
    double sum = 0.0;
    u64 wrong = 0;
    for (u64 i = threadIdx.x; i < count; i += THREADS) {
        sum += partial[i].sum;
        wrong += partial[i].wrong;
    }
    write_loss(reply, sum, wrong);
}
