//! A device that exists only as numbers.

use std::collections::{BTreeMap, VecDeque};

use vramscope_trace::StreamId;

use crate::device::{Device, DeviceError, DeviceMemory, StreamEvent};

/// A device with a capacity and no memory: for tests, and for asking what a program's requests would have done elsewhere.
#[derive(Clone, Debug)]
pub struct SimulatedDevice {
    capacity_bytes: u64,
    used_bytes: u64,
    script: VecDeque<u64>,
    next_address: u64,
    calls: u64,
    faults: BTreeMap<u64, DeviceError>,
    /// Events are numbered in order of recording; those below have passed.
    passed_events: u64,
    next_event: u64,
}

impl SimulatedDevice {
    /// Where memory lies that no script places; ranges follow each other from there.
    const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;
    /// What addresses are multiples of, as on a GPU.
    const ADDRESS_STEP: u64 = 2 << 20;

    /// A device of `capacity_bytes` on which all work is done at once.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            capacity_bytes,
            used_bytes: 0,
            script: VecDeque::new(),
            next_address: Self::FIRST_ADDRESS,
            calls: 0,
            faults: BTreeMap::new(),
            passed_events: u64::MAX,
            next_event: 0,
        }
    }

    /// The same with the next ranges, of memory or of addresses alone, at the places that were recorded elsewhere.
    #[must_use]
    pub fn with_addresses(mut self, addresses: impl IntoIterator<Item = u64>) -> Self {
        self.script.extend(addresses);
        self
    }

    /// The same with an error in place of an answer to the call with that number; the first is 0, and every call of [`Device`] that can
    /// fail counts.
    #[must_use]
    pub fn with_fault(mut self, call: u64, error: DeviceError) -> Self {
        self.faults.insert(call, error);
        self
    }

    /// The same with events that pass only when [`pass_events`](Self::pass_events) says so, or when they are waited for.
    #[must_use]
    pub fn with_events_held(mut self) -> Self {
        self.passed_events = 0;
        self
    }

    /// Lets the `count` oldest events pass that have not.
    pub fn pass_events(&mut self, count: u64) {
        self.passed_events = self.passed_events.saturating_add(count).min(self.next_event);
    }

    fn next_call(&mut self) -> Result<(), DeviceError> {
        let call = self.calls;
        self.calls += 1;
        if self.faults.is_empty() {
            return Ok(());
        }
        self.faults.remove(&call).map_or(Ok(()), Err)
    }

    fn use_bytes(&mut self, bytes: u64) -> Result<(), DeviceError> {
        let used = self.used_bytes.checked_add(bytes).filter(|&used| used <= self.capacity_bytes);
        self.used_bytes = used.ok_or(DeviceError::OutOfMemory)?;
        Ok(())
    }

    fn place(&mut self, bytes: u64) -> u64 {
        if let Some(address) = self.script.pop_front() {
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
        Ok(self.place(bytes))
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
        Ok(self.place(bytes))
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
