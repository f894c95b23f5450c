// Reads the layout of PyTorch's classes from the headers of one PyTorch wheel, with g++.

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

using c10::cuda::CUDACachingAllocator::CUDAAllocator;
using c10::cuda::CUDACachingAllocator::TraceEntry;

// Returns the vtable slot of a virtual member function. In the Itanium C++ ABI, a pointer to a
// virtual member function holds 1 + the byte offset in the vtable.
template <class Function>
std::size_t vtable_slot(Function function) {
  struct {
    std::uintptr_t offset_plus_one;
    std::ptrdiff_t adjustment;
  } parts;
  static_assert(sizeof parts == sizeof function);
  std::memcpy(&parts, &function, sizeof parts);
  return (parts.offset_plus_one - 1) / sizeof(void*);
}

// The offset of a member that this version of TraceEntry lacks.
constexpr long kAbsent = -1;

// Defines `offset_of_MEMBER<TraceEntry>()`, for a member that only some versions have.
#define DEFINE_OPTIONAL_OFFSET(member)                  \
  template <class Entry>                                \
  constexpr long offset_of_##member() {                 \
    if constexpr (requires(Entry & e) { e.member; }) {  \
      return offsetof(Entry, member);                   \
    } else {                                            \
      return kAbsent;                                   \
    }                                                   \
  }
DEFINE_OPTIONAL_OFFSET(mempool_)
DEFINE_OPTIONAL_OFFSET(compile_context_)
DEFINE_OPTIONAL_OFFSET(user_metadata_)

// The types that crates/hook/src/torch/layouts.rs documents.
static_assert(sizeof(TraceEntry::action_) == 4);
static_assert(std::is_same_v<decltype(TraceEntry::device_), std::int8_t>);
static_assert(std::is_same_v<decltype(TraceEntry::addr_), std::uint64_t>);
static_assert(std::is_pointer_v<decltype(TraceEntry::stream_)>);
static_assert(std::is_same_v<decltype(TraceEntry::size_), std::uint64_t>);
static_assert(std::is_union_v<decltype(TraceEntry::time_)> && sizeof(TraceEntry::time_) == 8);

#define ASSERT_OPTIONAL_TYPE(member, Type)                                        \
  template <class Entry>                                                          \
  constexpr bool has_type_##member() {                                            \
    if constexpr (offset_of_##member<Entry>() != kAbsent) {                       \
      return std::is_same_v<decltype(Entry::member), Type>;                       \
    }                                                                             \
    return true;                                                                  \
  }                                                                               \
  static_assert(has_type_##member<TraceEntry>());
using MempoolId = std::pair<unsigned long long, unsigned long long>;
ASSERT_OPTIONAL_TYPE(mempool_, MempoolId)
ASSERT_OPTIONAL_TYPE(compile_context_, std::string)
ASSERT_OPTIONAL_TYPE(user_metadata_, std::string)

// Gives access to a protected member of Node. Node is the only base, so offsets are equal in both.
struct NodeOffsets : torch::autograd::Node {
  static constexpr std::size_t sequence_nr() {
    static_assert(std::is_same_v<decltype(sequence_nr_), std::uint64_t>);
    return offsetof(NodeOffsets, sequence_nr_);
  }
};

// Returns the name of an enumerator; empty if the enumeration has no enumerator of this value.
// g++ writes a value without a name as a cast: `(Action)10`.
template <TraceEntry::Action action>
constexpr std::string_view action_name() {
  std::string_view name = __PRETTY_FUNCTION__;
  name.remove_prefix(name.find("action = ") + sizeof("action = ") - 1);
  name = name.substr(0, name.find_first_of(";]"));
  return name.front() == '(' ? std::string_view() : name.substr(name.rfind(':') + 1);
}

// Returns the number of enumerators of TraceEntry::Action, which count from 0.
template <int value = 0>
constexpr int action_count() {
  if constexpr (action_name<static_cast<TraceEntry::Action>(value)>().empty()) {
    return value;
  } else {
    return action_count<value + 1>();
  }
}
