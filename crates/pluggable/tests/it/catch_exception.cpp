// Requests more memory than any device has, on two threads, through a std::function like PyTorch.
// Built and run by library.rs.
//
//     catch_exception LIBVRAMSCOPE_PLUGGABLE.SO
//
// Prints the message of each exception, and `unwound` for the frame that it unwinds.

#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <thread>

using Malloc = void*(size_t, int, void*);

struct Frame {
  ~Frame() { std::puts("unwound"); }
};

void request(const std::function<Malloc>& allocate) {
  Frame frame;
  std::printf("allocated: %p\n", allocate(size_t{1} << 62, 0, nullptr));
}

void request_and_catch(const std::function<Malloc>& allocate) {
  try {
    request(allocate);
  } catch (const std::runtime_error& error) {
    std::printf("caught: %s\n", error.what());
  }
}

int main(int, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::printf("%s\n", dlerror());
    return 1;
  }
  std::function<Malloc> allocate = reinterpret_cast<Malloc*>(dlsym(library, "vramscope_malloc"));
  request_and_catch(allocate);
  std::thread(request_and_catch, allocate).join();
  return 0;
}
