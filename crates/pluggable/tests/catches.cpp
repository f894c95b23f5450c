// A C++ program that asks for more memory than there is, on two threads, through what PyTorch calls through; library.rs builds it.
//
//     catches LIBVRAMSCOPE_PLUGGABLE.SO
//
// Prints what each exception says, and `unwound` for a frame that one of them left.

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

void ask(const std::function<Malloc>& allocate) {
  Frame frame;
  std::printf("handed out: %p\n", allocate(size_t{1} << 62, 0, nullptr));
}

void catches(const std::function<Malloc>& allocate) {
  try {
    ask(allocate);
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
  catches(allocate);
  std::thread(catches, allocate).join();
  return 0;
}
