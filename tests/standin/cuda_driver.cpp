// A stand-in for the CUDA driver's library, libcuda.so.1, for tests of the pluggable library
// without a GPU. Memory is only addresses: nothing may read or write it. Streams and events take no
// time.
//
// STANDIN_DEVICES is the number of devices (1), STANDIN_DEVICE_BYTES the memory of each (16 GiB).

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include <unistd.h>

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3;
constexpr int kMaxDevices = 8;
// Attributes of a device.
constexpr int kVirtualMemory = 102, kMajor = 75;

struct Device {
  uint64_t used = 0;
  bool has_context = false;
};

std::mutex mutex;
Device devices[kMaxDevices];
// Sizes of memory by address, of physical memory by handle.
std::map<uint64_t, std::pair<int, uint64_t>> memory, handles;
uint64_t next_address = uint64_t{0x7f} << 40, next_handle = 1;
thread_local void* current = nullptr;

uint64_t number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

int device_count() { return static_cast<int>(number("STANDIN_DEVICES", 1)); }

uint64_t device_bytes() { return number("STANDIN_DEVICE_BYTES", uint64_t{16} << 30); }

// A context is the address of its device.
int current_device() { return current ? static_cast<int>(static_cast<Device*>(current) - devices) : 0; }

bool take(int device, uint64_t bytes) {
  if (bytes > device_bytes() - devices[device].used) return false;
  devices[device].used += bytes;
  return true;
}

uint64_t new_address(uint64_t bytes) {
  constexpr uint64_t kAlignment = 2 << 20;
  uint64_t address = next_address;
  next_address += (bytes + kAlignment - 1) / kAlignment * kAlignment + kAlignment;
  return address;
}

}  // namespace

extern "C" {

// As with CUDA, a child that was forked after the first call cannot use the driver.
int cuInit(unsigned) {
  static const pid_t initializer = getpid();
  return getpid() == initializer ? kSuccess : kNotInitialized;
}

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

int cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR";
  return kSuccess;
}

int cuGetErrorString(int, const char** text) {
  *text = "an error of the stand-in";
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  *count = device_count();
  return kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal < device_count() ? kSuccess : kInvalidValue;
}

int cuDeviceGetName(char* name, int length, int) {
  std::snprintf(name, length, "Stand-in GPU");
  return kSuccess;
}

int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = device_bytes();
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == kVirtualMemory ? 1 : attribute == kMajor ? 9 : 0;
  return kSuccess;
}

int cuDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, length, "0000:%02x:00.0", device);
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  std::lock_guard<std::mutex> lock(mutex);
  devices[device].has_context = true;
  *context = &devices[device];
  return kSuccess;
}

int cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  std::lock_guard<std::mutex> lock(mutex);
  *flags = 0;
  *active = devices[device].has_context;
  return kSuccess;
}

int cuCtxGetCurrent(void** context) {
  *context = current;
  return kSuccess;
}

int cuCtxSetCurrent(void* context) {
  current = context;
  return kSuccess;
}

int cuCtxGetDevice(int* device) {
  *device = current_device();
  return kSuccess;
}

int cuCtxSynchronize() { return kSuccess; }

int cuThreadExchangeStreamCaptureMode(int*) { return kSuccess; }

int cuStreamSynchronize(void*) { return kSuccess; }

int cuMemGetInfo_v2(size_t* free, size_t* total) {
  std::lock_guard<std::mutex> lock(mutex);
  *total = device_bytes();
  *free = *total - devices[current_device()].used;
  return kSuccess;
}

int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex);
  int device = current_device();
  if (!take(device, bytes)) return kOutOfMemory;
  *address = new_address(bytes);
  memory[*address] = {device, bytes};
  return kSuccess;
}

int cuMemFree_v2(uint64_t address) {
  std::lock_guard<std::mutex> lock(mutex);
  auto found = memory.find(address);
  if (found == memory.end()) return kInvalidValue;
  devices[found->second.first].used -= found->second.second;
  memory.erase(found);
  return kSuccess;
}

int cuEventCreate(void** event, unsigned) {
  static char only_event;
  *event = &only_event;
  return kSuccess;
}

int cuEventRecord(void*, void*) { return kSuccess; }

int cuEventQuery(void*) { return kSuccess; }

int cuEventSynchronize(void*) { return kSuccess; }

int cuEventDestroy_v2(void*) { return kSuccess; }

int cuMemGetAllocationGranularity(size_t* bytes, const void*, int) {
  *bytes = 2 << 20;
  return kSuccess;
}

int cuMemAddressReserve(uint64_t* address, size_t bytes, size_t, uint64_t, uint64_t) {
  std::lock_guard<std::mutex> lock(mutex);
  *address = new_address(bytes);
  return kSuccess;
}

int cuMemAddressFree(uint64_t, size_t) { return kSuccess; }

int cuMemCreate(uint64_t* handle, size_t bytes, const void*, uint64_t) {
  std::lock_guard<std::mutex> lock(mutex);
  int device = current_device();
  if (!take(device, bytes)) return kOutOfMemory;
  *handle = next_handle++;
  handles[*handle] = {device, bytes};
  return kSuccess;
}

int cuMemMap(uint64_t, size_t, size_t, uint64_t, uint64_t) { return kSuccess; }

int cuMemSetAccess(uint64_t, size_t, const void*, size_t) { return kSuccess; }

int cuMemUnmap(uint64_t, size_t) { return kSuccess; }

int cuMemRelease(uint64_t handle) {
  std::lock_guard<std::mutex> lock(mutex);
  auto found = handles.find(handle);
  if (found == handles.end()) return kInvalidValue;
  devices[found->second.first].used -= found->second.second;
  handles.erase(found);
  return kSuccess;
}

}  // extern "C"
