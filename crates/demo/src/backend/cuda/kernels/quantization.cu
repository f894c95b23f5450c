// Rows of 8-bit codes with one scale each.

KERNEL __launch_bounds__(1024) quantize_rows(
    Floats x, i8 *codes, float *scales, u64 rows, u32 columns, u32 threads
) {
    RowThreads t = row_threads(threads);
    if (t.row >= rows) return;
    u64 start = t.row * columns;
    float largest = 0.0f;
    for (u32 c = t.thread; c < columns; c += t.count) largest = fmaxf(largest, fabsf(load<ANY>(x, start + c)));
    largest = reduce<Largest>(largest, t.count);
    float scale = largest > 0.0f ? largest / 127.0f : 1.0f;
    for (u32 c = t.thread; c < columns; c += t.count) {
        float code = roundf(load<ANY>(x, start + c) / scale);
        codes[start + c] = (i8)(int)fminf(fmaxf(code, -127.0f), 127.0f);
    }
    if (t.thread == 0) scales[t.row] = scale;
}

KERNEL dequantize_rows(const i8 *codes, const float *scales, Floats y, u64 count, u32 columns, u32 vector) {
    u64 i = thread_number() * PACK;
    if (vector && columns % PACK == 0 && i + PACK <= count) {
        u32 word = *(const u32 *)(codes + i);
        float scale = scales[divide(i, columns)];
        float v[PACK];
#pragma unroll
        for (int j = 0; j < PACK; ++j) v[j] = scale * (float)(i8)(u8)(word >> (8 * j));
        store_pack<ANY>(y, i, v);
        return;
    }
    for (u64 end = min(i + PACK, count); i < end; ++i) store<ANY>(y, i, scales[divide(i, columns)] * codes[i]);
}
