// Times an allocation with its free in PyTorch's caching allocator, on one thread without Python:
// a hit of one size, and churn over 512 live blocks of seven sizes. Given vramscope's library, runs
// the same loops on it.
//
//     torch_allocator_bench [LIBVRAMSCOPE_PLUGGABLE.SO]
//
// Prints the median of nine rounds and the fastest. run.sh builds it; it links libc10, libc10_cuda
// and libcudart.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

using Malloc = void* (*)(size_t, int, void*);
using Free = void (*)(void*, size_t, int, void*);

constexpr size_t kHitBytes = 64 << 10;
constexpr size_t kSizes[] = {256, 4 << 10, 64 << 10, 512 << 10, 2 << 20, 8 << 20, 20'000'000};
constexpr size_t kLive = 512;
constexpr int kRounds = 9;
constexpr int kOperations = 200'000;
constexpr size_t kHistory = 100'000;

struct Random {
  uint64_t state = 0x9E3779B97F4A7C15;
  uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  }
};

struct Block {
  void* address;
  size_t bytes;
};

double nanoseconds_each(const std::function<void()>& round) {
  auto begin = std::chrono::steady_clock::now();
  round();
  std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
  return time.count() / kOperations;
}

void report(const char* allocator, const char* loop, const std::function<void()>& round) {
  round();
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) {
    times.push_back(nanoseconds_each(round));
  }
  std::sort(times.begin(), times.end());
  std::printf("%-40s %-6s median %7.1f ns, fastest %7.1f ns\n", allocator, loop, times[kRounds / 2], times[0]);
  std::fflush(stdout);
}

// Templates, so that both sides pay for the same calls.
template <typename Allocate, typename Release>
void measure(const char* name, Allocate allocate, Release release) {
  report(name, "hit", [&] {
    for (int i = 0; i < kOperations; ++i) {
      release(allocate(kHitBytes), kHitBytes);
    }
  });
  Random random;
  auto draw = [&] { return kSizes[random.next() % (sizeof(kSizes) / sizeof(kSizes[0]))]; };
  std::vector<Block> live;
  for (size_t i = 0; i < kLive; ++i) {
    size_t bytes = draw();
    live.push_back({allocate(bytes), bytes});
  }
  report(name, "churn", [&] {
    for (int i = 0; i < kOperations; ++i) {
      Block& block = live[random.next() % kLive];
      release(block.address, block.bytes);
      block.bytes = draw();
      block.address = allocate(block.bytes);
    }
  });
  for (const Block& block : live) {
    release(block.address, block.bytes);
  }
}

void measure_torch(const char* name) {
  measure(
      name, [](size_t bytes) { return caching::raw_alloc(bytes); }, [](void* address, size_t) { caching::raw_delete(address); });
}

}  // namespace

int main(int count, char** arguments) {
  c10::cuda::set_device(0);
  caching::init(1);
  measure_torch("PyTorch, recording off");
  caching::get()->recordHistory(true, nullptr, kHistory, caching::RecordContext::NEVER, true, {});
  measure_torch("PyTorch, recording on, no stacks");
  caching::get()->recordHistory(false, nullptr, kHistory, caching::RecordContext::NEVER, true, {});
  caching::emptyCache();
  if (count > 1) {
    void* library = dlopen(arguments[1], RTLD_NOW);
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    auto allocate = reinterpret_cast<Malloc>(dlsym(library, "vramscope_malloc"));
    auto release = reinterpret_cast<Free>(dlsym(library, "vramscope_free"));
    if (allocate == nullptr || release == nullptr || allocate(512, 0, nullptr) == nullptr) {
      std::fprintf(stderr, "%s serves no memory\n", arguments[1]);
      return 1;
    }
    const char* recording = std::getenv("VRAMSCOPE_RECORD");
    measure(
        recording != nullptr ? "vramscope, through the C ABI, recording" : "vramscope, through the C ABI",
        [&](size_t bytes) { return allocate(bytes, 0, nullptr); },
        [&](void* address, size_t bytes) { release(address, bytes, 0, nullptr); });
  }
  return 0;
}
