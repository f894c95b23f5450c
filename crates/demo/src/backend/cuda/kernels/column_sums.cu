// First stage of sums over the rows of a matrix: block (p, c) sums the ROWS_PER_PARTIAL rows of
// partial p in the c-th group of columns. It has 32 x 8 threads: 32 for the columns, each with one
// pack, and 8 for the rows.

constexpr int ROW_THREADS = 8;
constexpr int ROWS_PER_THREAD = ROWS_PER_PARTIAL / ROW_THREADS;
static_assert(ROWS_PER_PARTIAL % ROW_THREADS == 0, "each thread sums equally many rows");

// Adds the sums of the threads of each column in order, and writes them to a row of partials.
INLINE void write_partials(const float (&sums)[PACK], float *partials, u32 columns) {
    __shared__ float shared[ROW_THREADS][32 * PACK];
    u32 x = threadIdx.x % 32, y = threadIdx.x / 32;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < PACK; ++j) shared[y][x * PACK + j] = sums[j];
    __syncthreads();
    u32 first = blockIdx.y * 32 * PACK;
    for (u32 c = threadIdx.x; c < 32 * PACK && first + c < columns; c += 32 * ROW_THREADS) {
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < ROW_THREADS; ++n) sum += shared[n][c];
        partials[first + c] = sum;
    }
}

template <bool VECTOR> INLINE void column_partials_of(Floats x, float *partials, u64 rows, u32 columns) {
    u32 c = (blockIdx.y * 32 + threadIdx.x % 32) * PACK;
    u64 first = (u64)blockIdx.x * ROWS_PER_PARTIAL + threadIdx.x / 32;
    float v[ROWS_PER_THREAD][PACK];
#pragma unroll
    for (int n = 0; n < ROWS_PER_THREAD; ++n) {
        u64 row = first + n * ROW_THREADS;
        load_row<TYPE, VECTOR>(v[n], x, row * columns, c, row < rows ? columns : 0);
    }
    float sums[PACK];
#pragma unroll
    for (int j = 0; j < PACK; ++j) {
        sums[j] = v[0][j];
#pragma unroll
        for (int n = 1; n < ROWS_PER_THREAD; ++n) sums[j] += v[n][j];
    }
    write_partials(sums, partials + (u64)blockIdx.x * columns, columns);
}

KERNEL __launch_bounds__(256) column_partials(Floats x, float *partials, u64 rows, u32 columns, u32 vector) {
    if (vector) {
        column_partials_of<true>(x, partials, rows, columns);
    } else {
        column_partials_of<false>(x, partials, rows, columns);
    }
}

// Writes partial sums of the gradient of a layer norm's weight, then those of its bias's gradient.
template <bool VECTOR>
INLINE void layer_norm_partials_of(
    Floats x, Floats dy, const float *statistics, float *partials, u64 rows, u32 columns
) {
    u32 c = (blockIdx.y * 32 + threadIdx.x % 32) * PACK;
    u64 first = (u64)blockIdx.x * ROWS_PER_PARTIAL + threadIdx.x / 32;
    float v[ROWS_PER_THREAD][PACK], d[ROWS_PER_THREAD][PACK];
#pragma unroll
    for (int n = 0; n < ROWS_PER_THREAD; ++n) {
        u64 row = first + n * ROW_THREADS;
        u32 end = row < rows ? columns : 0;
        load_row<TYPE, VECTOR>(v[n], x, row * columns, c, end);
        load_row<TYPE, VECTOR>(d[n], dy, row * columns, c, end);
    }
    float weights[PACK] = {}, biases[PACK] = {};
#pragma unroll
    for (int n = 0; n < ROWS_PER_THREAD; ++n) {
        u64 row = first + n * ROW_THREADS;
        float mean = 0.0f, factor = 0.0f;
        if (row < rows) {
            mean = statistics[2 * row];
            factor = statistics[2 * row + 1];
        }
#pragma unroll
        for (int j = 0; j < PACK; ++j) {
            weights[j] += d[n][j] * (v[n][j] - mean) * factor;
            biases[j] += d[n][j];
        }
    }
    float *of_block = partials + (u64)blockIdx.x * columns;
    write_partials(weights, of_block, columns);
    write_partials(biases, of_block + (u64)gridDim.x * columns, columns);
}

KERNEL __launch_bounds__(256) layer_norm_partials(
    Floats x, Floats dy, const float *statistics, float *partials, u64 rows, u32 columns, u32 vector
) {
    if (vector) {
        layer_norm_partials_of<true>(x, dy, statistics, partials, rows, columns);
    } else {
        layer_norm_partials_of<false>(x, dy, statistics, partials, rows, columns);
    }
}
