// A caching allocator of one device, which decides as PyTorch's does with its default settings.
//
// Its memory does not exist: addresses are numbers. Trackers are called under the device's lock, as
// in PyTorch. Beyond PyTorch it logs all its trace entries, for comparison with a recording.
#pragma once

#include <x86intrin.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "trace_entry.h"

namespace standin {

using c10::cuda::CUDACachingAllocator::AllocatorTraceTracker;
using c10::cuda::CUDACachingAllocator::TraceEntry;

// The constants of `CUDACachingAllocator.cpp`, in bytes.
constexpr uint64_t MIN_BLOCK = 512;
constexpr uint64_t SMALL_SIZE = 1 << 20;
constexpr uint64_t SMALL_SEGMENT = 2 << 20;
constexpr uint64_t LARGE_SEGMENT = 20 << 20;
constexpr uint64_t MIN_LARGE_REQUEST = 10 << 20;
constexpr uint64_t SEGMENT_ROUNDING = 2 << 20;

/// Address of the first device's memory. Each device has ADDRESS_SPACE bytes of addresses.
constexpr uint64_t FIRST_ADDRESS = 0x7f0000000000;
constexpr uint64_t ADDRESS_SPACE = uint64_t{64} << 30;

/// An entry of the log; also read by ctypes and Rust.
struct LogEntry {
  uint64_t action;
  uint64_t address;
  uint64_t size;
  uint64_t stream;
  uint64_t time;
};

/// Counters of a device; also read by ctypes and Rust.
struct Stats {
  uint64_t allocated_bytes, peak_allocated_bytes;
  uint64_t reserved_bytes, peak_reserved_bytes;
  uint64_t requested_bytes;
  uint64_t blocks, segments;
  uint64_t allocations, frees, retries, ooms;
};

struct Block {
  uint64_t stream;
  uint64_t size;
  uint64_t address;
  bool is_small;
  bool is_allocated = false;
  uint64_t requested = 0;
  Block* previous = nullptr;
  Block* next = nullptr;
};

/// Orders free blocks as PyTorch does: best fit by size, then by address, for each stream.
struct FreeBlockOrder {
  bool operator()(const Block* a, const Block* b) const {
    return std::tie(a->stream, a->size, a->address) < std::tie(b->stream, b->size, b->address);
  }
};

inline uint64_t round_up(uint64_t size, uint64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

class DeviceAllocator {
 public:
  explicit DeviceAllocator(int device) : device_(device), first_address_(FIRST_ADDRESS + device * ADDRESS_SPACE) {}

  /// Returns the address of a new block; 0 if the device is out of memory.
  uint64_t allocate(uint64_t requested, uint64_t stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t size = round_up(std::max(requested, uint64_t{1}), MIN_BLOCK);
    const bool is_small = size <= SMALL_SIZE;
    Block* block = take_free_block(size, stream, is_small);
    if (block == nullptr) block = new_segment(size, stream, is_small);
    if (block == nullptr) {
      stats_.retries++;
      release_cached_segments();
      block = new_segment(size, stream, is_small);
    }
    if (block == nullptr) {
      stats_.ooms++;
      record(TraceEntry::OOM, limit_ - std::min(limit_, stats_.reserved_bytes), size, stream);
      return 0;
    }
    const uint64_t rest = block->size - size;
    if (is_small ? rest >= MIN_BLOCK : rest > SMALL_SIZE) {
      Block* remaining = new Block{stream, rest, block->address + size, is_small};
      remaining->previous = block;
      remaining->next = block->next;
      if (remaining->next) remaining->next->previous = remaining;
      block->next = remaining;
      block->size = size;
      free_blocks(is_small).insert(remaining);
    }
    block->is_allocated = true;
    block->requested = requested;
    live_blocks_[block->address] = block;
    stats_.allocations++;
    stats_.blocks++;
    stats_.requested_bytes += requested;
    stats_.allocated_bytes += block->size;
    stats_.peak_allocated_bytes = std::max(stats_.peak_allocated_bytes, stats_.allocated_bytes);
    record(TraceEntry::ALLOC, block->address, requested, stream);
    return block->address;
  }

  /// Frees the block at an address. Returns false if there is none.
  bool free(uint64_t address) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = live_blocks_.find(address);
    if (found == live_blocks_.end()) return false;
    Block* block = found->second;
    live_blocks_.erase(found);
    record(TraceEntry::FREE_REQUESTED, address, block->requested, block->stream);
    record(TraceEntry::FREE_COMPLETED, address, block->requested, block->stream);
    block->is_allocated = false;
    stats_.frees++;
    stats_.blocks--;
    stats_.requested_bytes -= block->requested;
    stats_.allocated_bytes -= block->size;
    auto& blocks = free_blocks(block->is_small);
    if (Block* previous = block->previous; previous && !previous->is_allocated) {
      blocks.erase(previous);
      // The merged block begins where the previous one did.
      block->address = previous->address;
      block->size += previous->size;
      block->previous = previous->previous;
      if (block->previous) block->previous->next = block;
      if (auto segment = segments_.find(block->address); segment != segments_.end()) segment->second.first = block;
      delete previous;
    }
    if (Block* next = block->next; next && !next->is_allocated) {
      blocks.erase(next);
      block->size += next->size;
      block->next = next->next;
      if (block->next) block->next->previous = block;
      delete next;
    }
    blocks.insert(block);
    return true;
  }

  void empty_cache() {
    std::lock_guard<std::mutex> lock(mutex_);
    release_cached_segments();
  }

  void set_limit(uint64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    limit_ = bytes;
  }

  Stats stats() {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }

  void attach(const AllocatorTraceTracker& tracker) {
    std::lock_guard<std::mutex> lock(mutex_);
    trackers_.push_back(tracker);
  }

  /// Appends the device's segments to `json`, in the form of `torch.cuda.memory._snapshot()`.
  void snapshot(std::string& json) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [address, segment] : segments_) append_segment(json, address, segment);
    record(TraceEntry::SNAPSHOT, 0, stats_.allocated_bytes, 0);
  }

  /// Calls the trackers for a snapshot of a private pool that does not exist. The log has no entry.
  void snapshot_of_unknown_pool(uint64_t first, uint64_t second) {
    std::lock_guard<std::mutex> lock(mutex_);
    TraceEntry entry = new_entry(TraceEntry::SNAPSHOT, 0, 0, 0);
#ifdef LAYOUT_MEMPOOL
    entry.mempool_ = {first, second};
#else
    (void)first, (void)second;
#endif
    for (const auto& tracker : trackers_) tracker(entry);
  }

  /// Copies up to `count` entries of the log, from number `first` on; returns how many.
  uint64_t read_log(uint64_t first, uint64_t count, LogEntry* entries) {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t available = log_.size() - std::min<uint64_t>(first, log_.size());
    count = std::min(count, available);
    std::copy_n(log_.begin() + first, count, entries);
    return count;
  }

 private:
  struct Segment {
    uint64_t size;
    Block* first;
  };
  using FreeBlocks = std::set<Block*, FreeBlockOrder>;

  FreeBlocks& free_blocks(bool is_small) { return is_small ? small_ : large_; }

  Block* take_free_block(uint64_t size, uint64_t stream, bool is_small) {
    FreeBlocks& blocks = free_blocks(is_small);
    Block key{stream, size, 0, is_small};
    auto found = blocks.lower_bound(&key);
    if (found == blocks.end() || (*found)->stream != stream) return nullptr;
    Block* block = *found;
    blocks.erase(found);
    return block;
  }

  /// Returns the block of a new segment; null if the limit does not allow it.
  Block* new_segment(uint64_t size, uint64_t stream, bool is_small) {
    uint64_t bytes = SMALL_SEGMENT;
    if (!is_small) bytes = size < MIN_LARGE_REQUEST ? LARGE_SEGMENT : round_up(size, SEGMENT_ROUNDING);
    if (bytes > limit_ || stats_.reserved_bytes > limit_ - bytes) return nullptr;
    // The first gap of addresses, as drivers reuse addresses.
    uint64_t address = first_address_;
    for (const auto& [start, segment] : segments_) {
      if (start - address >= bytes) break;
      address = start + segment.size;
    }
    if (address + bytes > first_address_ + ADDRESS_SPACE) return nullptr;
    Block* block = new Block{stream, bytes, address, is_small};
    segments_[address] = Segment{bytes, block};
    stats_.segments++;
    stats_.reserved_bytes += bytes;
    stats_.peak_reserved_bytes = std::max(stats_.peak_reserved_bytes, stats_.reserved_bytes);
    record(TraceEntry::SEGMENT_ALLOC, address, bytes, stream);
    return block;
  }

  void release_cached_segments() {
    for (FreeBlocks* blocks : {&large_, &small_}) {
      for (auto at = blocks->begin(); at != blocks->end();) {
        Block* block = *at;
        if (block->previous || block->next) {
          ++at;
          continue;
        }
        record(TraceEntry::SEGMENT_FREE, block->address, block->size, block->stream);
        stats_.segments--;
        stats_.reserved_bytes -= block->size;
        segments_.erase(block->address);
        at = blocks->erase(at);
        delete block;
      }
    }
  }

  TraceEntry new_entry(TraceEntry::Action action, uint64_t address, uint64_t size, uint64_t stream) {
    TraceEntry entry{};
    entry.action_ = action;
    // As in PyTorch, an entry of a snapshot has device 0 whichever device it is about.
    entry.device_ = static_cast<int8_t>(action == TraceEntry::SNAPSHOT ? 0 : device_);
    entry.addr_ = address;
    entry.stream_ = reinterpret_cast<void*>(stream);
    entry.size_ = size;
    entry.time_.approx_t_ = __rdtsc();
    return entry;
  }

  void record(TraceEntry::Action action, uint64_t address, uint64_t size, uint64_t stream) {
    const TraceEntry entry = new_entry(action, address, size, stream);
    log_.push_back(LogEntry{static_cast<uint64_t>(action), address, size, stream, entry.time_.approx_t_});
    for (const auto& tracker : trackers_) tracker(entry);
  }

  void append_segment(std::string& json, uint64_t address, const Segment& segment) const {
    uint64_t allocated = 0, requested = 0;
    std::string blocks;
    for (const Block* block = segment.first; block; block = block->next) {
      if (block->is_allocated) allocated += block->size, requested += block->requested;
      const char* state = block->is_allocated ? "active_allocated" : "inactive";
      append(blocks, "%s{\"address\":%lu,\"size\":%lu,\"requested_size\":%lu,\"state\":\"%s\",\"frames\":[]}",
             blocks.empty() ? "" : ",", block->address, block->size, block->requested, state);
    }
    append(json, "%s{\"device\":%d,\"address\":%lu,\"total_size\":%lu,\"allocated_size\":%lu,\"active_size\":%lu,",
           json.back() == '[' ? "" : ",", device_, address, segment.size, allocated, allocated);
    append(json, "\"requested_size\":%lu,\"stream\":%lu,\"segment_type\":\"%s\",\"segment_pool_id\":[0,0],", requested,
           segment.first->stream, segment.first->is_small ? "small" : "large");
    json += "\"is_expandable\":false,\"frames\":[],\"blocks\":[" + blocks + "]}";
  }

  template <typename... Values>
  static void append(std::string& text, const char* format, Values... values) {
    char line[512];
    text.append(line, std::snprintf(line, sizeof line, format, values...));
  }

  std::mutex mutex_;
  const int device_;
  const uint64_t first_address_;
  uint64_t limit_ = uint64_t{16} << 30;
  Stats stats_{};
  FreeBlocks small_, large_;
  /// Allocated blocks by address.
  std::unordered_map<uint64_t, Block*> live_blocks_;
  /// Segments by address.
  std::map<uint64_t, Segment> segments_;
  std::vector<AllocatorTraceTracker> trackers_;
  std::deque<LogEntry> log_;
};

}  // namespace standin
