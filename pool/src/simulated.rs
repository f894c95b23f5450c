//! A device that exists only as numbers.

use std::collections::{BTreeMap, VecDeque};

use crate::device::{Device, DeviceError, DeviceMemory};

/// A device with a capacity and no memory: for tests, and for asking what a program's requests would have done elsewhere.
#[derive(Clone, Debug)]
pub struct SimulatedDevice {
    capacity_bytes: u64,
    used_bytes: u64,
    script: VecDeque<u64>,
    next_address: u64,
    calls: u64,
    faults: BTreeMap<u64, DeviceError>,
}

impl SimulatedDevice {
    /// Where segments lie that no script places; they follow each other from there.
    const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;
    /// What their addresses are multiples of, as on a GPU.
    const ADDRESS_STEP: u64 = 2 << 20;

    /// A device of `capacity_bytes`.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            capacity_bytes,
            used_bytes: 0,
            script: VecDeque::new(),
            next_address: Self::FIRST_ADDRESS,
            calls: 0,
            faults: BTreeMap::new(),
        }
    }

    /// The same with the next segments at the addresses that were recorded elsewhere.
    #[must_use]
    pub fn with_addresses(mut self, addresses: impl IntoIterator<Item = u64>) -> Self {
        self.script.extend(addresses);
        self
    }

    /// The same with an error in place of an answer to the call with that number; the first is 0, and each
    /// [`reserve`](Device::reserve) and [`release`](Device::release) counts.
    #[must_use]
    pub fn with_fault(mut self, call: u64, error: DeviceError) -> Self {
        self.faults.insert(call, error);
        self
    }

    fn next_call(&mut self) -> Result<(), DeviceError> {
        let call = self.calls;
        self.calls += 1;
        self.faults.remove(&call).map_or(Ok(()), Err)
    }
}

impl Device for SimulatedDevice {
    fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        self.next_call()?;
        let used = self.used_bytes.checked_add(bytes).filter(|&used| used <= self.capacity_bytes);
        self.used_bytes = used.ok_or(DeviceError::OutOfMemory)?;
        if let Some(address) = self.script.pop_front() {
            return Ok(address);
        }
        let address = self.next_address;
        self.next_address = address.saturating_add(bytes.next_multiple_of(Self::ADDRESS_STEP));
        Ok(address)
    }

    fn release(&mut self, _: u64, bytes: u64) -> Result<(), DeviceError> {
        self.next_call()?;
        self.used_bytes -= bytes;
        Ok(())
    }

    fn memory(&self) -> DeviceMemory {
        DeviceMemory { free_bytes: self.capacity_bytes - self.used_bytes, total_bytes: self.capacity_bytes }
    }
}
