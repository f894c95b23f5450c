//! A simulated device, without memory.

use std::collections::{BTreeMap, VecDeque};

use vramscope_trace::StreamId;

use crate::device::{Device, DeviceError, DeviceMemory, StreamEvent};

/// A device that exists only as numbers, for tests and for predicting what requests would do on a
/// device of another size.
///
/// ```
/// use vramscope_pool::{Device, DeviceError, SimulatedDevice};
///
/// let mut device = SimulatedDevice::new(100 << 20);
/// let address = device.reserve(64 << 20)?;
/// assert_eq!(device.reserve(64 << 20), Err(DeviceError::OutOfMemory));
/// device.release(address, 64 << 20)?;
/// assert_eq!(device.memory().free_bytes, 100 << 20);
/// # Ok::<(), DeviceError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SimulatedDevice {
    capacity_bytes: u64,
    used_bytes: u64,
    /// The first addresses of the next reserved ranges; see
    /// [`with_addresses`](Self::with_addresses).
    scripted_addresses: VecDeque<u64>,
    /// The first address of the next range that has no scripted address.
    next_address: u64,
    /// Number of calls so far of all fallible [`Device`] methods.
    calls: u64,
    /// Errors to return, by number of the call.
    faults: BTreeMap<u64, DeviceError>,
    /// Events are numbered in the order of recording. Events below this number have passed.
    passed_events: u64,
    next_event: u64,
}

impl SimulatedDevice {
    /// The address of the first range that the device reserves without scripted addresses; each
    /// later range follows the one before.
    const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;
    /// Alignment, in bytes, of the addresses that are not scripted; as on a GPU.
    const ADDRESS_STEP: u64 = 2 << 20;

    /// Creates a device of `capacity_bytes` on which queued work finishes at once.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            capacity_bytes,
            used_bytes: 0,
            scripted_addresses: VecDeque::new(),
            next_address: Self::FIRST_ADDRESS,
            calls: 0,
            faults: BTreeMap::new(),
            passed_events: u64::MAX,
            next_event: 0,
        }
    }

    /// Sets the first addresses of the next ranges that are reserved, as memory or only as
    /// addresses. After the last one, the device chooses addresses again.
    #[must_use]
    pub fn with_addresses(mut self, addresses: impl IntoIterator<Item = u64>) -> Self {
        self.scripted_addresses.extend(addresses);
        self
    }

    /// Makes the call with number `call` fail with `error`, once. Calls of all fallible [`Device`]
    /// methods are counted together, from 0.
    #[must_use]
    pub fn with_fault(mut self, call: u64, error: DeviceError) -> Self {
        self.faults.insert(call, error);
        self
    }

    /// Keeps stream events from passing until [`complete_events`](Self::complete_events) is called
    /// or the pool waits for them.
    #[must_use]
    pub fn with_manual_events(mut self) -> Self {
        self.passed_events = 0;
        self
    }

    /// Lets the `count` oldest stream events that have not passed pass, or all if there are fewer.
    pub fn complete_events(&mut self, count: u64) {
        self.passed_events = self.passed_events.saturating_add(count).min(self.next_event);
    }

    /// Counts a call of the device, and returns the error that was set for the call's number, if
    /// any.
    fn next_call(&mut self) -> Result<(), DeviceError> {
        let call = self.calls;
        self.calls += 1;
        if self.faults.is_empty() {
            return Ok(());
        }
        self.faults.remove(&call).map_or(Ok(()), Err)
    }

    /// Adds `bytes` to the used memory; out of memory, changing nothing, if the capacity would be
    /// exceeded.
    fn use_bytes(&mut self, bytes: u64) -> Result<(), DeviceError> {
        let used = self.used_bytes.checked_add(bytes).filter(|&used| used <= self.capacity_bytes);
        self.used_bytes = used.ok_or(DeviceError::OutOfMemory)?;
        Ok(())
    }

    /// Returns the first address for a new range of `bytes`: the next scripted address or, after
    /// the last one, an address above all ranges that were not scripted.
    fn next_range(&mut self, bytes: u64) -> u64 {
        if let Some(address) = self.scripted_addresses.pop_front() {
            return address;
        }
        let address = self.next_address;
        self.next_address = address.saturating_add(bytes.next_multiple_of(Self::ADDRESS_STEP));
        address
    }
}

impl Device for SimulatedDevice {
    fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        self.next_call()?;
        self.use_bytes(bytes)?;
        Ok(self.next_range(bytes))
    }

    fn release(&mut self, _: u64, bytes: u64) -> Result<(), DeviceError> {
        self.next_call()?;
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
        Ok(())
    }

    fn memory(&self) -> DeviceMemory {
        DeviceMemory { free_bytes: self.capacity_bytes - self.used_bytes, total_bytes: self.capacity_bytes }
    }

    fn reserve_addresses(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        self.next_call()?;
        Ok(self.next_range(bytes))
    }

    fn release_addresses(&mut self, _: u64, _: u64) -> Result<(), DeviceError> {
        self.next_call()
    }

    fn map(&mut self, _: u64, bytes: u64, _: u64) -> Result<(), DeviceError> {
        self.next_call()?;
        self.use_bytes(bytes)
    }

    fn unmap(&mut self, _: u64, bytes: u64, _: u64, _: StreamId) -> Result<(), DeviceError> {
        self.next_call()?;
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
        Ok(())
    }

    fn record_event(&mut self, _: StreamId) -> Result<StreamEvent, DeviceError> {
        self.next_call()?;
        self.next_event += 1;
        Ok(StreamEvent(self.next_event - 1))
    }

    fn has_passed(&mut self, event: StreamEvent) -> Result<bool, DeviceError> {
        self.next_call()?;
        Ok(event.0 < self.passed_events)
    }

    fn wait_for(&mut self, event: StreamEvent) -> Result<(), DeviceError> {
        self.next_call()?;
        self.passed_events = self.passed_events.max(event.0.saturating_add(1));
        Ok(())
    }
}
