// Softmax and layer norm of rows with at most ROW_NUMBERS elements per thread: a row is read once
// and kept in registers. `large_rows.cu` is for longer rows.

// The number of columns of a row that causal attention does not mask.
INLINE u32 visible_columns(u64 row, u32 columns, u32 queries, u32 first) {
    u32 position = first + (u32)(row - divide(row, queries) * queries);
    return min(columns, position + 1);
}

template <bool VECTOR>
INLINE void softmax_row(Floats x, Floats y, RowThreads t, u32 columns, float scale, u32 visible) {
    u64 start = t.row * columns;
    float v[PACKS][PACK];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        load_row<TYPE, VECTOR>(v[k], x, start, (k * t.count + t.thread) * PACK, visible);
    }
    float largest = Largest::neutral;
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        u32 c = (k * t.count + t.thread) * PACK;
#pragma unroll
        for (int j = 0; j < PACK; ++j) {
            v[k][j] = c + j < visible ? scale * v[k][j] : MINUS_INFINITY;
            largest = fmaxf(largest, v[k][j]);
        }
    }
    largest = reduce<Largest>(largest, t.count);
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
#pragma unroll
        for (int j = 0; j < PACK; ++j) {
            v[k][j] = __expf(v[k][j] - largest);
            sum += v[k][j];
        }
    }
    float factor = 1.0f / reduce<Sum>(sum, t.count);
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
#pragma unroll
        for (int j = 0; j < PACK; ++j) v[k][j] *= factor;
        store_row<TYPE, VECTOR>(y, start, (k * t.count + t.thread) * PACK, columns, v[k]);
    }
}

KERNEL __launch_bounds__(512) softmax(
    Floats x, Floats y, u64 rows, u32 columns, float scale, u32 queries, u32 first, u32 threads, u32 vector
) {
    RowThreads t = row_threads(threads);
    if (t.row >= rows) return;
    u32 visible = visible_columns(t.row, columns, queries, first);
    if (vector) {
        softmax_row<true>(x, y, t, columns, scale, visible);
    } else {
        softmax_row<false>(x, y, t, columns, scale, visible);
    }
}

template <bool VECTOR>
INLINE void softmax_backward_row(
    Floats y, Floats dy, Floats dx, RowThreads t, u32 columns, float scale, u32 visible
) {
    u64 start = t.row * columns;
    float v[PACKS][PACK], d[PACKS][PACK];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        u32 c = (k * t.count + t.thread) * PACK;
        load_row<TYPE, VECTOR>(v[k], y, start, c, visible);
        load_row<TYPE, VECTOR>(d[k], dy, start, c, visible);
    }
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        u32 c = (k * t.count + t.thread) * PACK;
#pragma unroll
        for (int j = 0; j < PACK; ++j) {
            // The gradient of a masked column may be anything.
            d[k][j] = c + j < visible ? d[k][j] : 0.0f;
            sum += v[k][j] * d[k][j];
        }
    }
    sum = reduce<Sum>(sum, t.count);
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        u32 c = (k * t.count + t.thread) * PACK;
#pragma unroll
        for (int j = 0; j < PACK; ++j) {
            v[k][j] = c + j < visible ? scale * v[k][j] * (d[k][j] - sum) : 0.0f;
        }
        store_row<TYPE, VECTOR>(dx, start, c, columns, v[k]);
    }
}

KERNEL __launch_bounds__(512) softmax_backward(
    Floats y, Floats dy, Floats dx, u64 rows, u32 columns, float scale, u32 queries, u32 first, u32 threads,
    u32 vector
) {
    RowThreads t = row_threads(threads);
    if (t.row >= rows) return;
    u32 visible = visible_columns(t.row, columns, queries, first);
    if (vector) {
        softmax_backward_row<true>(y, dy, dx, t, columns, scale, visible);
    } else {
        softmax_backward_row<false>(y, dy, dx, t, columns, scale, visible);
    }
}

template <bool VECTOR>
INLINE void layer_norm_row(
    Floats x, Floats weight, Floats bias, Floats y, float *statistics, RowThreads t, u32 columns, float epsilon
) {
    u64 start = t.row * columns;
    float v[PACKS][PACK];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        load_row<TYPE, VECTOR>(v[k], x, start, (k * t.count + t.thread) * PACK, columns);
    }
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
#pragma unroll
        for (int j = 0; j < PACK; ++j) sum += v[k][j];
    }
    float mean = reduce<Sum>(sum, t.count) / columns;
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        u32 c = (k * t.count + t.thread) * PACK;
#pragma unroll
        for (int j = 0; j < PACK; ++j) {
            v[k][j] -= mean;
            squares += c + j < columns ? v[k][j] * v[k][j] : 0.0f;
        }
    }
    float factor = 1.0f / sqrtf(reduce<Sum>(squares, t.count) / columns + epsilon);
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        u32 c = (k * t.count + t.thread) * PACK;
        float w[PACK], b[PACK];
        load_row<F32, VECTOR>(w, weight, 0, c, columns);
        load_row<F32, VECTOR>(b, bias, 0, c, columns);
#pragma unroll
        for (int j = 0; j < PACK; ++j) v[k][j] = v[k][j] * factor * w[j] + b[j];
        store_row<TYPE, VECTOR>(y, start, c, columns, v[k]);
    }
    if (t.thread == 0) {
        statistics[2 * t.row] = mean;
        statistics[2 * t.row + 1] = factor;
    }
}

KERNEL __launch_bounds__(512) layer_norm(
    Floats x, Floats weight, Floats bias, Floats y, float *statistics, u64 rows, u32 columns, float epsilon,
    u32 threads, u32 vector
) {
    RowThreads t = row_threads(threads);
    if (t.row >= rows) return;
    if (vector) {
        layer_norm_row<true>(x, weight, bias, y, statistics, t, columns, epsilon);
    } else {
        layer_norm_row<false>(x, weight, bias, y, statistics, t, columns, epsilon);
    }
}

template <bool VECTOR>
INLINE void layer_norm_backward_row(
    Floats x, Floats dy, Floats weight, const float *statistics, Floats dx, RowThreads t, u32 columns
) {
    u64 start = t.row * columns;
    float v[PACKS][PACK], d[PACKS][PACK], w[PACKS][PACK];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        u32 c = (k * t.count + t.thread) * PACK;
        load_row<TYPE, VECTOR>(v[k], x, start, c, columns);
        load_row<TYPE, VECTOR>(d[k], dy, start, c, columns);
        load_row<F32, VECTOR>(w[k], weight, 0, c, columns);
    }
    float mean = statistics[2 * t.row], factor = statistics[2 * t.row + 1];
    float sum = 0.0f, products = 0.0f;
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
#pragma unroll
        for (int j = 0; j < PACK; ++j) {
            // The weight is 0 beyond the row.
            d[k][j] *= w[k][j];
            v[k][j] = (v[k][j] - mean) * factor;
            sum += d[k][j];
            products += d[k][j] * v[k][j];
        }
    }
    sum = reduce<Sum>(sum, t.count) / columns;
    products = reduce<Sum>(products, t.count) / columns;
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
#pragma unroll
        for (int j = 0; j < PACK; ++j) v[k][j] = factor * (d[k][j] - sum - v[k][j] * products);
        store_row<TYPE, VECTOR>(dx, start, (k * t.count + t.thread) * PACK, columns, v[k]);
    }
}

KERNEL __launch_bounds__(512) layer_norm_backward(
    Floats x, Floats dy, Floats weight, const float *statistics, Floats dx, u64 rows, u32 columns, u32 threads,
    u32 vector
) {
    RowThreads t = row_threads(threads);
    if (t.row >= rows) return;
    if (vector) {
        layer_norm_backward_row<true>(x, dy, weight, statistics, dx, t, columns);
    } else {
        layer_norm_backward_row<false>(x, dy, weight, statistics, dx, t, columns);
    }
}
