//! Tests of the CUDA backend.

mod gpu;
mod launches;
mod speeds;

use std::collections::HashMap;

pub(crate) use gpu::context as test_context;

use super::compiler::{self, Target};
use super::kernels::{self, Compiled, Kernel, Variant};
use super::launch::Parameter;

/// The parameter sizes of all kernels, to check launches without a GPU.
pub(super) struct Signatures {
    /// Sizes of a kernel's parameters in bytes, by kernel and variant.
    sizes: HashMap<(usize, usize), Vec<usize>>,
}

impl Signatures {
    /// Reads the sizes of the parameters from the kernels' PTX.
    fn new(compiled: &[Compiled]) -> Self {
        let mut sizes = HashMap::new();
        for file in compiled {
            let ptx = String::from_utf8_lossy(&file.image);
            for (kernel, variant, name) in file.kernels() {
                let (_, entry) = ptx.split_once(&format!(".entry {name}(")).expect("the file has the kernel");
                let (parameters, _) = entry.split_once(')').expect("the list of parameters ends");
                let parameters = parameters.split(',').map(str::trim).filter(|text| !text.is_empty());
                sizes.insert((kernel as usize, variant as usize), parameters.map(parameter_size).collect());
            }
        }
        Self { sizes }
    }

    /// Panics unless the arguments have the number and sizes of the kernel's parameters.
    pub(super) fn check(
        &self,
        kernel: Kernel,
        variant: Variant,
        blocks: [u32; 2],
        threads: u32,
        arguments: &[Parameter],
    ) {
        let sizes = &self.sizes[&(kernel as usize, variant as usize)];
        let given: Vec<usize> = arguments.iter().map(|&(_, size)| size).collect();
        assert_eq!(*sizes, given, "parameters of {kernel:?}");
        assert!(blocks.iter().all(|&blocks| blocks > 0) && (32..=1024).contains(&threads), "{kernel:?}");
    }
}

/// Returns the size in bytes of a parameter that PTX declares, such as `.param .u64 name` or
/// `.param .align 8 .b8 name[16]`.
fn parameter_size(text: &str) -> usize {
    if let Some((_, size)) = text.split_once('[') {
        return size.trim_end_matches(']').parse().expect("an array has a length");
    }
    let kind = text.split_whitespace().find(|word| ["32", "64"].iter().any(|bits| word.ends_with(bits)));
    if kind.is_some_and(|kind| kind.ends_with("64")) { 8 } else { 4 }
}

/// Compiles all kernels for a target. Without NVRTC, prints a note and returns `None`.
fn compiled_for(target: Target) -> Option<Vec<Compiled>> {
    if !compiler::is_installed() {
        println!("SKIPPED: NVRTC is not installed");
        return None;
    }
    Some(kernels::compile_all(target).unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn kernels_compile() {
    let start = std::time::Instant::now();
    let Some(compiled) = compiled_for(Target::Machine(90)) else { return };
    let bytes: usize = compiled.iter().map(|file| file.image.len()).sum();
    println!("{} files, {bytes} bytes of machine code in {:.1} s", compiled.len(), start.elapsed().as_secs_f64());
    assert!(compiled.iter().all(|file| file.image.starts_with(b"\x7fELF")));
    // The oldest that NVRTC 13 compiles for.
    assert!(compiled_for(Target::Machine(75)).is_some());
}

#[test]
fn kernels_use_neither_double_precision_nor_local_memory() {
    let Some(compiled) = compiled_for(Target::Ptx(90)) else { return };
    for file in &compiled {
        let ptx = String::from_utf8_lossy(&file.image);
        for (kernel, variant, _) in file.kernels() {
            assert!(!ptx.contains(".f64"), "{kernel:?} for {variant:?} computes in double precision");
            assert!(!ptx.contains(".local"), "{kernel:?} for {variant:?} keeps numbers in memory");
        }
    }
}

#[test]
fn missing_targets_are_errors() {
    if compiler::is_installed() {
        assert!(Target::of_device((1, 0)).is_err());
        assert!(matches!(Target::of_device((9, 0)), Ok(Target::Machine(90))));
        assert!(matches!(Target::of_device((99, 0)), Ok(Target::Ptx(_))));
        let error = compiler::compile("wrong.cu", "int f(", &[], Target::Machine(90)).unwrap_err();
        assert!(error.reason.contains("wrong.cu"), "{error}");
    } else {
        println!("SKIPPED: NVRTC is not installed");
    }
}
