// Steps of Adam, 8-bit Adam and SGD, and the unscaling of gradients.

// The fields of `AdamStep` in `backend/mod.rs`.
struct AdamStep {
    float rate;
    float decay;
    float beta1;
    float beta2;
    float epsilon;
    float root_scale;
};

// Updates the moments of one parameter; returns the new value of the parameter.
INLINE float adam_update(float parameter, float gradient, float &mean, float &variance, const AdamStep &s) {
    mean = s.beta1 * mean + (1.0f - s.beta1) * gradient;
    variance = s.beta2 * variance + (1.0f - s.beta2) * gradient * gradient;
    parameter *= 1.0f - s.decay;
    return parameter - s.rate * mean / (sqrtf(variance) * s.root_scale + s.epsilon);
}

KERNEL adam(Floats parameter, Floats gradient, Floats mean, Floats variance, u64 count, AdamStep s, u32 vector) {
    u64 i = thread_number() * PACK;
    if (vector && i + PACK <= count) {
        float p[PACK], g[PACK], m[PACK], v[PACK];
        load_pack<F32>(p, parameter, i);
        load_pack<F32>(m, mean, i);
        load_pack<F32>(v, variance, i);
        load_pack<ANY>(g, gradient, i);
#pragma unroll
        for (int j = 0; j < PACK; ++j) p[j] = adam_update(p[j], g[j], m[j], v[j], s);
        store_pack<F32>(parameter, i, p);
        store_pack<F32>(mean, i, m);
        store_pack<F32>(variance, i, v);
        return;
    }
    for (u64 end = min(i + PACK, count); i < end; ++i) {
        float m = load<F32>(mean, i), v = load<F32>(variance, i);
        float p = adam_update(load<F32>(parameter, i), load<ANY>(gradient, i), m, v, s);
        store<F32>(parameter, i, p);
        store<F32>(mean, i, m);
        store<F32>(variance, i, v);
    }
}

INLINE float bounded(float x, float low, float high) { return fminf(fmaxf(x, low), high); }

// Loads eight codes from an address that is a multiple of 8.
INLINE void load_codes(u8 (&codes)[8], const u8 *from) {
    uint2 words = *(const uint2 *)from;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        codes[j] = (u8)(words.x >> (8 * j));
        codes[4 + j] = (u8)(words.y >> (8 * j));
    }
}

INLINE void store_codes(u8 *to, const u8 (&codes)[8]) {
    uint2 words = make_uint2(0, 0);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        words.x |= (u32)codes[j] << (8 * j);
        words.y |= (u32)codes[4 + j] << (8 * j);
    }
    *(uint2 *)to = words;
}

// A warp updates one block of quantized moments, eight elements per lane. The moments are rounded
// after the parameter is updated.
KERNEL adam_8bit(
    Floats parameter, Floats gradient, u8 *mean_codes, float *mean_scales, u8 *variance_codes,
    float *variance_scales, u64 count, AdamStep s, u32 vector
) {
    static_assert(QUANTIZED_BLOCK == 256, "a lane has eight numbers");
    RowThreads t = row_threads(32);
    u64 i = t.row * QUANTIZED_BLOCK + t.thread * 8;
    if (t.row * QUANTIZED_BLOCK >= count) return;
    bool full = vector && i + 8 <= count;
    float p[8] = {}, g[8] = {};
    u8 mean[8] = {}, variance[8] = {};
    if (full) {
        load_pack<F32>(p, parameter, i);
        load_pack<ANY>(g, gradient, i);
        load_codes(mean, mean_codes + i);
        load_codes(variance, variance_codes + i);
    } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if (i + j >= count) continue;
            p[j] = load<F32>(parameter, i + j);
            g[j] = load<ANY>(gradient, i + j);
            mean[j] = mean_codes[i + j];
            variance[j] = variance_codes[i + j];
        }
    }
    float mean_scale = mean_scales[t.row] / 127.0f, variance_scale = variance_scales[t.row];
    float m[8], v[8];
    float largest_mean = 0.0f, largest_variance = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        float code = (float)variance[j] / 255.0f;
        m[j] = mean_scale * (float)(i8)mean[j];
        v[j] = variance_scale * code * code;
        p[j] = adam_update(p[j], g[j], m[j], v[j], s);
        largest_mean = fmaxf(largest_mean, fabsf(m[j]));
        largest_variance = fmaxf(largest_variance, v[j]);
    }
    largest_mean = reduce<Largest>(largest_mean, 32);
    largest_variance = reduce<Largest>(largest_variance, 32);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        float code = largest_mean > 0.0f ? rintf(m[j] / largest_mean * 127.0f) : 0.0f;
        mean[j] = (u8)(i8)(int)bounded(code, -127.0f, 127.0f);
        code = largest_variance > 0.0f ? ceilf(sqrtf(v[j] / largest_variance) * 255.0f) : 0.0f;
        variance[j] = (u8)(int)bounded(code, 0.0f, 255.0f);
    }
    if (t.thread == 0) {
        mean_scales[t.row] = largest_mean;
        variance_scales[t.row] = largest_variance;
    }
    if (full) {
        store_pack<F32>(parameter, i, p);
        store_codes(mean_codes + i, mean);
        store_codes(variance_codes + i, variance);
    } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if (i + j >= count) continue;
            store<F32>(parameter, i + j, p[j]);
            mean_codes[i + j] = mean[j];
            variance_codes[i + j] = variance[j];
        }
    }
}

// The fields of `SgdStep` in `backend/mod.rs`.
struct SgdStep {
    float rate;
    float momentum;
};

// `buffer` is null for SGD without momentum.
KERNEL sgd(Floats parameter, Floats gradient, Floats buffer, u64 count, SgdStep s, u32 vector) {
    u64 i = thread_number() * PACK;
    if (vector && i + PACK <= count) {
        float p[PACK], g[PACK], b[PACK] = {};
        load_pack<ANY>(p, parameter, i);
        load_pack<ANY>(g, gradient, i);
        if (buffer.address) load_pack<ANY>(b, buffer, i);
#pragma unroll
        for (int j = 0; j < PACK; ++j) {
            b[j] = s.momentum * b[j] + g[j];
            p[j] -= s.rate * b[j];
        }
        store_pack<ANY>(parameter, i, p);
        if (buffer.address) store_pack<ANY>(buffer, i, b);
        return;
    }
    for (u64 end = min(i + PACK, count); i < end; ++i) {
        float p = load<ANY>(parameter, i), b = buffer.address ? load<ANY>(buffer, i) : 0.0f;
        b = s.momentum * b + load<ANY>(gradient, i);
        store<ANY>(parameter, i, p - s.rate * b);
        if (buffer.address) store<ANY>(buffer, i, b);
    }
}

// Every thread that finds an infinite number or NaN writes 1, so the order does not matter.
KERNEL unscale(Floats gradient, float scale, u32 *found_infinite, u64 count, u32 vector) {
    u64 i = thread_number() * PACK;
    bool finite = true;
    if (vector && i + PACK <= count) {
        float v[PACK];
        load_pack<ANY>(v, gradient, i);
#pragma unroll
        for (int j = 0; j < PACK; ++j) {
            finite = finite && isfinite(v[j]);
            v[j] *= scale;
        }
        store_pack<ANY>(gradient, i, v);
    } else {
        for (u64 end = min(i + PACK, count); i < end; ++i) {
            float v = load<ANY>(gradient, i);
            finite = finite && isfinite(v);
            store<ANY>(gradient, i, v * scale);
        }
    }
    if (!finite) *found_infinite = 1;
}
