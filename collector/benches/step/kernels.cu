// The operations of the bench's training step other than matrix products. Each kernel has one
// thread per number that it writes.

extern "C" __global__ void add_bias(const float *x, const float *bias, float *y, int count, int width) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = x[i] + bias[i % width];
}

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// x * sigmoid(1.702 x), which is close to GELU.
extern "C" __global__ void gelu(const float *x, float *y, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = x[i] * sigmoid(1.702f * x[i]);
}

extern "C" __global__ void gelu_backward(const float *x, const float *dy, float *dx, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float s = sigmoid(1.702f * x[i]);
    dx[i] = dy[i] * (s + 1.702f * x[i] * s * (1.0f - s));
}

// a * x + b * y
extern "C" __global__ void sum(const float *x, const float *y, float *z, float a, float b, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) z[i] = a * x[i] + b * y[i];
}

extern "C" __global__ void square(const float *x, float *y, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = x[i] * x[i];
}

extern "C" __global__ void quotient(const float *x, const float *y, float *z, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) z[i] = x[i] / (sqrtf(y[i]) + 1e-8f);
}

// The running mean of an optimizer, in place.
extern "C" __global__ void decay(float *mean, const float *x, float keep, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) mean[i] = keep * mean[i] + (1.0f - keep) * x[i];
}

extern "C" __global__ void descend(float *parameter, const float *update, float rate, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) parameter[i] -= rate * update[i];
}

// One thread per column.
extern "C" __global__ void column_sums(const float *x, float *sums, int rows, int width) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    float sum = 0.0f;
    for (int row = 0; row < rows; row++) sum += x[row * width + i];
    sums[i] = sum;
}
