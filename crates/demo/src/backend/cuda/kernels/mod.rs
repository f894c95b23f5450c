//! The sources of the kernels, which NVRTC compiles for the device when a backend is created.

use std::ffi::CString;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{result, sys};

use super::compiler::{Target, compile};
use super::error::Context;
use crate::backend::{BackendError, NUMBERS_PER_PARTIAL, QUANTIZED_BLOCK, ROWS_PER_PARTIAL, RawSlice, Result};
use crate::dtype::DType;

/// A data type that a file of kernels is compiled for: one for all arguments, or any mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    F32,
    F16,
    Bf16,
    /// Any mixture: the kernels read the data type of each argument at run time.
    Any,
}

impl Variant {
    /// All variants, in the order of their indices.
    const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Any];

    /// Returns the variant for the data types of these arguments.
    pub(super) fn of(slices: &[RawSlice<'_>]) -> Self {
        match slices {
            [first, others @ ..] if others.iter().all(|other| other.dtype() == first.dtype()) => match first.dtype() {
                DType::F32 => Self::F32,
                DType::F16 => Self::F16,
                DType::Bf16 => Self::Bf16,
                _ => Self::Any,
            },
            _ => Self::Any,
        }
    }

    /// Returns how many elements a thread loads at once: `PACK` in `prelude.cu`.
    pub(super) fn pack(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 8,
            Self::F32 | Self::Any => 4,
        }
    }

    /// Returns the value of `TYPE` in the sources.
    fn type_name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Any => "ANY",
        }
    }
}

/// A source file of kernels: its name and text, and the variants to compile.
struct KernelFile {
    name: &'static str,
    text: &'static str,
    variants: &'static [Variant],
    kernels: &'static [(Kernel, &'static str)],
}

/// Declares the files of kernels, and [`Kernel`] with all kernels in them.
macro_rules! kernel_files {
    ($($file:literal, $variants:expr => { $($kernel:ident $name:literal),+ $(,)? })+) => {
        /// A kernel of `kernels/*.cu`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Kernel { $($($kernel),+),+ }

        const KERNELS: usize = [$($(Kernel::$kernel),+),+].len();

        static KERNEL_FILES: &[KernelFile] = &[$(KernelFile {
            name: concat!($file, ".cu"),
            text: concat!(include_str!("prelude.cu"), include_str!(concat!($file, ".cu"))),
            variants: $variants,
            kernels: &[$((Kernel::$kernel, $name)),+],
        }),+];
    };
}

kernel_files! {
    "rows", &Variant::ALL => {
        Softmax "softmax",
        SoftmaxBackward "softmax_backward",
        LayerNorm "layer_norm",
        LayerNormBackward "layer_norm_backward",
    }
    "elementwise", &Variant::ALL => {
        Unary "unary",
        Binary "binary",
        Scale "scale",
        Combine "combine",
        AddBias "add_bias",
    }
    "tables", &[Variant::Any] => {
        GatherRows "gather_rows",
        ScatterAddRows "scatter_add_rows",
        ArgmaxRows "argmax_rows",
    }
    "images", &[Variant::Any] => {
        ImageToColumns "image_to_columns",
        ColumnsToImage "columns_to_image",
        MaxPool "max_pool",
        MaxPoolBackward "max_pool_backward",
        BatchNormStatistics "batch_norm_statistics",
        BatchNorm "batch_norm",
        BatchNormGradients "batch_norm_gradients",
        BatchNormBackward "batch_norm_backward",
    }
    "optimizers", &[Variant::Any] => {
        Adam "adam",
        Adam8Bit "adam_8bit",
        Sgd "sgd",
        Unscale "unscale",
    }
    "column_sums", &Variant::ALL => {
        ColumnPartials "column_partials",
        LayerNormPartials "layer_norm_partials",
    }
    "losses", &Variant::ALL => {
        CrossEntropy "cross_entropy",
        CrossEntropyBackward "cross_entropy_backward",
    }
    "large_rows", &[Variant::Any] => {
        LargeSoftmax "large_softmax",
        LargeSoftmaxBackward "large_softmax_backward",
        LargeLayerNorm "large_layer_norm",
        LargeLayerNormBackward "large_layer_norm_backward",
    }
    "layout", &[Variant::Any] => {
        CopyStrided1 "copy_strided_1",
        CopyStrided2 "copy_strided_2",
        CopyStrided4 "copy_strided_4",
        CopyStrided8 "copy_strided_8",
        CopyStrided16 "copy_strided_16",
    }
    "sums", &[Variant::Any] => {
        ColumnTotals "column_totals",
        PartialSums "partial_sums",
        TotalSum "total_sum",
        AverageGroups "average_groups",
        SpreadGroups "spread_groups",
    }
    "quantization", &[Variant::Any] => {
        QuantizeRows "quantize_rows",
        DequantizeRows "dequantize_rows",
    }
}

/// A source file of kernels, compiled for one variant.
pub(super) struct Compiled {
    file: &'static KernelFile,
    variant: Variant,
    /// Machine code, or PTX that ends with a 0 byte.
    pub(super) image: Vec<u8>,
}

impl Compiled {
    /// Iterates over the kernels in the file, each with its variant and its name in the file.
    pub(super) fn kernels(&self) -> impl Iterator<Item = (Kernel, Variant, &'static str)> {
        self.file.kernels.iter().map(|&(kernel, name)| (kernel, self.variant, name))
    }
}

/// Returns all kernels for a target. A process compiles them only once, although it may open
/// several devices (a comparison of techniques opens three).
pub(super) fn compiled(target: Target) -> Result<Arc<[Compiled]>> {
    /// The compiled kernels of each target that was used in this process.
    static COMPILED: Mutex<Vec<(Target, Arc<[Compiled]>)>> = Mutex::new(Vec::new());
    let mut all = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, compiled)) = all.iter().find(|(of, _)| *of == target) {
        return Ok(Arc::clone(compiled));
    }
    let compiled: Arc<[Compiled]> = compile_all(target)?.into();
    all.push((target, Arc::clone(&compiled)));
    Ok(compiled)
}

/// Compiles all kernels, on as many threads as the machine has processors.
pub(super) fn compile_all(target: Target) -> Result<Vec<Compiled>> {
    let units: Vec<(&'static KernelFile, Variant)> =
        KERNEL_FILES.iter().flat_map(|file| file.variants.iter().map(move |&variant| (file, variant))).collect();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(units.len())));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(units.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&(file, variant)) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let compiled = compile(file.name, file.text, &options(variant), target).map(|image| Compiled {
                        file,
                        variant,
                        image,
                    });
                    done.lock().unwrap_or_else(PoisonError::into_inner).push(compiled);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect()
}

/// Returns the compiler's options that define the constants of `prelude.cu`.
fn options(variant: Variant) -> Vec<String> {
    vec![
        format!("-DTYPE={}", variant.type_name()),
        format!("-DROWS_PER_PARTIAL={ROWS_PER_PARTIAL}"),
        format!("-DNUMBERS_PER_PARTIAL={NUMBERS_PER_PARTIAL}"),
        format!("-DQUANTIZED_BLOCK={QUANTIZED_BLOCK}"),
    ]
}

/// The kernels loaded on a device: modules, and the functions by kernel and variant.
pub(super) struct Loaded {
    modules: Vec<sys::CUmodule>,
    functions: Vec<[sys::CUfunction; 4]>,
}

impl Loaded {
    /// Loads compiled kernels to the device of the current context.
    pub(super) fn new(compiled: &[Compiled]) -> Result<Self> {
        let mut loaded = Self { modules: Vec::new(), functions: vec![[std::ptr::null_mut(); 4]; KERNELS] };
        for file in compiled {
            // SAFETY: The image is machine code, or PTX that ends with a 0, of NVRTC.
            let module = unsafe { result::module::load_data(file.image.as_ptr().cast()) }.during("cuModuleLoadData")?;
            loaded.modules.push(module);
            for (kernel, variant, name) in file.kernels() {
                let name = CString::new(name).map_err(|error| BackendError {
                    call: "cuModuleGetFunction".to_owned(),
                    reason: error.to_string(),
                })?;
                // SAFETY: The module was loaded above and is not unloaded before `self` is dropped.
                let function = unsafe { result::module::get_function(module, name) }.during("cuModuleGetFunction")?;
                loaded.functions[kernel as usize][variant as usize] = function;
            }
        }
        Ok(loaded)
    }

    /// Returns the function of a kernel; null if its file is not compiled for the variant.
    pub(super) fn function(&self, kernel: Kernel, variant: Variant) -> sys::CUfunction {
        self.functions[kernel as usize][variant as usize]
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        for &module in &self.modules {
            // SAFETY: The module was loaded by `new`, and its functions are not launched any more.
            // If this fails, the driver has shut down.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}
