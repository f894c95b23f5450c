//! Walks the C++ frames of the current thread, innermost first.

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64};
use framehop::{FrameAddress, MustNotAllocateDuringUnwind, Unwinder as _};

use super::code_map::{self, CodeKind};
use super::stack_ranges::stack_of;
use crate::hash::HASH_MULTIPLIER;
use crate::thread_table::thread_pointer;

/// Maximum number of C++ frames of a stack; the outermost ones beyond it are left out.
pub(crate) const MAX_NATIVE_FRAMES: usize = 64;
/// Maximum number of frames that a walk visits, including frames of this library, which
/// [`MAX_NATIVE_FRAMES`] does not count.
const MAX_STEPS: usize = MAX_NATIVE_FRAMES + 16;

/// Number of framehop caches. A cache has 509 slots, and two frames of a stack that share a slot
/// slow each walk down by a microsecond. With 16 caches, this is rare.
const CACHES: usize = 16;

/// A walker of the C++ frames of threads that use one device, one thread at a time.
pub(crate) struct NativeWalker {
    /// Caches of how to unwind frames, selected by a hash of the frame's address.
    caches: Box<[CacheX86_64<MustNotAllocateDuringUnwind>; CACHES]>,
    frames: Box<[u64; MAX_NATIVE_FRAMES]>,
}

/// The registers with which a walk begins: instruction pointer, stack pointer and frame pointer.
struct Registers {
    instruction: usize,
    stack: usize,
    frame: usize,
}

impl NativeWalker {
    pub(crate) fn new() -> Self {
        let caches = Box::new(std::array::from_fn(|_| CacheX86_64::new_in()));
        Self { caches, frames: Box::new([0; MAX_NATIVE_FRAMES]) }
    }

    /// Returns the addresses of the innermost `count` frames of the last walk.
    pub(crate) fn frames(&self, count: usize) -> &[u64] {
        &self.frames[..count]
    }

    /// Returns the addresses of this thread's C++ frames, innermost first: from the function that
    /// called this library to the Python interpreter. Empty if the bounds of the thread's stack or
    /// the innermost code are not known yet. Ends with the first frame that cannot be unwound.
    ///
    /// It takes no lock, allocates no memory, makes no system call, and reads only the part of the
    /// thread's stack that is in use.
    #[inline(never)]
    pub(crate) fn walk(&mut self) -> &[u64] {
        let Some(registers) = registers() else { return &[] };
        let Some(code) = code_map::current() else { return &[] };
        let Some(stack) = stack_of(thread_pointer(), registers.stack) else { return &[] };
        let mut read_stack = |address: u64| {
            let address = address as usize;
            if !stack.contains(&address) || stack.end - address < size_of::<u64>() {
                return Err(());
            }
            // SAFETY: The bytes are between this thread's stack pointer and the end of its stack,
            // all of which is mapped. No reference to them is created.
            Ok(unsafe { std::ptr::with_exposed_provenance::<u64>(address).read_unaligned() })
        };
        let Registers { instruction, stack: stack_pointer, frame } = registers;
        let mut registers = UnwindRegsX86_64::new(instruction as u64, stack_pointer as u64, frame as u64);
        let mut address = FrameAddress::from_instruction_pointer(instruction as u64);
        let mut count = 0;
        for _ in 0..MAX_STEPS {
            let lookup = address.address_for_lookup();
            match code.kind(lookup) {
                None => {
                    code_map::report_unknown_code();
                    break;
                }
                Some(CodeKind::Interpreter) => break,
                Some(CodeKind::Own) if count == 0 => {}
                Some(_) => {
                    let Some(slot) = self.frames.get_mut(count) else { break };
                    *slot = lookup;
                    count += 1;
                }
            }
            let before = registers.sp();
            let cache = &mut self.caches[(lookup.wrapping_mul(HASH_MULTIPLIER) >> 32) as usize % CACHES];
            let caller = code.unwinder.unwind_frame(address, &mut registers, cache, &mut read_stack);
            let Ok(Some(caller)) = caller else { break };
            let Some(caller) = FrameAddress::from_return_address(caller) else { break };
            if registers.sp() <= before {
                break;
            }
            address = caller;
        }
        &self.frames[..count]
    }
}

/// Returns the registers of the function into which this is inlined; `None` on processors that are
/// not supported.
#[inline(always)]
fn registers() -> Option<Registers> {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    {
        let (instruction, stack, frame): (usize, usize, usize);
        // SAFETY: The instructions only copy registers.
        unsafe {
            std::arch::asm!(
                "lea {instruction}, [rip]",
                "mov {stack}, rsp",
                "mov {frame}, rbp",
                instruction = out(reg) instruction,
                stack = out(reg) stack,
                frame = out(reg) frame,
                options(nostack, preserves_flags, nomem),
            );
        }
        Some(Registers { instruction, stack, frame })
    }
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    None
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::thread;
    use std::time::Duration;

    use super::super::{Symbols, enable, find_requested_stacks};
    use super::*;
    use crate::tests::allocations::count_allocations;

    /// Calls itself `depth` times, and then `f`.
    #[inline(never)]
    fn nested<R>(depth: usize, f: &mut dyn FnMut() -> R) -> R {
        let result = if depth == 0 { f() } else { nested(depth - 1, f) };
        // A call in tail position would leave no frame.
        black_box(result)
    }

    /// Calls `f` from the C library, so that not all of the innermost frames are this library's.
    fn call_through_library(mut f: &mut dyn FnMut()) {
        // SAFETY: Declared as in C.
        unsafe extern "C" {
            fn bsearch(
                key: *mut std::ffi::c_void,
                base: *const u8,
                count: usize,
                size: usize,
                compare: extern "C" fn(*mut std::ffi::c_void, *const u8) -> i32,
            ) -> *const u8;
        }
        extern "C" fn compare(f: *mut std::ffi::c_void, _: *const u8) -> i32 {
            // SAFETY: The key is the address of `f` below.
            unsafe { (*f.cast::<&mut dyn FnMut()>())() };
            0
        }
        // SAFETY: The array has one byte, and the key outlives the call.
        unsafe { bsearch((&raw mut f).cast(), [0].as_ptr(), 1, 1, compare) };
    }

    /// Waits until this thread's stack is known.
    fn wait_for_stack(walker: &mut NativeWalker) {
        for _ in 0..200 {
            let mut found = 0;
            call_through_library(&mut || found = walker.walk().len());
            if found > 0 {
                return;
            }
            find_requested_stacks();
            thread::sleep(Duration::from_millis(5));
        }
        panic!("the stack of the thread is not found");
    }

    #[test]
    fn frames_are_in_the_called_functions() {
        enable(None);
        let mut walker = NativeWalker::new();
        wait_for_stack(&mut walker);
        let mut frames = Vec::new();
        nested(20, &mut || call_through_library(&mut || frames = walker.walk().to_vec()));
        let mut symbols = Symbols::default();
        let names: Vec<_> = frames.iter().map(|&address| symbols.function(address).name).collect();
        assert!(names[0].contains("bsearch"), "{names:?}");
        assert_eq!(names.iter().filter(|name| name.contains("walker::tests::nested")).count(), 21, "{names:?}");
    }

    #[test]
    fn walks_end_at_the_greatest_depth_and_allocate_nothing() {
        enable(None);
        let found = thread::spawn(|| {
            let mut walker = NativeWalker::new();
            wait_for_stack(&mut walker);
            let mut found = (0, 0);
            nested(500, &mut || {
                call_through_library(&mut || found = count_allocations(|| walker.walk().len()));
            });
            found
        });
        assert_eq!(found.join().expect("the thread ends"), (MAX_NATIVE_FRAMES, 0));
    }
}
