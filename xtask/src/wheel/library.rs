//! Checks and changes what the wheel's ELF files need from the system and process that load them.

use std::path::Path;

use object::Endianness;
use object::elf::{DT_NEEDED, FileHeader64, SHT_DYNSYM, STB_WEAK};
use object::read::elf::{FileHeader as _, SectionHeader as _, SectionTable, Sym as _};

use crate::shell::Result;

/// The type of the header of a 64-bit ELF file.
type Elf = FileHeader64<Endianness>;
/// The sections of a 64-bit ELF file.
type Sections<'a> = SectionTable<'a, Elf>;

/// The libraries that every system of the wheel's platform tag has.
const SYSTEM_LIBRARIES: [&[u8]; 8] = [
    b"ld-linux-aarch64.so.1",
    b"ld-linux-x86-64.so.2",
    b"libc.so.6",
    b"libdl.so.2",
    b"libgcc_s.so.1",
    b"libm.so.6",
    b"libpthread.so.0",
    b"librt.so.1",
];

/// Returns the sections of an ELF file, and its byte order.
fn sections(bytes: &[u8]) -> object::Result<(Sections<'_>, Endianness)> {
    let header = Elf::parse(bytes)?;
    let endian = header.endian()?;
    Ok((header.sections(endian, bytes)?, endian))
}

/// Checks that a program or library runs on every system with the version `glibc` of glibc, such as
/// `2.28`. `path` is for error messages.
pub(super) fn check_portable(path: &Path, bytes: &[u8], glibc: &str) -> Result<()> {
    let missing = missing_from_system(bytes, glibc).map_err(|error| format!("{}: {error}", path.display()))?;
    let message = |names: &[String]| format!("{}: needs {}", path.display(), names.join(", "));
    if missing.is_empty() { Ok(()) } else { Err(message(&missing)) }
}

/// Returns the libraries and versions of glibc that an ELF file needs, and that a system with the
/// version `glibc` may lack.
fn missing_from_system(bytes: &[u8], glibc: &str) -> object::Result<Vec<String>> {
    let (sections, endian) = sections(bytes)?;
    let dynamic = sections.dynamic_table(endian, bytes)?;
    let mut missing = Vec::new();
    for entry in dynamic.iter().filter(|entry| entry.tag == DT_NEEDED) {
        let library = entry.string(dynamic.strings())?;
        if !SYSTEM_LIBRARIES.contains(&library) {
            missing.push(String::from_utf8_lossy(library).into_owned());
        }
    }
    let Some((mut libraries, strings)) = sections.gnu_verneed(endian, bytes)? else { return Ok(missing) };
    let strings = sections.strings(endian, bytes, strings)?;
    while let Some((_, mut versions)) = libraries.next()? {
        while let Some(version) = versions.next()? {
            let name = String::from_utf8_lossy(version.name(endian, strings)?);
            if name.strip_prefix("GLIBC_").is_some_and(|version| numbers(version) > numbers(glibc)) {
                missing.push(name.into_owned());
            }
        }
    }
    Ok(missing)
}

/// Returns the numbers of a version such as `2.28`; 0 for a part that is no number.
fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|number| number.parse().unwrap_or_default()).collect()
}

/// Makes undefined symbols of a library weak, if `is_chosen` returns true for their names. A
/// process without these functions and variables can then load the library, but must not use the
/// parts that need them. No linker option does this.
pub(super) fn make_optional(bytes: &mut [u8], is_chosen: impl Fn(&str) -> bool) -> object::Result<()> {
    for info in bindings(bytes, is_chosen)? {
        bytes[info] = STB_WEAK.0 << 4 | bytes[info] & 0xf;
    }
    Ok(())
}

/// Returns the offset of the byte with type and binding (`st_info`) of each undefined dynamic
/// symbol for whose name `is_chosen` returns true.
fn bindings(bytes: &[u8], is_chosen: impl Fn(&str) -> bool) -> object::Result<Vec<usize>> {
    let (sections, endian) = sections(bytes)?;
    let table = sections.symbols(endian, bytes, SHT_DYNSYM)?;
    let start = sections.section(table.section()).map_or(0, |section| section.sh_offset(endian) as usize);
    let mut found = Vec::new();
    for (index, symbol) in table.enumerate() {
        let name = String::from_utf8_lossy(table.symbol_name(endian, symbol)?);
        if symbol.is_undefined(endian) && is_chosen(&name) {
            // `st_info` follows the name, a number of 4 bytes.
            found.push(start + index.0 * size_of_val(symbol) + 4);
        }
    }
    Ok(found)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{env, fs};

    use object::read::elf::ElfFile64;
    use object::{Object as _, ObjectSymbol as _};

    use super::*;

    /// Returns the bytes of this test's program.
    fn program() -> Vec<u8> {
        fs::read(env::current_exe().expect("the test is a program")).expect("it can be read")
    }

    /// Returns the name of each dynamic symbol, whether it is undefined, and whether it is weak.
    fn symbols(bytes: &[u8]) -> Vec<(String, bool, bool)> {
        let file = ElfFile64::<Endianness>::parse(bytes).expect("an ELF file");
        let symbols = file.dynamic_symbols();
        symbols.map(|one| (one.name().expect("a name").to_owned(), one.is_undefined(), one.is_weak())).collect()
    }

    #[test]
    fn only_chosen_undefined_symbols_become_weak() {
        let mut bytes = program();
        let before = symbols(&bytes);
        assert!(before.iter().any(|(name, is_undefined, is_weak)| name == "malloc" && *is_undefined && !is_weak));
        make_optional(&mut bytes, |name| name.starts_with("mal")).expect("an ELF file");
        let is_weak_now = |(name, is_undefined, is_weak): (String, bool, bool)| {
            let becomes_weak = is_undefined && name.starts_with("mal");
            (name, is_undefined, is_weak || becomes_weak)
        };
        let expected: Vec<_> = before.into_iter().map(is_weak_now).collect();
        assert_eq!(symbols(&bytes), expected);
        assert!(make_optional(&mut bytes[..100], |_| true).is_err());
    }

    #[test]
    fn newer_glibc_and_other_libraries_are_missing() {
        let bytes = program();
        assert_eq!(missing_from_system(&bytes, "99.0").expect("an ELF file"), [""; 0]);
        let missing = missing_from_system(&bytes, "2.2").expect("an ELF file");
        assert!(missing.iter().any(|name| name == "GLIBC_2.14"), "{missing:?}");
        let error = check_portable(Path::new("program"), &bytes, "2.2").expect_err("memcpy needs 2.14");
        assert!(error.starts_with("program: needs GLIBC_2."), "{error}");
    }
}
