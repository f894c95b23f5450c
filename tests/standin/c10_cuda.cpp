// A stand-in for PyTorch's libc10_cuda.so, for tests without PyTorch and without a GPU.
//
// To a library that attaches a trace tracker it looks like PyTorch's: `allocator` is exported, the
// classes and their vtables have PyTorch's names in .symtab, and entries have the layout of one
// version (`trace_entry.h`). The memory behind it does not exist (`device_allocator.h`).
//
//     g++ -std=c++17 -shared -fPIC -O2 -g -fvisibility=hidden -pthread -DLAYOUT_…
//         c10_cuda.cpp -o libc10_cuda.so
//
// Variants that must be refused: -DWRONG_SLOT (another vtable), -DOTHER_ALLOCATOR (another
// allocator is current), -DNEVER_INITIALIZED (no allocator is current), and -s (no .symtab).

#include <cstring>

#include "storm.h"

#define EXPORT __attribute__((visibility("default")))

namespace c10::cuda::CUDACachingAllocator {

/// The allocator in use; null until CUDA is initialized.
EXPORT std::atomic<CUDAAllocator*> allocator{nullptr};

namespace Native {

class NativeCachingAllocator : public CUDAAllocator {
 public:
  standin::Devices devices;

  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override;
  std::string name() override { return "native"; }
};

void NativeCachingAllocator::attachAllocatorTraceTracker(AllocatorTraceTracker tracker) {
  for (auto& device : devices) device->attach(tracker);
}

}  // namespace Native

namespace CudaMallocAsync {

class CudaMallocAsyncAllocator : public CUDAAllocator {
  void attachAllocatorTraceTracker(AllocatorTraceTracker) override {
    throw std::runtime_error("cudaMallocAsync does not yet support attachAllocatorTraceTracker");
  }
  std::string name() override { return "cudaMallocAsync"; }
};

}  // namespace CudaMallocAsync
}  // namespace c10::cuda::CUDACachingAllocator

namespace {

// Both are used until the process ends.
auto& native = *new c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator;
auto& other = *new c10::cuda::CUDACachingAllocator::CudaMallocAsync::CudaMallocAsyncAllocator;

standin::DeviceAllocator* device_at(uint64_t address) {
  const uint64_t device = (address - standin::FIRST_ADDRESS) / standin::ADDRESS_SPACE;
  return device < native.devices.size() ? native.devices[device].get() : nullptr;
}

}  // namespace

extern "C" {

/// Initializes CUDA with this number of devices.
EXPORT void standin_init(int devices) {
  for (int device = 0; device < devices; ++device) {
    native.devices.push_back(std::make_unique<standin::DeviceAllocator>(device));
  }
  c10::cuda::CUDACachingAllocator::CUDAAllocator* current = &native;
#ifdef OTHER_ALLOCATOR
  current = &other;
#else
  (void)other;
#endif
#ifdef NEVER_INITIALIZED
  current = nullptr;
#endif
  c10::cuda::CUDACachingAllocator::allocator.store(current);
}

/// Returns the address of a new block; 0 if the device is out of memory.
EXPORT uint64_t standin_alloc(int device, uint64_t size, uint64_t stream) {
  return native.devices[device]->allocate(size, stream);
}

/// Frees a block; returns false if there is none at the address.
EXPORT bool standin_free(uint64_t address) {
  standin::DeviceAllocator* device = device_at(address);
  return device && device->free(address);
}

/// Returns the cached segments of all devices to the driver.
EXPORT void standin_empty_cache() {
  for (auto& device : native.devices) device->empty_cache();
}

/// Sets the size of a device's memory, in bytes.
EXPORT void standin_set_limit(int device, uint64_t bytes) { native.devices[device]->set_limit(bytes); }

/// Writes a device's counters to `stats`.
EXPORT void standin_stats(int device, standin::Stats* stats) { *stats = native.devices[device]->stats(); }

/// Returns a snapshot as JSON, as `torch.cuda.memory._snapshot()` has it. `standin_free_text` frees
/// the text.
EXPORT char* standin_snapshot_json() {
  std::string json = "{\"segments\":[";
  for (auto& device : native.devices) device->snapshot(json);
  json +=
      "],\"device_traces\":[],\"external_annotations\":[],\"allocator_settings\":{\"PYTORCH_CUDA_ALLOC_CONF\":\"\","
      "\"max_split_size\":-1,\"garbage_collection_threshold\":0.0,\"expandable_segments\":false}}";
  return strdup(json.c_str());
}

/// Calls the trackers for a snapshot of a private pool that does not exist.
EXPORT void standin_snapshot_of_unknown_pool(uint64_t first, uint64_t second) {
  for (auto& device : native.devices) device->snapshot_of_unknown_pool(first, second);
}

EXPORT void standin_free_text(char* text) { free(text); }

/// Copies up to `count` entries of a device's log, from number `first` on; returns how many.
EXPORT uint64_t standin_log(int device, uint64_t first, uint64_t count, standin::LogEntry* entries) {
  return native.devices[device]->read_log(first, count, entries);
}

/// Runs threads that allocate and free at a rate, for a time; see `storm.h`.
EXPORT void standin_storm(int threads, double events_per_second, double seconds, int devices, uint64_t seed,
                          standin::StormCounts* counts) {
  *counts = standin::storm(native.devices, threads, events_per_second, seconds, devices, seed);
}

/// Allocates a block of each size on a new thread, which runs no Python code, as PyTorch's threads
/// for the backward pass. Each block is allocated after a temporary one of the same size, which is
/// freed afterwards. Addresses are 0 from the first failure on.
EXPORT void standin_backward(int device, uint64_t count, const uint64_t* sizes, uint64_t* addresses) {
  std::fill_n(addresses, count, 0);
  std::thread([=] {
    for (uint64_t index = 0; index < count; ++index) {
      const uint64_t temporary = standin_alloc(device, sizes[index], 0);
      addresses[index] = temporary ? standin_alloc(device, sizes[index], 0) : 0;
      if (temporary) standin_free(temporary);
      if (!addresses[index]) return;
    }
  }).join();
}

}  // extern "C"
