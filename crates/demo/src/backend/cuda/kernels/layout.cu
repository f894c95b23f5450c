// Copies between tensors of different strides. Dimensions and strides count units of 1 to 16 bytes.

struct Layouts {
    u64 from[4];
    u64 to[4];
    u32 dims[4];
};

struct Positions {
    u64 from;
    u64 to;
};

// Returns the positions of unit `i` in source and destination.
INLINE Positions positions(u64 i, const Layouts &layouts) {
    Positions at = {0, 0};
#pragma unroll
    for (int d = 3; d > 0; --d) {
        u64 rest = divide(i, layouts.dims[d]);
        u64 index = i - rest * layouts.dims[d];
        at.from += index * layouts.from[d];
        at.to += index * layouts.to[d];
        i = rest;
    }
    at.from += i * layouts.from[0];
    at.to += i * layouts.to[0];
    return at;
}

template <class T> INLINE void copy_units(const void *from, void *to, u64 count, const Layouts &layouts) {
    u64 i = thread_number();
    if (i >= count) return;
    Positions at = positions(i, layouts);
    ((T *)to)[at.to] = ((const T *)from)[at.from];
}

KERNEL copy_strided_1(const void *from, void *to, u64 count, Layouts layouts) {
    copy_units<u8>(from, to, count, layouts);
}
KERNEL copy_strided_2(const void *from, void *to, u64 count, Layouts layouts) {
    copy_units<u16>(from, to, count, layouts);
}
KERNEL copy_strided_4(const void *from, void *to, u64 count, Layouts layouts) {
    copy_units<u32>(from, to, count, layouts);
}
KERNEL copy_strided_8(const void *from, void *to, u64 count, Layouts layouts) {
    copy_units<uint2>(from, to, count, layouts);
}
KERNEL copy_strided_16(const void *from, void *to, u64 count, Layouts layouts) {
    copy_units<uint4>(from, to, count, layouts);
}
