//! Throws PyTorch's own C++ exception for out of memory, `c10::OutOfMemoryError`.
//!
//! PyTorch converts the exception to `torch.OutOfMemoryError`, and catches it itself where it can
//! continue with less memory (cuDNN's search for algorithms). The exception's class is in PyTorch's
//! library `libc10.so`, so the object is created by that library's functions, found by their names:
//!
//! - The constructor of the base class `c10::Error` creates the object. Neither its layout nor its
//!   size matters here: more memory is reserved than any version needs.
//! - The table of virtual functions makes it a `c10::OutOfMemoryError`, which adds no data to
//!   `c10::Error`. The table also contains the type's description and its destructor, at positions
//!   that the C++ ABI defines.
//!
//! A test throws and catches it with the libraries of each supported version.

use std::ffi::{CStr, c_char, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr::{self, NonNull};

use crate::loaded::LoadedLibrary;

/// Bytes reserved for the exception's object; in every version the object has at most 128.
const OBJECT_BYTES: usize = 1024;
/// Words of a table of virtual functions before the first function: the offset to the object's
/// start, and the type's description.
const WORDS_BEFORE_FUNCTIONS: usize = 2;
/// The mangled name of `c10::OutOfMemoryError`, which the type's description contains.
const TYPE_NAME: &CStr = c"N3c1016OutOfMemoryErrorE";

/// A C++ `c10::SourceLocation`, which error messages with a C++ stack show.
#[repr(C)]
#[derive(Clone, Copy)]
struct SourceLocation {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// Memory for a C++ `std::string`, of either ABI of libstdc++.
type CppString = MaybeUninit<[u64; 4]>;

/// The constructor `std::string(char const*, std::allocator const&)`.
///
/// # Safety
/// The arguments are memory for the object, a string that ends with a 0, and an allocator, which
/// has no data.
type NewString = unsafe extern "C-unwind" fn(*mut CppString, *const c_char, *const u8);
/// The destructor of `std::string`.
///
/// # Safety
/// The argument is a `std::string`.
type DropString = unsafe extern "C-unwind" fn(*mut CppString);
/// The constructor `c10::Error(c10::SourceLocation, std::string)`. The C++ ABI passes an argument
/// with a destructor by its address; the caller runs the destructor.
///
/// # Safety
/// The arguments are memory for the object, a location with static strings, and a `std::string`.
type NewError = unsafe extern "C-unwind" fn(*mut c_void, SourceLocation, *mut CppString);
/// `__cxa_allocate_exception`, which returns memory for an exception of this size.
type AllocateException = unsafe extern "C-unwind" fn(usize) -> *mut c_void;
/// `__cxa_throw(object, type description, destructor)`.
///
/// # Safety
/// The object is constructed in memory of `__cxa_allocate_exception`, and has this type and
/// destructor.
type Throw = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, *const c_void) -> !;

/// The mangled names of functions that depend on the ABI of `std::string` with which a version of
/// PyTorch was built.
struct StringAbi {
    new_string: &'static CStr,
    drop_string: &'static CStr,
    /// The constructor of `c10::Error`.
    new_error: &'static CStr,
}

/// The two ABIs of `std::string`: that of GCC 5 and later, with which PyTorch is built since 2.7,
/// and the older one.
const STRING_ABIS: [StringAbi; 2] = [
    StringAbi {
        new_string: c"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEC1EPKcRKS3_",
        drop_string: c"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEED1Ev",
        new_error: c"_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
    },
    StringAbi {
        new_string: c"_ZNSsC1EPKcRKSaIcE",
        drop_string: c"_ZNSsD1Ev",
        new_error: c"_ZN3c105ErrorC1ENS_14SourceLocationESs",
    },
];

/// The functions that create and throw a `c10::OutOfMemoryError`.
#[derive(Clone, Copy)]
pub(crate) struct OutOfMemoryType {
    new_string: NewString,
    drop_string: DropString,
    new_error: NewError,
    allocate_exception: AllocateException,
    throw: Throw,
    /// The first function in the type's table of virtual functions, the destructor.
    functions: *const *const c_void,
    description: *const c_void,
}

impl OutOfMemoryType {
    /// Finds PyTorch's type; `None` if PyTorch is not loaded, or its type differs from the one that
    /// this module describes.
    pub(crate) fn find(runtime: LoadedLibrary) -> Option<Self> {
        let c10 = LoadedLibrary::find(c"libc10.so")?;
        // Depending on the version, the type is in `libc10.so` or in `libc10_cuda.so`.
        let table = [Some(c10), LoadedLibrary::find(c"libc10_cuda.so")]
            .into_iter()
            .flatten()
            .find_map(|library| library.symbol(c"_ZTVN3c1016OutOfMemoryErrorE"))?;
        let abi = STRING_ABIS.iter().find(|abi| c10.symbol(abi.new_error).is_some())?;
        let words = table.as_ptr().cast::<*const c_void>().cast_const();
        // SAFETY: A table of virtual functions has these words and at least the destructor.
        let (description, functions) = unsafe { (*words.add(1), words.add(WORDS_BEFORE_FUNCTIONS)) };
        // SAFETY: The second word of a type's description is its name, which ends with a 0.
        let name = unsafe { CStr::from_ptr(*description.cast::<*const c_char>().add(1)) };
        if name != TYPE_NAME {
            return None;
        }
        // SAFETY: Each symbol is the function of this name, whose mangled name contains its
        // parameters; the types above describe them.
        unsafe {
            let function = |address: Option<NonNull<c_void>>| address.map(NonNull::as_ptr);
            Some(Self {
                new_string: mem::transmute::<*mut c_void, NewString>(function(runtime.symbol(abi.new_string))?),
                drop_string: mem::transmute::<*mut c_void, DropString>(function(runtime.symbol(abi.drop_string))?),
                new_error: mem::transmute::<*mut c_void, NewError>(function(c10.symbol(abi.new_error))?),
                allocate_exception: mem::transmute::<*mut c_void, AllocateException>(function(
                    runtime.symbol(c"__cxa_allocate_exception"),
                )?),
                throw: mem::transmute::<*mut c_void, Throw>(function(runtime.symbol(c"__cxa_throw"))?),
                functions,
                description,
            })
        }
    }

    /// Throws the exception, so that the caller never continues. All Rust frames up to C++ must be
    /// allowed to unwind, without a `catch_unwind`.
    ///
    /// # Safety
    /// `message` points to a string that ends with a 0.
    pub(crate) unsafe fn throw(self, message: *const c_char) -> ! {
        let location = SourceLocation { function: c"vramscope_malloc".as_ptr(), file: c"vramscope".as_ptr(), line: 0 };
        let mut text = CppString::uninit();
        // SAFETY: The functions are those that their types describe, and the memory suffices. A
        // string's allocator has no data, and is not read. The object is complete when it is
        // thrown: the constructor of the base class sets all its data, and the table of virtual
        // functions is that of the type in `description`. If a constructor throws, for lack of host
        // memory, its exception takes the place of this one, and the memory leaks.
        unsafe {
            let object = (self.allocate_exception)(OBJECT_BYTES);
            ptr::write_bytes(object.cast::<u8>(), 0, OBJECT_BYTES);
            (self.new_string)(&raw mut text, message, &raw const ALLOCATOR);
            (self.new_error)(object, location, &raw mut text);
            (self.drop_string)(&raw mut text);
            object.cast::<*const *const c_void>().write(self.functions);
            (self.throw)(object, self.description, *self.functions)
        }
    }
}

/// A `std::allocator<char>`: an object without data still has an address.
static ALLOCATOR: u8 = 0;
