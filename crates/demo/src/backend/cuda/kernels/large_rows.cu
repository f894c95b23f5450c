// Softmax and layer norm of rows that do not fit into registers: a block of threads reads its row
// two or three times, mostly from the cache.

// Calls f(c) for each column below `columns` that belongs to this thread.
template <class F> INLINE void each_column(u32 columns, F f) {
    for (u32 c = threadIdx.x; c < columns; c += blockDim.x) f(c);
}

// The number of columns of a row that causal attention does not mask, as in `rows.cu`.
INLINE u32 visible_columns(u64 row, u32 columns, u32 queries, u32 first) {
    u32 position = first + (u32)(row - divide(row, queries) * queries);
    return min(columns, position + 1);
}

KERNEL __launch_bounds__(1024) large_softmax(
    Floats x, Floats y, u32 columns, float scale, u32 queries, u32 first
) {
    u64 start = (u64)blockIdx.x * columns;
    u32 visible = visible_columns(blockIdx.x, columns, queries, first);
    float largest = Largest::neutral, sum = 0.0f;
    each_column(visible, [&](u32 c) {
        float v = scale * load<TYPE>(x, start + c);
        float next = fmaxf(largest, v);
        sum = sum * __expf(largest - next) + __expf(v - next);
        largest = next;
    });
    float of_row = reduce<Largest>(largest, blockDim.x);
    float factor = 1.0f / reduce<Sum>(sum * __expf(largest - of_row), blockDim.x);
    each_column(columns, [&](u32 c) {
        float v = c < visible ? __expf(scale * load<TYPE>(x, start + c) - of_row) * factor : 0.0f;
        store<TYPE>(y, start + c, v);
    });
}

KERNEL __launch_bounds__(1024) large_softmax_backward(
    Floats y, Floats dy, Floats dx, u32 columns, float scale, u32 queries, u32 first
) {
    u64 start = (u64)blockIdx.x * columns;
    u32 visible = visible_columns(blockIdx.x, columns, queries, first);
    float sum = 0.0f;
    each_column(visible, [&](u32 c) { sum += load<TYPE>(y, start + c) * load<TYPE>(dy, start + c); });
    sum = reduce<Sum>(sum, blockDim.x);
    each_column(columns, [&](u32 c) {
        float d = 0.0f;
        if (c < visible) d = scale * load<TYPE>(y, start + c) * (load<TYPE>(dy, start + c) - sum);
        store<TYPE>(dx, start + c, d);
    });
}

KERNEL __launch_bounds__(1024) large_layer_norm(
    Floats x, const float *weight, const float *bias, Floats y, float *statistics, u32 columns, float epsilon
) {
    u64 start = (u64)blockIdx.x * columns;
    float sum = 0.0f;
    each_column(columns, [&](u32 c) { sum += load<TYPE>(x, start + c); });
    float mean = reduce<Sum>(sum, blockDim.x) / columns;
    float squares = 0.0f;
    each_column(columns, [&](u32 c) {
        float d = load<TYPE>(x, start + c) - mean;
        squares += d * d;
    });
    float factor = 1.0f / sqrtf(reduce<Sum>(squares, blockDim.x) / columns + epsilon);
    each_column(columns, [&](u32 c) {
        store<TYPE>(y, start + c, (load<TYPE>(x, start + c) - mean) * factor * weight[c] + bias[c]);
    });
    if (threadIdx.x == 0) {
        statistics[2 * (u64)blockIdx.x] = mean;
        statistics[2 * (u64)blockIdx.x + 1] = factor;
    }
}

KERNEL __launch_bounds__(1024) large_layer_norm_backward(
    Floats x, Floats dy, const float *weight, const float *statistics, Floats dx, u32 columns
) {
    u64 start = (u64)blockIdx.x * columns;
    float mean = statistics[2 * (u64)blockIdx.x], factor = statistics[2 * (u64)blockIdx.x + 1];
    float sum = 0.0f, products = 0.0f;
    each_column(columns, [&](u32 c) {
        float d = load<TYPE>(dy, start + c) * weight[c];
        sum += d;
        products += d * (load<TYPE>(x, start + c) - mean) * factor;
    });
    sum = reduce<Sum>(sum, blockDim.x) / columns;
    products = reduce<Sum>(products, blockDim.x) / columns;
    each_column(columns, [&](u32 c) {
        float d = load<TYPE>(dy, start + c) * weight[c];
        float v = (load<TYPE>(x, start + c) - mean) * factor;
        store<TYPE>(dx, start + c, factor * (d - sum - v * products));
    });
}
