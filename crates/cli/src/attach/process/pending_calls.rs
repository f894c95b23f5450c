//! Runs a Python program in a process through the interpreter's queue of pending calls (Python 3.10
//! to 3.13).
//!
//! The interpreter calls the C functions in this queue between two instructions of a Python
//! program, where any Python code may run. [`enqueue`] adds the call `PyRun_SimpleString(text)`, as
//! `Py_AddPendingCall` does in the process itself. Up to Python 3.11 only the main thread runs
//! pending calls; later, the first thread to look at the queue does.

use super::image::PythonImage;
use super::layout::{EvalBreaker, MainInterpreter, is_function_or_null, unknown};
use super::stop::{Attempt, StopError};
use super::target::{Mapping, TargetProcess};
use super::text_space::find_space;
use crate::error::Result;

/// The bit of a thread's eval breaker for pending calls (`_PY_CALLS_TO_DO_BIT`).
const CALLS_TO_DO_BIT: u64 = 1 << 2;

/// Offsets in the structure of the queue of pending calls, for a range of Python versions.
struct QueueLayout {
    /// Number of calls that the queue can hold.
    capacity: usize,
    /// Size of a call: function, argument and, from 3.13 on, flags.
    call_bytes: usize,
    calls: usize,
    /// Up to 3.12 a truth value (the queue has calls), from 3.13 on the number of calls; 32 bits.
    count: usize,
    /// Index of the oldest call, 32 bits. The index behind the newest call follows it.
    first: usize,
    lock: Lock,
}

/// The lock that protects a queue, by its offset.
enum Lock {
    /// A pointer to a semaphore, which is 0 while the lock is held.
    Semaphore(usize),
    /// A byte whose lowest bit is 1 while the lock is held.
    Byte(usize),
}

impl QueueLayout {
    /// Returns the layout in Python 3.`minor`.
    fn of(minor: u8) -> Self {
        let older = |start| Self {
            capacity: 32,
            call_bytes: 16,
            calls: start + 16,
            count: start + 8,
            first: start + 528,
            lock: Lock::Semaphore(start),
        };
        match minor {
            10 | 11 => older(0),
            12 => older(8),
            _ => Self { capacity: 300, call_bytes: 24, calls: 24, count: 12, first: 7224, lock: Lock::Byte(8) },
        }
    }

    /// Size of the structure in bytes.
    fn len(&self) -> usize {
        self.first + 8
    }
}

/// The queue of pending calls of an interpreter: a copy of its bytes.
struct Queue {
    bytes: Vec<u8>,
    layout: QueueLayout,
}

impl Queue {
    /// Returns the 32-bit number at an offset in the queue's structure.
    fn number(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.bytes[offset..offset + 4].try_into().expect("four bytes"))
    }

    /// Sets the 32-bit number at an offset in the queue's structure.
    fn set_number(&mut self, offset: usize, value: u32) {
        self.bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Returns the 64-bit pointer at an offset in the queue's structure.
    fn pointer(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.bytes[offset..offset + 8].try_into().expect("eight bytes"))
    }

    /// Returns whether a thread of the process holds the lock; `None` if there is no valid lock.
    fn is_locked(&self, process: &TargetProcess) -> Option<bool> {
        match self.layout.lock {
            Lock::Semaphore(offset) => match process.read_i32(self.pointer(offset)).ok()? {
                value @ 0..=1 => Some(value == 0),
                _ => None,
            },
            // Bit 1 is set while threads wait for the lock.
            Lock::Byte(offset) => (self.bytes[offset] < 4).then(|| self.bytes[offset] & 1 != 0),
        }
    }

    /// Returns true if the bytes are consistent with a queue of pending calls.
    fn is_plausible(&self, mappings: &[Mapping]) -> bool {
        let layout = &self.layout;
        let (capacity, count) = (layout.capacity as u32, self.number(layout.count));
        let (first, next) = (self.number(layout.first), self.number(layout.first + 4));
        let are_numbers_valid = match layout.lock {
            Lock::Semaphore(_) => count <= 1,
            // The structure also has the maximum number of calls in the queue and in one run.
            Lock::Byte(_) => {
                let limits = [self.number(layout.count + 4), self.number(layout.count + 8)];
                limits == [capacity, 100] && count <= capacity && (first + count) % capacity == next
            }
        };
        let mut functions = (0..layout.capacity).map(|index| self.pointer(layout.calls + index * layout.call_bytes));
        are_numbers_valid
            && first < capacity
            && next < capacity
            && functions.all(|function| is_function_or_null(mappings, function))
    }

    /// Returns the arguments of the calls in the queue.
    fn arguments(&self) -> Vec<u64> {
        let (first, next) = (self.number(self.layout.first), self.number(self.layout.first + 4));
        let capacity = self.layout.capacity as u32;
        let len = match self.layout.lock {
            Lock::Semaphore(_) => (next + capacity - first) % capacity,
            Lock::Byte(_) => self.number(self.layout.count),
        };
        let indices = (first..first + len).map(|index| (index % capacity) as usize);
        indices.map(|index| self.pointer(self.layout.calls + index * self.layout.call_bytes + 8)).collect()
    }

    fn is_full(&self) -> bool {
        let (first, next) = (self.number(self.layout.first), self.number(self.layout.first + 4));
        match self.layout.lock {
            Lock::Semaphore(_) => (next + 1) % self.layout.capacity as u32 == first,
            Lock::Byte(_) => self.number(self.layout.count) as usize == self.layout.capacity,
        }
    }

    /// Adds a call.
    fn push(&mut self, function: u64, argument: u64) {
        let index = self.number(self.layout.first + 4) as usize;
        let call = self.layout.calls + index * self.layout.call_bytes;
        self.bytes[call..call + self.layout.call_bytes].fill(0);
        self.bytes[call..call + 8].copy_from_slice(&function.to_le_bytes());
        self.bytes[call + 8..call + 16].copy_from_slice(&argument.to_le_bytes());
        self.set_number(self.layout.first + 4, ((index + 1) % self.layout.capacity) as u32);
        let count = match self.layout.lock {
            Lock::Semaphore(_) => 1,
            Lock::Byte(_) => self.number(self.layout.count) + 1,
        };
        self.set_number(self.layout.count, count);
    }

    /// Returns the bytes that [`push`](Self::push) may have changed, and their offset.
    fn changed(&self) -> (usize, &[u8]) {
        (self.layout.count, &self.bytes[self.layout.count..])
    }
}

/// The queue of pending calls of a process, with the addresses that a change needs. Valid while the
/// process is stopped.
struct RemoteQueue<'a> {
    process: &'a TargetProcess,
    image: &'a PythonImage,
    mappings: Vec<Mapping>,
    queue: Queue,
    /// Address of the queue in the process.
    address: u64,
    breakers: EvalBreakers,
}

impl<'a> RemoteQueue<'a> {
    /// Reads the queue and checks that its bytes are plausible.
    fn read(process: &'a TargetProcess, image: &'a PythonImage) -> Attempt<Self> {
        let mappings = process.mappings()?;
        let interpreter = MainInterpreter::find(process, image)?;
        let address = interpreter.address + interpreter.layout.queue;
        let layout = QueueLayout::of(image.version.minor);
        let bytes = process.read(address, layout.len())?;
        let queue = Queue { bytes, layout };
        match queue.is_locked(process).filter(|_| queue.is_plausible(&mappings)) {
            None => Err(unknown(process, image).into()),
            Some(true) => Err(StopError::Busy(format!("the interpreter of process {} is busy", process.pid()))),
            Some(false) => {
                let breakers = eval_breakers(process, image, &interpreter)?;
                Ok(Self { process, image, mappings, queue, address, breakers })
            }
        }
    }

    /// Copies the Python program `text` into the process, adds a call that runs it to the queue,
    /// and adds the copy's address to `texts`.
    fn push(self, text: &str, texts: &mut Vec<u64>) -> Attempt {
        let Self { process, image, mappings, mut queue, address, breakers } = self;
        if queue.is_full() {
            return Err(StopError::Busy(format!("process {} has too many pending calls", process.pid())));
        }
        let (space, len) = find_space(process, &mappings, text, &queue.arguments())?;
        let mut padded = text.as_bytes().to_vec();
        padded.resize(len, 0);
        process.write(space, &padded)?;
        queue.push(image.run_simple_string, space);
        // The address is added before the write, which may fail half-way.
        if !texts.contains(&space) {
            texts.push(space);
        }
        // One write for the call and the numbers, so that the queue stays valid if this command is
        // killed in the middle.
        let (offset, changed) = queue.changed();
        process.write(address + offset as u64, changed)?;
        Ok(set_eval_breakers(process, &breakers)?)
    }
}

/// Copies the Python program `text` into the process, adds a call that runs it to the queue, and
/// adds the copy's address to `texts`. The process must be stopped.
pub(super) fn enqueue(process: &TargetProcess, image: &PythonImage, text: &str, texts: &mut Vec<u64>) -> Attempt {
    RemoteQueue::read(process, image)?.push(text, texts)
}

/// Repeats [`enqueue`] for a program that has not started. Up to Python 3.12 the interpreter can
/// overlook a call, because a thread recomputes the eval breaker without a lock. The process must
/// be stopped.
pub(super) fn repeat(process: &TargetProcess, image: &PythonImage, text: &str, texts: &mut Vec<u64>) -> Attempt {
    let queue = RemoteQueue::read(process, image)?;
    for address in queue.queue.arguments().into_iter().filter(|address| texts.contains(address)) {
        if process.read(address, text.len())? == text.as_bytes() {
            return Ok(set_eval_breakers(process, &queue.breakers)?);
        }
    }
    queue.push(text, texts)
}

/// Withdraws the program `text` from the addresses `texts`: writes the byte `withdrawal.1` at the
/// offset `withdrawal.0`, so that a queued call does nothing. A thread that reads the text
/// meanwhile reads it with the old or the new byte. The process must be stopped.
pub(super) fn withdraw(process: &TargetProcess, text: &str, texts: &[u64], withdrawal: (usize, u8)) -> Attempt {
    for &address in texts {
        // Another command may have written its own text to this address.
        if process.read(address, text.len())? == text.as_bytes() {
            process.write(address + withdrawal.0 as u64, &[withdrawal.1])?;
        }
    }
    Ok(())
}

/// The addresses of an interpreter's eval breakers, and the bytes to write there.
type EvalBreakers = Vec<(u64, Vec<u8>)>;

/// Returns the values of the eval breakers that make the interpreter check its queue.
fn eval_breakers(process: &TargetProcess, image: &PythonImage, interpreter: &MainInterpreter) -> Result<EvalBreakers> {
    match interpreter.layout.eval_breaker {
        EvalBreaker::Interpreter(offset) => {
            let address = interpreter.address + offset;
            if !matches!(process.read_i32(address)?, 0..=1) {
                return Err(unknown(process, image));
            }
            Ok(vec![(address, 1_i32.to_le_bytes().to_vec())])
        }
        EvalBreaker::Thread(offset) => {
            let with_bit = |thread: &u64| {
                let address = thread + offset;
                Ok((address, (process.read_u64(address)? | CALLS_TO_DO_BIT).to_le_bytes().to_vec()))
            };
            interpreter.threads.iter().map(with_bit).collect()
        }
    }
}

/// Writes the eval breakers, so that the interpreter checks its queue.
fn set_eval_breakers(process: &TargetProcess, breakers: &EvalBreakers) -> Result {
    breakers.iter().try_for_each(|(address, bytes)| process.write(*address, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(minor: u8) -> Queue {
        let layout = QueueLayout::of(minor);
        let mut queue = Queue { bytes: vec![0; layout.len()], layout };
        if minor == 13 {
            queue.set_number(16, 300);
            queue.set_number(20, 100);
        }
        queue
    }

    #[test]
    fn pushed_calls_keep_the_queue_plausible_until_it_is_full() {
        let code = Mapping {
            start: 0x1000,
            end: 0x2000,
            is_writable: false,
            is_executable: true,
            offset: 0,
            path: "python".into(),
        };
        for (minor, capacity) in [(10, 31), (11, 31), (12, 31), (13, 300)] {
            let mut queue = queue(minor);
            let mut pushed = 0;
            while !queue.is_full() {
                queue.push(0x1800, 0x9000 + pushed);
                pushed += 1;
                assert!(queue.is_plausible(std::slice::from_ref(&code)), "3.{minor}: {pushed}");
            }
            assert_eq!(pushed, capacity, "3.{minor}");
            let newest = queue.layout.calls + (pushed as usize - 1) * queue.layout.call_bytes;
            assert_eq!((queue.pointer(newest), queue.pointer(newest + 8)), (0x1800, 0x9000 + pushed - 1));
            assert_eq!(queue.arguments(), (0x9000..0x9000 + pushed).collect::<Vec<_>>(), "3.{minor}");
            assert!(!queue.is_plausible(&[]), "3.{minor}: a function that is not code");
        }
    }

    #[test]
    fn arbitrary_bytes_are_not_accepted_as_a_queue() {
        for minor in [10, 12, 13] {
            let mut wrong = queue(minor);
            wrong.set_number(wrong.layout.first, 300);
            assert!(!wrong.is_plausible(&[]), "3.{minor}");
            let mut wrong = queue(minor);
            wrong.set_number(wrong.layout.count, 301);
            assert!(!wrong.is_plausible(&[]), "3.{minor}");
        }
    }
}
