// Runs the stand-in's allocator under ThreadSanitizer. The tracker is called only under the
// device's lock, so its plain vectors are no data race, and it sees each entry of the log once.
//
//     g++ -std=c++17 -fsanitize=thread -O1 -g -pthread -DLAYOUT_… tsan.cpp -o tsan && ./tsan

#include "storm.h"

int main() {
  constexpr int DEVICES = 2;
  constexpr int MAX_SNAPSHOTS = 20;
  standin::Devices devices;
  std::vector<std::vector<standin::LogEntry>> seen(DEVICES);
  for (int device = 0; device < DEVICES; ++device) {
    devices.push_back(std::make_unique<standin::DeviceAllocator>(device));
    // A limit that the storm reaches.
    devices.back()->set_limit(uint64_t{100} << 20);
    // Not the entry's device: entries of a snapshot have device 0.
    devices.back()->attach([&seen, device](const standin::TraceEntry& entry) {
      seen[device].push_back({static_cast<uint64_t>(entry.action_), entry.addr_, entry.size_,
                                     reinterpret_cast<uint64_t>(entry.stream_), entry.time_.approx_t_});
    });
  }
  std::thread snapshots([&devices] {
    for (int number = 0; number < MAX_SNAPSHOTS; ++number) {
      std::string json = "[";
      for (auto& device : devices) device->snapshot(json);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  const auto counts = standin::storm(devices, 8, 50'000, 0.5, DEVICES, 1);
  snapshots.join();
  for (int device = 0; device < DEVICES; ++device) {
    std::vector<standin::LogEntry> log(seen[device].size() + 1);
    const uint64_t entries = devices[device]->read_log(0, log.size(), log.data());
    bool is_equal = entries == seen[device].size();
    for (uint64_t index = 0; is_equal && index < entries; ++index) {
      const auto &a = log[index], &b = seen[device][index];
      is_equal = a.action == b.action && a.address == b.address && a.size == b.size && a.stream == b.stream &&
                 a.time == b.time;
    }
    if (!is_equal) {
      std::fprintf(stderr, "device %d: the tracker saw other entries than the log has\n", device);
      return 1;
    }
    std::printf("device %d: %lu entries\n", device, entries);
  }
  std::printf("%lu allocations, %lu failures\n", counts.allocations, counts.failures);
  return counts.failures == 0;
}
