// A stand-in for PyTorch's library libc10.so, as far as pluggable allocators concern it: the
// exceptions that they may throw, and calls of their functions that catch them. The classes have
// PyTorch's names and constructors; what they store does not matter to who throws them.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#define EXPORT __attribute__((visibility("default")))

namespace c10 {

struct SourceLocation {
  const char* function;
  const char* file;
  uint32_t line;
};

class EXPORT Error : public std::exception {
 public:
  Error(SourceLocation location, std::string message);
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_, where_;
};

Error::Error(SourceLocation location, std::string message)
    : message_(std::move(message)), where_(location.function) {
  where_ += std::to_string(location.line);
}

class EXPORT OutOfMemoryError : public Error {
  using Error::Error;
};

}  // namespace c10

namespace {

enum Outcome { kDone, kOutOfMemory, kOtherError };

Outcome call(void* (*allocate)(size_t, int, void*), size_t bytes, int device, void* stream, void** address,
             char* message, size_t capacity) {
  try {
    *address = allocate(bytes, device, stream);
    return kDone;
  } catch (const c10::OutOfMemoryError& error) {
    std::strncpy(message, error.what(), capacity - 1);
    return kOutOfMemory;
  } catch (const std::exception& error) {
    std::strncpy(message, error.what(), capacity - 1);
    return kOtherError;
  }
}

}  // namespace

extern "C" {

// Makes the linker keep the class's table of virtual functions.
EXPORT void standin_throw_out_of_memory() { throw c10::OutOfMemoryError({"", "", 0}, ""); }

// Calls a pluggable allocator's function, on this thread or, as autograd does, on another. Returns
// 0, or 1 for out of memory and 2 for another error, whose message is copied.
EXPORT int standin_call_allocator(void* (*allocate)(size_t, int, void*), size_t bytes, int device, void* stream,
                                  bool on_thread, void** address, char* message, size_t capacity) {
  if (!on_thread) return call(allocate, bytes, device, stream, address, message, capacity);
  Outcome outcome = kDone;
  std::thread([&] { outcome = call(allocate, bytes, device, stream, address, message, capacity); }).join();
  return outcome;
}

}  // extern "C"
