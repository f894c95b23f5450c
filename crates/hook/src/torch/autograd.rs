//! Reads which operation of autograd a thread runs, from PyTorch's thread-local variables.
//!
//! Each differentiable operation has a *sequence number*. The forward pass counts them in a
//! thread-local variable of `libtorch_cpu.so` (`at::sequence_number`), and each `Node` of the graph
//! stores its own. A thread of the backward pass runs no Python code; it has the current node in
//! another such variable. The node's number says which forward operation it belongs to.
//!
//! Both variables are local symbols of the library, which the full symbol tables of PyTorch's
//! wheels contain (2.7 to 2.15). They are read without calling PyTorch: the C library stores, for
//! each thread, the address of every library's thread-local variables (glibc, `dtv`).

use std::fs::File;

use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSymbol as _};

use crate::interpreter::{CheckedMemory, Memory as _};
use crate::loader::{LoadedLibrary, find_library, map_file};

/// File name of the library that contains autograd.
const LIBRARY: &str = "libtorch_cpu.so";
/// Mangled name of `at::sequence_number::sequence_nr_`.
const SEQUENCE: &str = "_ZN2at15sequence_number12_GLOBAL__N_112sequence_nr_E";
/// Mangled name of the variable with the node that the thread evaluates.
const CURRENT_NODE: &str = "_ZZNK5torch8autogradL27tls_current_evaluating_nodeMUlvE_clEvE3var";

/// Offset of a node's address in its Python object (`THPCppFunction`), behind the object's header.
const NODE_OF_OBJECT: usize = 16;

/// Value in a thread's `dtv` for a library whose thread-local variables the thread has not used
/// yet.
const UNALLOCATED: usize = usize::MAX;

/// The offsets of autograd's state in the thread-local variables of PyTorch's library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Autograd {
    /// Index of the library in each thread's `dtv`.
    module: usize,
    /// Offset of the thread's sequence number in the library's thread-local variables.
    sequence: usize,
    /// Offset of the thread's current node in the library's thread-local variables.
    current_node: usize,
    /// Offset of the sequence number in a `Node`.
    node_sequence: usize,
}

impl Autograd {
    /// Finds the variables in this process. `node_sequence` is the offset of the sequence number in
    /// a `Node`. Fails with the reason in words.
    pub(crate) fn find(node_sequence: usize) -> Result<Self, String> {
        if cfg!(not(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))) {
            return Err("thread-local variables are read on Linux with glibc on x86-64 only".to_owned());
        }
        let is_torch = |library: &LoadedLibrary| {
            library.path.file_name().is_some_and(|file| file == LIBRARY) && library.tls_module > 0
        };
        let library = find_library(is_torch).ok_or_else(|| format!("{LIBRARY} is not loaded"))?;
        let LoadedLibrary { path, tls_module: module, .. } = library;
        let fail = |reason: String| format!("{}: {reason}", path.display());
        let file = File::open(&path).map_err(|error| fail(error.to_string()))?;
        let data = map_file(&file).map_err(|error| fail(error.to_string()))?;
        let elf = ElfFile64::<object::Endianness>::parse(&*data).map_err(|error| fail(error.to_string()))?;
        let (mut sequence, mut current_node) = (None, None);
        for symbol in elf.symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Tls) {
            match symbol.name() {
                Ok(SEQUENCE) => sequence = Some(symbol.address() as usize),
                Ok(CURRENT_NODE) => current_node = Some(symbol.address() as usize),
                _ => {}
            }
        }
        let missing = || fail("its symbol table lacks autograd's thread-local variables".to_owned());
        let (sequence, current_node) = sequence.zip(current_node).ok_or_else(missing)?;
        Ok(Self { module, sequence, current_node, node_sequence })
    }

    /// Checks that the node whose Python object is at the address `object` has the number
    /// `sequence`. Memory that cannot be read is an error.
    pub(crate) fn check_node(&self, object: usize, sequence: u64) -> Result<(), String> {
        let memory = CheckedMemory::new().map_err(|error| error.to_string())?;
        // SAFETY: `CheckedMemory` has no requirement.
        let node = unsafe { memory.read_word(object, NODE_OF_OBJECT) };
        // SAFETY: As above.
        let found = node.and_then(|node| unsafe { memory.read_word(node, self.node_sequence) });
        match found {
            Ok(found) if found as u64 == sequence => Ok(()),
            Ok(found) => Err(format!("a node has the number {found}, not {sequence}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns the address of the library's thread-local variables of this thread; `None` if the
    /// thread has not used them yet.
    #[inline]
    fn variables(&self) -> Option<*const u8> {
        #[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
        {
            let table: *const [usize; 2];
            // SAFETY: On x86-64 the second word of glibc's thread control block, to which fs
            // points, is the address of the thread's table of libraries (`dtv`). The instruction
            // only reads.
            unsafe {
                std::arch::asm!("mov {}, fs:[8]", out(reg) table, options(nostack, preserves_flags, readonly));
            }
            // SAFETY: The entry before the table's first one has the number of its entries. The
            // table belongs to this thread, which is here and does not change it.
            let len = unsafe { (*table.sub(1))[0] };
            if self.module > len {
                return None;
            }
            // SAFETY: The index is not above the number of entries.
            let address = unsafe { (*table.add(self.module))[0] };
            (address != 0 && address != UNALLOCATED).then(|| std::ptr::with_exposed_provenance(address))
        }
        #[cfg(not(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu")))]
        None
    }

    /// Returns the results of [`next_sequence`](Self::next_sequence) and
    /// [`node_sequence`](Self::node_sequence).
    #[inline]
    pub(crate) fn sequences(&self) -> [Option<u64>; 2] {
        [self.next_sequence(), self.node_sequence()]
    }

    /// Returns the sequence number that the thread's next differentiable operation gets.
    #[inline]
    pub(crate) fn next_sequence(&self) -> Option<u64> {
        let variables = self.variables()?;
        // SAFETY: The library's symbol table has a variable of 8 bytes at this offset.
        Some(unsafe { variables.add(self.sequence).cast::<u64>().read() })
    }

    /// Returns the sequence number of the node that the thread evaluates; `None` outside of the
    /// backward pass.
    #[inline]
    pub(crate) fn node_sequence(&self) -> Option<u64> {
        let variables = self.variables()?;
        // SAFETY: The variable at this offset is a smart pointer, whose first word is the address
        // of the node, or 0. The thread evaluates the node, so it lives.
        unsafe {
            let node = variables.add(self.current_node).cast::<*const u8>().read();
            (!node.is_null()).then(|| node.add(self.node_sequence).cast::<u64>().read())
        }
    }
}
