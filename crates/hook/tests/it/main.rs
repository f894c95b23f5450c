//! Tests of the extension module as a file: cargo builds it for them.
#![cfg(all(feature = "python", target_os = "linux"))]

use std::fs;

use object::{Object as _, ObjectSymbol as _};

#[test]
fn module_exports_its_entry_points_and_imports_python_functions() {
    let folder = std::env::current_exe().expect("this test has a path").with_file_name("");
    let bytes = fs::read(folder.join("libvramscope_hook.so")).expect("cargo builds the module first");
    let module = object::File::parse(&*bytes).expect("an ELF file");
    let is_undefined = |name: &str| {
        let mut symbols = module.dynamic_symbols();
        symbols.find(|symbol| symbol.name() == Ok(name)).map(|symbol| symbol.is_undefined())
    };
    assert_eq!(is_undefined("PyInit__native"), Some(false));
    // What PyTorch and `use_pool()` find by name.
    assert_eq!(is_undefined("vramscope_malloc"), Some(false));
    assert_eq!(is_undefined("PyModule_Create2").or(is_undefined("PyModuleDef_Init")), Some(true));
}
