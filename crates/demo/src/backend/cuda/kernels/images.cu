// Convolution windows, pooling and batch norm of images [image, channel, row, column].

// The fields of `Window` in `backend/mod.rs`.
struct Window {
    u32 images;
    u32 channels;
    u32 height;
    u32 width;
    u32 out_height;
    u32 out_width;
    u32 kernel;
    u32 stride;
    u32 padding;
};

// Divides `i` by `n` in place, and returns the remainder.
INLINE u32 split(u64 &i, u32 n) {
    u64 quotient = divide(i, n);
    u32 rest = (u32)(i - quotient * n);
    i = quotient;
    return rest;
}

// The outputs along one axis whose windows contain an input pixel.
struct Outputs {
    u32 begin;
    u32 end;
};

INLINE Outputs outputs_of(u32 pixel, u32 outputs, const Window &w) {
    u32 padded = pixel + w.padding;
    u32 begin = padded < w.kernel ? 0 : (padded - w.kernel) / w.stride + 1;
    return {begin, min(outputs, padded / w.stride + 1)};
}

// A thread writes one element of a row of `columns`.
KERNEL image_to_columns(Floats x, Floats columns, u64 count, Window w) {
    u64 number = thread_number();
    if (number >= count) return;
    u64 i = number;
    u32 kernel_column = split(i, w.kernel);
    u32 kernel_row = split(i, w.kernel);
    u32 channel = split(i, w.channels);
    u32 out_column = split(i, w.out_width);
    u32 out_row = split(i, w.out_height);
    // Above or left of the image, the unsigned difference wraps around to a large number.
    u32 row = out_row * w.stride + kernel_row - w.padding;
    u32 column = out_column * w.stride + kernel_column - w.padding;
    float v = 0.0f;
    if (row < w.height && column < w.width) {
        v = load<ANY>(x, ((i * w.channels + channel) * w.height + row) * w.width + column);
    }
    store<ANY>(columns, number, v);
}

// A thread sums the elements of one pixel, in the order of output rows and columns.
KERNEL columns_to_image(Floats columns, Floats x, u64 count, Window w) {
    u64 number = thread_number();
    if (number >= count) return;
    u64 i = number;
    u32 column = split(i, w.width);
    u32 row = split(i, w.height);
    u32 channel = split(i, w.channels);
    Outputs rows = outputs_of(row, w.out_height, w), across = outputs_of(column, w.out_width, w);
    u64 length = (u64)w.channels * w.kernel * w.kernel;
    float sum = 0.0f;
    for (u32 out_row = rows.begin; out_row < rows.end; ++out_row) {
        u32 kernel_row = row + w.padding - out_row * w.stride;
        for (u32 out_column = across.begin; out_column < across.end; ++out_column) {
            u32 kernel_column = column + w.padding - out_column * w.stride;
            u64 line = (i * w.out_height + out_row) * w.out_width + out_column;
            u64 place = ((u64)channel * w.kernel + kernel_row) * w.kernel + kernel_column;
            sum += load<ANY>(columns, line * length + place);
        }
    }
    store<ANY>(x, number, sum);
}

KERNEL max_pool(Floats x, Floats y, u32 *indices, u64 count, Window w) {
    u64 number = thread_number();
    if (number >= count) return;
    u64 plane = number;
    u32 out_column = split(plane, w.out_width);
    u32 out_row = split(plane, w.out_height);
    u64 start = plane * w.height * w.width;
    float best = MINUS_INFINITY;
    u32 index = 0xffffffff;
    for (u32 n = 0; n < w.kernel; ++n) {
        u32 row = out_row * w.stride + n - w.padding;
        if (row >= w.height) continue;
        for (u32 m = 0; m < w.kernel; ++m) {
            u32 column = out_column * w.stride + m - w.padding;
            if (column >= w.width) continue;
            u32 place = row * w.width + column;
            float v = load<ANY>(x, start + place);
            if (index == 0xffffffff || is_larger(v, best)) {
                best = v;
                index = place;
            }
        }
    }
    store<ANY>(y, number, best);
    indices[number] = index;
}

// A thread sums the gradients of the windows whose largest pixel is its pixel.
KERNEL max_pool_backward(Floats dy, const u32 *indices, Floats dx, u64 count, Window w) {
    u64 number = thread_number();
    if (number >= count) return;
    u64 plane = number;
    u32 column = split(plane, w.width);
    u32 row = split(plane, w.height);
    u32 place = row * w.width + column;
    Outputs rows = outputs_of(row, w.out_height, w), across = outputs_of(column, w.out_width, w);
    float sum = 0.0f;
    for (u32 out_row = rows.begin; out_row < rows.end; ++out_row) {
        for (u32 out_column = across.begin; out_column < across.end; ++out_column) {
            u64 output = (plane * w.out_height + out_row) * w.out_width + out_column;
            if (indices[output] == place) sum += load<ANY>(dy, output);
        }
    }
    store<ANY>(dx, number, sum);
}

struct ChannelNorm {
    u32 images;
    u32 channels;
    u32 pixels;
    float epsilon;
};

// Calls f(i) with the index of each element that belongs to this thread, in the channel that
// belongs to this block.
template <class F> INLINE void each_of_channel(const ChannelNorm &n, F f) {
    u64 count = (u64)n.images * n.pixels;
    for (u64 k = threadIdx.x; k < count; k += blockDim.x) {
        u64 image = divide(k, n.pixels);
        f((image * n.channels + blockIdx.x) * n.pixels + (k - image * n.pixels));
    }
}

// A block of 512 threads computes the mean and 1 / sqrt(variance + epsilon) of one channel.
KERNEL __launch_bounds__(512) batch_norm_statistics(Floats x, float *statistics, ChannelNorm n) {
    float count = (float)n.images * (float)n.pixels;
    float sum = 0.0f;
    each_of_channel(n, [&](u64 i) { sum += load<ANY>(x, i); });
    float mean = reduce<Sum>(sum, blockDim.x) / count;
    float squares = 0.0f;
    each_of_channel(n, [&](u64 i) {
        float d = load<ANY>(x, i) - mean;
        squares += d * d;
    });
    squares = reduce<Sum>(squares, blockDim.x);
    if (threadIdx.x == 0) {
        statistics[2 * blockIdx.x] = mean;
        statistics[2 * blockIdx.x + 1] = 1.0f / sqrtf(squares / count + n.epsilon);
    }
}

KERNEL batch_norm(
    Floats x, const float *weight, const float *bias, Floats y, const float *statistics, u64 count, ChannelNorm n
) {
    u64 i = thread_number();
    if (i >= count) return;
    u64 plane = divide(i, n.pixels);
    u32 c = split(plane, n.channels);
    float v = (load<ANY>(x, i) - statistics[2 * c]) * statistics[2 * c + 1];
    store<ANY>(y, i, v * weight[c] + bias[c]);
}

// A block of 512 threads computes the gradients of the weight and the bias of one channel.
KERNEL __launch_bounds__(512) batch_norm_gradients(
    Floats x, Floats dy, const float *statistics, float *d_weight, float *d_bias, ChannelNorm n
) {
    float mean = statistics[2 * blockIdx.x], factor = statistics[2 * blockIdx.x + 1];
    float sum = 0.0f, products = 0.0f;
    each_of_channel(n, [&](u64 i) {
        float d = load<ANY>(dy, i);
        sum += d;
        products += d * (load<ANY>(x, i) - mean) * factor;
    });
    sum = reduce<Sum>(sum, blockDim.x);
    products = reduce<Sum>(products, blockDim.x);
    if (threadIdx.x == 0) {
        d_weight[blockIdx.x] = products;
        d_bias[blockIdx.x] = sum;
    }
}

KERNEL batch_norm_backward(
    Floats x, Floats dy, const float *weight, const float *statistics, const float *d_weight, const float *d_bias,
    Floats dx, u64 count, ChannelNorm n
) {
    u64 i = thread_number();
    if (i >= count) return;
    u64 plane = divide(i, n.pixels);
    u32 c = split(plane, n.channels);
    float mean = statistics[2 * c], factor = statistics[2 * c + 1];
    float share = 1.0f / ((float)n.images * (float)n.pixels);
    float v = (load<ANY>(x, i) - mean) * factor;
    float d = load<ANY>(dy, i) - share * d_bias[c] - v * share * d_weight[c];
    store<ANY>(dx, i, weight[c] * factor * d);
}
