// Access to rows of a table by index (embedding), and the index of the largest element of each row.

// Each thread copies one pack of a row.
KERNEL gather_rows(
    Floats table, const u32 *indices, Floats rows, u64 count, u32 columns, u32 table_rows, u32 vector
) {
    u32 packs = (columns + PACK - 1) / PACK;
    u64 number = thread_number();
    u64 row = divide(number, packs);
    if (row >= count) return;
    u32 c = (u32)(number - row * packs) * PACK;
    u32 index = indices[row];
    float v[PACK];
    // For an index beyond the table, all columns count as beyond the row, and become 0.
    u32 end = index < table_rows ? columns : 0;
    if (vector) {
        load_row<ANY, true>(v, table, (u64)index * columns, c, end);
        store_row<ANY, true>(rows, row * columns, c, columns, v);
    } else {
        load_row<ANY, false>(v, table, (u64)index * columns, c, end);
        store_row<ANY, false>(rows, row * columns, c, columns, v);
    }
}

constexpr u32 SCATTER_THREADS = 128;
constexpr u32 SCATTER_WARPS = SCATTER_THREADS / 32;
// Number of indices that a warp searches before the block adds the rows that it found.
constexpr u32 SEARCHED = 1024;

// A block computes one row of the table: it searches the indices, and adds the rows in order.
template <bool VECTOR>
INLINE void scatter_row(Floats rows, const u32 *indices, Floats table, u64 count, u32 columns) {
    // Positions of matches after the first index that the warp searched.
    __shared__ u16 found[SCATTER_WARPS][SEARCHED];
    __shared__ u32 found_counts[SCATTER_WARPS];
    u32 wanted = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 before = (1u << lane) - 1;
    for (u32 begin = 0; begin < columns; begin += SCATTER_THREADS * PACK) {
        u32 c = begin + threadIdx.x * PACK;
        float sums[PACK] = {};
        for (u64 chunk = 0; chunk < count; chunk += SCATTER_WARPS * SEARCHED) {
            u64 first = chunk + warp * SEARCHED;
            u32 matches = 0;
            for (u32 n = 0; n < SEARCHED && first + n < count; n += 128) {
                // Lane l searches the indices n + l, n + 32 + l, n + 64 + l and n + 96 + l.
                bool is_match[4];
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    u64 i = first + n + k * 32 + lane;
                    is_match[k] = i < count && indices[i] == wanted;
                }
                if (!__any_sync(0xffffffff, is_match[0] || is_match[1] || is_match[2] || is_match[3])) continue;
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    u32 lanes = __ballot_sync(0xffffffff, is_match[k]);
                    if (is_match[k]) found[warp][matches + __popc(lanes & before)] = (u16)(n + k * 32 + lane);
                    matches += __popc(lanes);
                }
            }
            if (lane == 0) found_counts[warp] = matches;
            __syncthreads();
            for (u32 w = 0; w < SCATTER_WARPS; ++w) {
                u64 first_row = chunk + w * SEARCHED;
                u32 end = found_counts[w];
                u32 n = 0;
                // Loads four rows before it adds the first.
                for (; n + 4 <= end; n += 4) {
                    float v[4][PACK];
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        load_row<ANY, VECTOR>(v[k], rows, (first_row + found[w][n + k]) * columns, c, columns);
                    }
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
#pragma unroll
                        for (int j = 0; j < PACK; ++j) sums[j] += v[k][j];
                    }
                }
                for (; n < end; ++n) {
                    float v[PACK];
                    load_row<ANY, VECTOR>(v, rows, (first_row + found[w][n]) * columns, c, columns);
#pragma unroll
                    for (int j = 0; j < PACK; ++j) sums[j] += v[j];
                }
            }
            __syncthreads();
        }
        store_row<ANY, VECTOR>(table, (u64)wanted * columns, c, columns, sums);
    }
}

KERNEL __launch_bounds__(128) scatter_add_rows(
    Floats rows, const u32 *indices, Floats table, u64 count, u32 columns, u32 vector
) {
    if (vector) {
        scatter_row<true>(rows, indices, table, count, columns);
    } else {
        scatter_row<false>(rows, indices, table, count, columns);
    }
}

// Each thread of a row searches every `threads`-th column.
KERNEL __launch_bounds__(1024) argmax_rows(Floats x, u32 *result, u64 rows, u32 columns, u32 threads) {
    __shared__ float values[32];
    __shared__ u32 columns_of_warps[32];
    RowThreads t = row_threads(threads);
    if (t.row >= rows) return;
    float best = MINUS_INFINITY;
    u32 column = 0xffffffff;
    for (u32 c = t.thread; c < columns; c += t.count) {
        float v = load<ANY>(x, t.row * columns + c);
        if (column == 0xffffffff || is_larger(v, best)) {
            best = v;
            column = c;
        }
    }
    u32 lane = threadIdx.x % 32, warps = t.count / 32;
    for (int round = 0; round < 2; ++round) {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
            float other = __shfl_xor_sync(0xffffffff, best, distance);
            u32 other_column = __shfl_xor_sync(0xffffffff, column, distance);
            bool is_equal = !is_larger(best, other) && other_column < column;
            if (is_larger(other, best) || is_equal) {
                best = other;
                column = other_column;
            }
        }
        if (warps == 1 || round == 1) break;
        if (lane == 0) {
            values[threadIdx.x / 32] = best;
            columns_of_warps[threadIdx.x / 32] = column;
        }
        __syncthreads();
        best = lane < warps ? values[lane] : MINUS_INFINITY;
        column = lane < warps ? columns_of_warps[lane] : 0xffffffff;
    }
    if (t.thread == 0) result[t.row] = column;
}
