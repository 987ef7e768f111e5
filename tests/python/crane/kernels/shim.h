// What the kernels need of CUDA, for a compiler that knows nothing of it.
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
struct Index {
    unsigned int x;
};
static Index threadIdx, blockIdx, gridDim;
struct alignas(8) uint2 {
    unsigned int x, y;
};
struct alignas(16) uint4 {
    unsigned int x, y, z, w;
};
template <typename T> T __ldg(const T *from) { return *from; }
template <typename T> T __ldcs(const T *from) { return *from; }
static unsigned long long stored; // words
template <typename T> void __stcs(T *to, T word) { *to = word, ++stored; }
