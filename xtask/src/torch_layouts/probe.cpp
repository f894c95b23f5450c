// Prints the layout of PyTorch's classes, one `name value` a line, for `cargo xtask torch-layouts`.

#include "torch_layout.hpp"

#include <cstdio>
#include <utility>

namespace {

void print_optional(const char* name, long offset) {
  if (offset == kAbsent) {
    std::printf("%s absent\n", name);
  } else {
    std::printf("%s %ld\n", name, offset);
  }
}

template <int... values>
void print_actions(std::integer_sequence<int, values...>) {
  std::printf("actions");
  for (std::string_view name : {action_name<static_cast<TraceEntry::Action>(values)>()...}) {
    std::printf(" %.*s", static_cast<int>(name.size()), name.data());
  }
  std::printf("\n");
}

}  // namespace

#define PRINT_OFFSET(member) std::printf(#member " %zu\n", offsetof(TraceEntry, member))
#define PRINT_OPTIONAL(member) print_optional(#member, offset_of_##member<TraceEntry>())

int main() {
  std::printf("attach_slot %zu\n", vtable_slot(&CUDAAllocator::attachAllocatorTraceTracker));
  std::printf("entry_size %zu\n", sizeof(TraceEntry));
  PRINT_OFFSET(action_);
  PRINT_OFFSET(device_);
  PRINT_OFFSET(addr_);
  PRINT_OFFSET(context_);
  PRINT_OFFSET(stream_);
  PRINT_OFFSET(size_);
  PRINT_OFFSET(time_);
  PRINT_OPTIONAL(mempool_);
  PRINT_OPTIONAL(compile_context_);
  PRINT_OPTIONAL(user_metadata_);
  print_actions(std::make_integer_sequence<int, action_count()>());
  std::printf("sequence_nr_ %zu\n", NodeOffsets::sequence_nr());
}
