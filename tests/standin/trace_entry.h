// PyTorch's classes that a trace tracker depends on, with the layout of one version.
//
// The macros LAYOUT_… come from `crates/hook/src/torch/layouts.rs`:
//
// - LAYOUT_ATTACH_SLOT: index of `attachAllocatorTraceTracker` in the vtable of `CUDAAllocator`.
// - LAYOUT_ENTRY_SIZE, LAYOUT_TIME: size of `TraceEntry`, and the offset of its time, in bytes.
// - LAYOUT_MEMPOOL, LAYOUT_COMPILE_CONTEXT, LAYOUT_USER_METADATA: offsets in bytes; undefined if
//   this version lacks the member.
// - LAYOUT_ACTIONS: number of values of `TraceEntry::Action`.
// - MOVED_STREAM, MOVED_MEMPOOL, MOVED_TIME: defined for an unknown build, in which the member is the
//   last one and other data takes its place.
// - LAYOUT_SHARED_ENTRY: defined if `TraceEntry` is in the namespace `c10::CachingDeviceAllocator`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace c10 {

using MempoolId_t = std::pair<unsigned long long, unsigned long long>;

struct GatheredContext {
  virtual ~GatheredContext() = default;
};

#ifdef LAYOUT_SHARED_ENTRY
namespace CachingDeviceAllocator {
#else
namespace cuda::CUDACachingAllocator {
#endif

struct TraceEntry {
  enum Action : int {
    ALLOC,
    FREE_REQUESTED,
    FREE_COMPLETED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    SNAPSHOT,
    OOM,
#if LAYOUT_ACTIONS > 9
    ANNOTATE,
#endif
    ACTIONS,
  };

  Action action_;
  int8_t device_;
  size_t addr_;
  std::shared_ptr<GatheredContext> context_;
#ifdef MOVED_STREAM
  size_t in_place_of_stream_ = 0x5500'0000'1000;
#else
  void* stream_;
#endif
  size_t size_;
#if defined(MOVED_MEMPOOL)
  size_t in_place_of_mempool_[2] = {0x5500'0000'1000, 7};
#elif defined(LAYOUT_MEMPOOL)
  MempoolId_t mempool_;
#endif
  union Time {
    int64_t t_;
    uint64_t approx_t_;
  };
#ifdef MOVED_TIME
  size_t in_place_of_time_ = 0x5500'0000'1000;
#else
  Time time_;
#endif
#ifdef LAYOUT_COMPILE_CONTEXT
  std::string compile_context_;
#endif
#ifdef LAYOUT_USER_METADATA
  std::string user_metadata_;
#endif
#if LAYOUT_ENTRY_SIZE > 136
  std::string further_text_;
#endif
#ifdef MOVED_STREAM
  void* stream_;
#endif
#ifdef MOVED_MEMPOOL
  MempoolId_t mempool_;
#endif
#ifdef MOVED_TIME
  Time time_;
#endif
};

#if !defined(MOVED_STREAM) && !defined(MOVED_MEMPOOL) && !defined(MOVED_TIME)

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
static_assert(sizeof(TraceEntry) == LAYOUT_ENTRY_SIZE);
static_assert(TraceEntry::ACTIONS == LAYOUT_ACTIONS);
static_assert(offsetof(TraceEntry, device_) == 4 && offsetof(TraceEntry, addr_) == 8);
static_assert(offsetof(TraceEntry, stream_) == 32 && offsetof(TraceEntry, size_) == 40);
static_assert(offsetof(TraceEntry, time_) == LAYOUT_TIME);
#ifdef LAYOUT_MEMPOOL
static_assert(offsetof(TraceEntry, mempool_) == LAYOUT_MEMPOOL);
#endif
#ifdef LAYOUT_COMPILE_CONTEXT
static_assert(offsetof(TraceEntry, compile_context_) == LAYOUT_COMPILE_CONTEXT);
#endif
#ifdef LAYOUT_USER_METADATA
static_assert(offsetof(TraceEntry, user_metadata_) == LAYOUT_USER_METADATA);
#endif
#pragma GCC diagnostic pop
#endif

#ifdef LAYOUT_SHARED_ENTRY
}  // namespace CachingDeviceAllocator
#else
}  // namespace cuda::CUDACachingAllocator
#endif

namespace cuda::CUDACachingAllocator {

#ifdef LAYOUT_SHARED_ENTRY
using CachingDeviceAllocator::TraceEntry;
#endif
using AllocatorTraceTracker = std::function<void(const TraceEntry&)>;

/// A class with N + 1 virtual functions, which fill the vtable before the function for trackers.
template <int N>
struct OtherFunctions : OtherFunctions<N - 1> {
  using OtherFunctions<N - 1>::other_function;
  virtual int other_function(std::integral_constant<int, N>) { return N; }
};

template <>
struct OtherFunctions<0> {
  virtual int other_function(std::integral_constant<int, 0>) { return 0; }
};

// The variant WRONG_SLOT has one more function before it than the layout says.
#ifdef WRONG_SLOT
constexpr int OTHER_FUNCTIONS = LAYOUT_ATTACH_SLOT + 1;
#else
constexpr int OTHER_FUNCTIONS = LAYOUT_ATTACH_SLOT;
#endif

/// The interface of PyTorch's CUDA allocators.
struct CUDAAllocator : OtherFunctions<OTHER_FUNCTIONS - 1> {
  virtual void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) = 0;
  virtual std::string name() = 0;
};

}  // namespace cuda::CUDACachingAllocator
}  // namespace c10
