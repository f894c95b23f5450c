// The last stages of sums, and averages of groups.

// Sums the rows of partials of each column. Blocks have 32 x 32 threads: 32 columns, and 32 threads
// that each sum every 32nd row. The second row of blocks sums the second half of the partials.
KERNEL __launch_bounds__(1024) column_totals(
    const float *partials, u64 partial_rows, u32 columns, Floats sums, Floats second_sums
) {
    __shared__ float shared[32][33];
    u32 x = threadIdx.x % 32, y = threadIdx.x / 32;
    u32 c = blockIdx.x * 32 + x;
    const float *from = partials + blockIdx.y * partial_rows * columns;
    float sum = 0.0f;
    if (c < columns) {
#pragma unroll 4
        for (u64 row = y; row < partial_rows; row += 32) sum += from[row * columns + c];
    }
    shared[y][x] = sum;
    __syncthreads();
    // Each warp sums one column.
    sum = reduce<Sum>(shared[x][y], 32);
    c = blockIdx.x * 32 + y;
    if (x == 0 && c < columns) store<ANY>(blockIdx.y == 0 ? sums : second_sums, c, sum);
}

// A block of 256 threads sums NUMBERS_PER_PARTIAL elements.
KERNEL __launch_bounds__(256) partial_sums(Floats x, float *partials, u64 count, u32 vector) {
    u64 first = (u64)blockIdx.x * NUMBERS_PER_PARTIAL;
    float sum = 0.0f;
#pragma unroll
    for (u32 n = 0; n < NUMBERS_PER_PARTIAL; n += 256 * PACK) {
        u64 i = first + n + threadIdx.x * PACK;
        float v[PACK];
        if (vector && i + PACK <= count) {
            load_pack<ANY>(v, x, i);
        } else {
#pragma unroll
            for (int j = 0; j < PACK; ++j) v[j] = i + j < count ? load<ANY>(x, i + j) : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < PACK; ++j) sum += v[j];
    }
    static_assert(NUMBERS_PER_PARTIAL % (256 * PACK) == 0, "each thread sums equally many numbers");
    sum = reduce<Sum>(sum, 256);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// Sums all partials in one block.
KERNEL __launch_bounds__(1024) total_sum(const float *partials, u64 count, float scale, Floats result) {
    float sum = 0.0f;
    for (u64 i = threadIdx.x; i < count; i += 1024) sum += partials[i];
    sum = reduce<Sum>(sum, 1024);
    if (threadIdx.x == 0) store<ANY>(result, 0, scale * sum);
}

// A warp averages one group.
KERNEL average_groups(Floats x, Floats y, u64 groups, u32 group) {
    RowThreads t = row_threads(32);
    if (t.row >= groups) return;
    float sum = 0.0f;
#pragma unroll 4
    for (u32 i = t.thread; i < group; i += 32) sum += load<ANY>(x, t.row * group + i);
    sum = reduce<Sum>(sum, 32);
    if (t.thread == 0) store<ANY>(y, t.row, sum / group);
}

KERNEL spread_groups(Floats y, Floats x, u64 count, u32 group, float scale) {
    u64 i = thread_number();
    if (i < count) store<ANY>(x, i, scale * load<ANY>(y, divide(i, group)));
}
