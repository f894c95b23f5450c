// Threads that allocate and free memory of random sizes at a given rate.
#pragma once

#include <chrono>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "device_allocator.h"

namespace standin {

using Devices = std::vector<std::unique_ptr<DeviceAllocator>>;

/// What a storm did; also read by ctypes and Rust.
struct StormCounts {
  uint64_t allocations;
  uint64_t frees;
  uint64_t failures;
  uint64_t nanoseconds;
};

/// Number of blocks that a thread keeps at most.
constexpr size_t MAX_LIVE_BLOCKS = 256;
/// Number of allocations and frees between two looks at the clock.
constexpr int BATCH = 32;
/// One of this many steps empties the cache.
constexpr uint32_t EMPTY_CACHE_STEPS = 50'000;

/// Returns a size in bytes: most requests are small, as in training programs.
inline uint64_t random_size(std::minstd_rand& random) {
  const uint32_t kind = random() % 100;
  if (kind < 70) return 1 + random() % (8 << 10);
  if (kind < 95) return 1 + random() % (1 << 20);
  return 1 + random() % (16 << 20);
}

/// Runs one thread of a storm. An allocation counts as one event and a free as two, as in PyTorch.
/// Leaves a part of the blocks allocated.
inline StormCounts storm_thread(DeviceAllocator& device, double events_per_second, double seconds, uint64_t stream,
                                uint32_t seed) {
  using Clock = std::chrono::steady_clock;
  std::minstd_rand random(seed);
  std::vector<uint64_t> live;
  StormCounts counts{};
  const auto begin = Clock::now();
  const auto end = begin + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    for (int step = 0; step < BATCH; ++step) {
      if (random() % EMPTY_CACHE_STEPS == 0) device.empty_cache();
      const bool allocates = live.size() < MAX_LIVE_BLOCKS && (live.empty() || random() % 2 == 0);
      if (allocates) {
        const uint64_t address = device.allocate(random_size(random), stream);
        address ? live.push_back(address) : void(counts.failures++);
        counts.allocations++;
      }
      if (!allocates || live.size() == MAX_LIVE_BLOCKS) {
        std::swap(live[random() % live.size()], live.back());
        device.free(live.back());
        live.pop_back();
        counts.frees++;
      }
    }
    const double events = counts.allocations + 2 * counts.frees;
    const auto due = begin + std::chrono::duration<double>(events / events_per_second);
    // Short waits would cost more than they are long.
    if (due - Clock::now() > std::chrono::milliseconds(1)) std::this_thread::sleep_until(due);
  }
  return counts;
}

/// Runs `threads` threads for a time; thread i uses device i % `devices`. Every fourth thread uses
/// a stream of its own.
inline StormCounts storm(Devices& devices, int threads, double events_per_second, double seconds, int device_count,
                         uint64_t seed) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<StormCounts> counts(threads);
  std::vector<std::thread> running;
  for (int index = 0; index < threads; ++index) {
    running.emplace_back([&, index] {
      const uint64_t stream = index % 4 == 3 ? 0x5500'0000'1000 + 0x100 * index : 0;
      counts[index] = storm_thread(*devices[index % device_count], events_per_second / threads, seconds, stream,
                                   static_cast<uint32_t>(seed * 1000 + index + 1));
    });
  }
  StormCounts sum{};
  for (int index = 0; index < threads; ++index) {
    running[index].join();
    sum.allocations += counts[index].allocations;
    sum.frees += counts[index].frees;
    sum.failures += counts[index].failures;
  }
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  sum.nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count();
  return sum;
}

}  // namespace standin
