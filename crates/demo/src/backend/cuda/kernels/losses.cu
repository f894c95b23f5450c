// Cross entropy.

// Number of packs that a thread loads before it uses the first one.
constexpr int AHEAD = TYPE == F16 || TYPE == BF16 ? 2 : 4;

// Reads the row once. The sum of exponentials so far is relative to the largest logit so far.
template <bool VECTOR>
INLINE void cross_entropy_row(
    Floats logits, const u32 *targets, float *log_sums, float *losses, RowThreads t, u32 columns
) {
    u64 start = t.row * columns;
    float largest = Largest::neutral, sum = 0.0f;
    for (u32 begin = 0; begin < columns; begin += t.count * PACK * AHEAD) {
        float v[AHEAD][PACK];
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            u32 c = begin + (k * t.count + t.thread) * PACK;
            load_row<TYPE, VECTOR>(v[k], logits, start, c, columns, MINUS_INFINITY);
        }
        float next = largest;
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
#pragma unroll
            for (int j = 0; j < PACK; ++j) next = fmaxf(next, v[k][j]);
        }
        sum *= __expf(largest - next);
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
#pragma unroll
            for (int j = 0; j < PACK; ++j) sum += __expf(v[k][j] - next);
        }
        largest = next;
    }
    float of_row = reduce<Largest>(largest, t.count);
    sum = reduce<Sum>(sum * __expf(largest - of_row), t.count);
    if (t.thread == 0) {
        float log = logf(sum);
        u32 target = targets[t.row];
        log_sums[t.row] = of_row + log;
        // The loss is NaN for a target beyond the row.
        float logit = target < columns ? load<TYPE>(logits, start + target) : __int_as_float(0x7fffffff);
        // Not log_sum - logit: the difference of large numbers would lose precision.
        losses[t.row] = log + (of_row - logit);
    }
}

KERNEL __launch_bounds__(1024) cross_entropy(
    Floats logits, const u32 *targets, float *log_sums, float *losses, u64 rows, u32 columns, u32 threads, u32 vector
) {
    RowThreads t = row_threads(threads);
    if (t.row >= rows) return;
    if (vector) {
        cross_entropy_row<true>(logits, targets, log_sums, losses, t, columns);
    } else {
        cross_entropy_row<false>(logits, targets, log_sums, losses, t, columns);
    }
}

// Each thread computes one pack of elements, which may extend into the next rows.
KERNEL cross_entropy_backward(
    Floats logits, const u32 *targets, const float *log_sums, const float *d_loss, float scale, Floats d_logits,
    u64 count, u32 columns, u32 vector
) {
    u64 i = thread_number() * PACK;
    if (i >= count) return;
    u64 row = divide(i, columns);
    u32 c = (u32)(i - row * columns);
    float factor = scale * *d_loss;
    if (vector && i + PACK <= count && c + PACK <= columns) {
        float v[PACK];
        load_pack<TYPE>(v, logits, i);
        u32 target = targets[row];
        float log_sum = log_sums[row];
#pragma unroll
        for (int j = 0; j < PACK; ++j) {
            v[j] = factor * (__expf(v[j] - log_sum) - (c + j == target ? 1.0f : 0.0f));
        }
        store_pack<TYPE>(d_logits, i, v);
        return;
    }
    for (u64 end = min(i + PACK, count); i < end; ++i) {
        float d = __expf(load<TYPE>(logits, i) - log_sums[row]) - (c == targets[row] ? 1.0f : 0.0f);
        store<TYPE>(d_logits, i, factor * d);
        if (++c == columns) {
            c = 0;
            ++row;
        }
    }
}
