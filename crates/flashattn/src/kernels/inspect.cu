// Looks at lengths and page numbers that lie on the device, before they are used as addresses.
//
// Compiled behind the kernel that uses them. Each kernel is one block of 1024 threads and writes one word: 0 where all fit, else the kind of
// problem in the high half and the first place of that kind in the low half.

typedef unsigned long long u64;
typedef long long i64;

namespace inspect {

constexpr u64 FINE = ~0ull;

__device__ __forceinline__ void begin(u64& found) {
    if (threadIdx.x == 0) found = FINE;
    __syncthreads();
}

// Smaller words win: the first kind, and the first place in it.
__device__ __forceinline__ void note(u64& found, u64 kind, u64 at) { atomicMin(&found, kind << 32 | at); }

// Where `starts` has batch + 1 entries that begin with 0, rise by at most `longest` at a time and end
// at most at `total`.
__device__ void inspect_starts(u64& found, u64 kind, const int* starts, int batch, int total, int longest) {
    for (int i = threadIdx.x; i <= batch; i += blockDim.x) {
        const i64 length = i == 0 ? starts[0] : static_cast<i64>(starts[i]) - starts[i - 1];
        if (length < 0 || length > (i == 0 ? 0 : longest) || starts[i] > total) note(found, kind, i);
    }
}

}  // namespace inspect

// Copies both lists to `safe_q` and `safe_k`, or zeros, which make every sequence empty.
extern "C" __global__ void __launch_bounds__(1024) attention_inspect_lengths(
    const int* starts_q, const int* starts_k, int* safe_q, int* safe_k, u64* status, int batch, int total_q,
    int total_k, int longest_q, int longest_k) {
    using namespace inspect;
    __shared__ u64 found;
    begin(found);
    inspect_starts(found, 1, starts_q, batch, total_q, longest_q);
    inspect_starts(found, 2, starts_k, batch, total_k, longest_k);
    __syncthreads();
    const bool fine = found == FINE;
    for (int i = threadIdx.x; i <= batch; i += blockDim.x) {
        safe_q[i] = fine ? starts_q[i] : 0;
        safe_k[i] = fine ? starts_k[i] : 0;
    }
    if (threadIdx.x == 0 && status) *status = fine ? 0 : found;
}

// Lengths from 0 to capacity, and for each used page a number from 0 to num_pages - 1.
extern "C" __global__ void __launch_bounds__(1024) attention_inspect_pages(
    const int* page_table, const int* cache_lens, u64* status, int batch, int max_pages, int page_shift,
    int num_pages) {
    using namespace inspect;
    __shared__ u64 found;
    begin(found);
    const i64 capacity = static_cast<i64>(max_pages) << page_shift;
    for (int sequence = threadIdx.x / 32; sequence < batch; sequence += blockDim.x / 32) {
        const int length = cache_lens[sequence];
        if (length < 0 || length > capacity) {
            note(found, 1, sequence);
            continue;
        }
        const int used = static_cast<int>((static_cast<i64>(length) + (1 << page_shift) - 1) >> page_shift);
        for (int page = threadIdx.x % 32; page < used; page += 32) {
            const i64 at = static_cast<i64>(sequence) * max_pages + page;
            if (static_cast<unsigned>(page_table[at]) >= static_cast<unsigned>(num_pages)) note(found, 2, at);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) *status = found == FINE ? 0 : found;
}
