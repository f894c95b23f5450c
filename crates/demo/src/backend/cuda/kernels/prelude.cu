// Data types, packs of 16 bytes, and sums over threads. This file precedes every other file.
//
// The compiler's options define TYPE (F32, F16, BF16 or ANY), the type of all floats of a kernel;
// with ANY, each argument names its own type at run time. ROWS_PER_PARTIAL, NUMBERS_PER_PARTIAL and
// QUANTIZED_BLOCK equal the constants of these names in `backend/mod.rs`.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void
#define INLINE __device__ __forceinline__

// The codes of the data types are the `dtype` of `Floats` in `launch.rs`.
enum { F32 = 0, F16 = 1, BF16 = 2, ANY = 3 };

// Address and data type (known at run time) of floats in memory.
struct Floats {
    void *address;
    u32 type;
};

// Number of elements that a thread loads and stores at once: 16 bytes; with ANY, 8 or 16 bytes.
template <int D> struct PackSize { static constexpr int value = D == F16 || D == BF16 ? 8 : 4; };
constexpr int PACK = PackSize<TYPE>::value;

// Number of elements of a row that a thread keeps in registers, in kernels of short rows.
constexpr int ROW_NUMBERS = 16;
[[maybe_unused]] constexpr int PACKS = ROW_NUMBERS / PACK;

#define MINUS_INFINITY __int_as_float(0xff800000)

INLINE float from_bits(u16 bits, bool is_f16) {
    if (!is_f16) return __uint_as_float((u32)bits << 16);
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

// Rounds to the nearest, ties to even.
INLINE u16 to_bits(float x, bool is_f16) {
    u16 bits;
    if (is_f16) {
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
        return bits;
    }
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
#else
    u32 wide = __float_as_uint(x);
    if ((wide & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (u16)((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
#endif
}

// Packs two 16-bit floats, the first one in the low half.
INLINE u32 to_bits_2(float low, float high, bool is_f16) {
#if __CUDA_ARCH__ >= 800
    u32 bits;
    if (is_f16) {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    }
    return bits;
#else
    return (u32)to_bits(low, is_f16) | (u32)to_bits(high, is_f16) << 16;
#endif
}

template <int D> INLINE u32 type_of(Floats x) { return D == ANY ? x.type : D; }

// Loads one element as f32.
template <int D> INLINE float load(Floats x, u64 i) {
    u32 type = type_of<D>(x);
    if (type == F32) return ((const float *)x.address)[i];
    return from_bits(((const u16 *)x.address)[i], type == F16);
}

template <int D> INLINE void store(Floats x, u64 i, float value) {
    u32 type = type_of<D>(x);
    if (type == F32) {
        ((float *)x.address)[i] = value;
    } else {
        ((u16 *)x.address)[i] = to_bits(value, type == F16);
    }
}

// Loads N elements (4 or 8) from an address that is a multiple of their size.
template <int D, int N> INLINE void load_pack(float (&v)[N], Floats x, u64 i) {
    u32 type = type_of<D>(x);
    if (type == F32) {
        const float4 *from = (const float4 *)((const float *)x.address + i);
#pragma unroll
        for (int n = 0; n < N / 4; ++n) {
            float4 four = from[n];
            v[4 * n] = four.x;
            v[4 * n + 1] = four.y;
            v[4 * n + 2] = four.z;
            v[4 * n + 3] = four.w;
        }
        return;
    }
    const u16 *from = (const u16 *)x.address + i;
    u32 words[N / 2];
    if constexpr (N == 8) {
        uint4 eight = *(const uint4 *)from;
        words[0] = eight.x;
        words[1] = eight.y;
        words[2] = eight.z;
        words[3] = eight.w;
    } else {
        uint2 four = *(const uint2 *)from;
        words[0] = four.x;
        words[1] = four.y;
    }
#pragma unroll
    for (int n = 0; n < N / 2; ++n) {
        v[2 * n] = from_bits((u16)words[n], type == F16);
        v[2 * n + 1] = from_bits((u16)(words[n] >> 16), type == F16);
    }
}

template <int D, int N> INLINE void store_pack(Floats x, u64 i, const float (&v)[N]) {
    u32 type = type_of<D>(x);
    if (type == F32) {
        float4 *to = (float4 *)((float *)x.address + i);
#pragma unroll
        for (int n = 0; n < N / 4; ++n) {
            to[n] = make_float4(v[4 * n], v[4 * n + 1], v[4 * n + 2], v[4 * n + 3]);
        }
        return;
    }
    u16 *to = (u16 *)x.address + i;
    u32 words[N / 2];
#pragma unroll
    for (int n = 0; n < N / 2; ++n) words[n] = to_bits_2(v[2 * n], v[2 * n + 1], type == F16);
    if constexpr (N == 8) {
        *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
        *(uint2 *)to = make_uint2(words[0], words[1]);
    }
}

// Loads N elements from column c of the row that begins at `start`; `other` beyond the row. With
// VECTOR, rows are aligned and a multiple of N long.
template <int D, bool VECTOR, int N>
INLINE void load_row(float (&v)[N], Floats x, u64 start, u32 c, u32 columns, float other = 0.0f) {
    if (VECTOR) {
        if (c < columns) {
            load_pack<D>(v, x, start + c);
        } else {
#pragma unroll
            for (int j = 0; j < N; ++j) v[j] = other;
        }
    } else {
#pragma unroll
        for (int j = 0; j < N; ++j) v[j] = c + j < columns ? load<D>(x, start + c + j) : other;
    }
}

template <int D, bool VECTOR, int N>
INLINE void store_row(Floats x, u64 start, u32 c, u32 columns, const float (&v)[N]) {
    if (VECTOR) {
        if (c < columns) store_pack<D>(x, start + c, v);
    } else {
#pragma unroll
        for (int j = 0; j < N; ++j) {
            if (c + j < columns) store<D>(x, start + c + j, v[j]);
        }
    }
}

// a / b; fast if `a` is small.
INLINE u64 divide(u64 a, u32 b) { return a >> 32 ? a / b : (u32)a / b; }

// Returns the index of this thread in the grid.
INLINE u64 thread_number() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

// The threads of a row: 32, with several rows in a block, or all threads of a block, a power of 2.
struct RowThreads {
    u64 row;
    u32 thread;
    u32 count;
};

INLINE RowThreads row_threads(u32 count) {
    return {(u64)blockIdx.x * (blockDim.x / count) + threadIdx.x / count, threadIdx.x % count, count};
}

struct Sum {
    static constexpr float neutral = 0.0f;
    static INLINE float join(float a, float b) { return a + b; }
};

struct Largest {
    static constexpr float neutral = -3.402823466e38f;
    static INLINE float join(float a, float b) { return fmaxf(a, b); }
};

// True if `a` is larger than `b`, or NaN and `b` is not.
INLINE bool is_larger(float a, float b) { return a > b || (isnan(a) && !isnan(b)); }

// Combines one value x of each of `count` threads (32, or all of the block) by Operation, in a
// fixed order. All these threads must call this function, and all get the result.
template <class Operation> INLINE float reduce(float x, u32 count) {
    __shared__ float warps[32];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        x = Operation::join(x, __shfl_xor_sync(0xffffffff, x, distance));
    }
    if (count == 32) return x;
    u32 lane = threadIdx.x % 32;
    __syncthreads();
    if (lane == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = lane < count / 32 ? warps[lane] : Operation::neutral;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        x = Operation::join(x, __shfl_xor_sync(0xffffffff, x, distance));
    }
    return x;
}
