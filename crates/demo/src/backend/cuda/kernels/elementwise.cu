// Elementwise functions of one or two arguments. Each thread computes one pack of elements.

// Computes y = f(x) for each of `count` elements.
template <class F> INLINE void map(Floats x, Floats y, u64 count, u32 vector, F f) {
    u64 i = thread_number() * PACK;
    if (vector && i + PACK <= count) {
        float v[PACK];
        load_pack<TYPE>(v, x, i);
#pragma unroll
        for (int j = 0; j < PACK; ++j) v[j] = f(v[j], i + j);
        store_pack<TYPE>(y, i, v);
        return;
    }
    for (u64 end = min(i + PACK, count); i < end; ++i) store<TYPE>(y, i, f(load<TYPE>(x, i), i));
}

// Computes out = f(a, b) for each of `count` pairs of elements.
template <class F> INLINE void map_2(Floats a, Floats b, Floats out, u64 count, u32 vector, F f) {
    u64 i = thread_number() * PACK;
    if (vector && i + PACK <= count) {
        float v[PACK], w[PACK];
        load_pack<TYPE>(v, a, i);
        load_pack<TYPE>(w, b, i);
#pragma unroll
        for (int j = 0; j < PACK; ++j) v[j] = f(v[j], w[j]);
        store_pack<TYPE>(out, i, v);
        return;
    }
    for (u64 end = min(i + PACK, count); i < end; ++i) {
        store<TYPE>(out, i, f(load<TYPE>(a, i), load<TYPE>(b, i)));
    }
}

// exp(-2 u) with u = sqrt(2/pi) (x + 0.044715 x^3), bounded so that products with it stay finite.
// 0.5 (1 + tanh(u)) is 1 / (1 + exp(-2 u)), which loses no digits by subtraction.
INLINE float gelu_exponential(float x) {
    float u = 0.7978845608f * (x + 0.044715f * x * x * x);
    return __expf(fminf(-2.0f * u, 80.0f));
}

INLINE float gelu_of(float x) { return __fdividef(x, 1.0f + gelu_exponential(x)); }

INLINE float gelu_derivative(float x) {
    float e = gelu_exponential(x);
    float s = __fdividef(1.0f, 1.0f + e);
    float slope = 1.5957691216f * (1.0f + 0.134145f * x * x);
    // Where e is at its bound, the derivative is 0, but x * slope may be infinite.
    float tail = e * s * s;
    return s + (tail > 1e-30f ? x * slope * tail : 0.0f * x);
}

KERNEL unary(u32 function, Floats x, Floats y, u64 count, u32 vector) {
    if (function == 0) {
        map(x, y, count, vector, [](float x, u64) { return x; });
    } else if (function == 1) {
        map(x, y, count, vector, [](float x, u64) { return gelu_of(x); });
    } else {
        // NaN stays NaN.
        map(x, y, count, vector, [](float x, u64) { return x < 0.0f ? 0.0f : x; });
    }
}

KERNEL binary(u32 function, Floats a, Floats b, Floats out, u64 count, u32 vector) {
    if (function == 0) {
        map_2(a, b, out, count, vector, [](float a, float b) { return a * b; });
    } else if (function == 1) {
        map_2(a, b, out, count, vector, [](float a, float b) { return b * gelu_derivative(a); });
    } else {
        map_2(a, b, out, count, vector, [](float a, float b) { return a > 0.0f ? b : 0.0f; });
    }
}

KERNEL scale(float alpha, Floats x, Floats y, u64 count, u32 vector) {
    map(x, y, count, vector, [=](float x, u64) { return alpha * x; });
}

KERNEL combine(float alpha, Floats a, float beta, Floats b, Floats out, u64 count, u32 vector) {
    map_2(a, b, out, count, vector, [=](float a, float b) { return alpha * a + beta * b; });
}

KERNEL add_bias(Floats x, Floats bias, Floats y, u64 count, u32 columns, u32 vector) {
    if (vector && columns % PACK == 0) {
        u64 i = thread_number() * PACK;
        if (i >= count) return;
        u32 c = (u32)(i - divide(i, columns) * columns);
        float v[PACK], w[PACK];
        load_pack<TYPE>(v, x, i);
        load_pack<TYPE>(w, bias, c);
#pragma unroll
        for (int j = 0; j < PACK; ++j) v[j] += w[j];
        store_pack<TYPE>(y, i, v);
        return;
    }
    map(x, y, count, vector, [=](float x, u64 i) {
        return x + load<TYPE>(bias, i - divide(i, columns) * columns);
    });
}
