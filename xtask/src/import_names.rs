//! Shortens the names under which WebAssembly imports JavaScript functions.
//!
//! wasm-bindgen ends each name with 16 hexadecimal digits, which do not compress and occur in both
//! files of a module. They need 4 KB of the page.

use std::collections::HashMap;
use std::path::Path;
use std::{fs, io};

/// Prefix of the names that wasm-bindgen generates.
const PREFIX: &str = "__wbg_";
/// Number of hexadecimal digits at the end of such a name.
const HASH_DIGITS: usize = 16;
/// Id of the import section in a WebAssembly module.
const IMPORT_SECTION: u8 = 2;
/// Length of a WebAssembly module's header, in bytes.
const HEADER_BYTES: usize = 8;

/// Shortens the names in the files that wasm-bindgen generated for `module` in `folder`.
pub(crate) fn shorten(folder: &Path, module: &str) -> io::Result<()> {
    let script_path = folder.join(format!("{module}.js"));
    let wasm_path = folder.join(format!("{module}_bg.wasm"));
    let (script, names) = shorten_script(&fs::read_to_string(&script_path)?);
    let unreadable = || io::Error::other(format!("{}: the import section cannot be read", wasm_path.display()));
    let wasm = shorten_imports(&fs::read(&wasm_path)?, &names).ok_or_else(unreadable)?;
    fs::write(&script_path, script)?;
    fs::write(&wasm_path, wasm)
}

/// Returns the script with short names, and a map from each old name to its new name.
fn shorten_script(script: &str) -> (String, HashMap<String, String>) {
    let mut names = HashMap::new();
    let mut output = String::with_capacity(script.len());
    let mut rest = script;
    while let Some(at) = rest.find(PREFIX) {
        let (before, from_name) = rest.split_at(at);
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '$');
        let (name, after) = from_name.split_at(from_name.find(|c| !is_part(c)).unwrap_or(from_name.len()));
        output.push_str(before);
        let hash = name.rsplit_once('_').map_or("", |(_, hash)| hash);
        if hash.len() == HASH_DIGITS && hash.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            let number = names.len();
            output.push_str(names.entry(name.to_owned()).or_insert_with(|| format!("i{number}")));
        } else {
            output.push_str(name);
        }
        rest = after;
    }
    output.push_str(rest);
    (output, names)
}

/// Returns a WebAssembly module with the new names of its imports; `None` if it is malformed.
fn shorten_imports(wasm: &[u8], names: &HashMap<String, String>) -> Option<Vec<u8>> {
    let (header, mut rest) = wasm.split_at_checked(HEADER_BYTES)?;
    let mut output = header.to_vec();
    while let Some((&section, after)) = rest.split_first() {
        rest = after;
        let len = read_number(&mut rest)?;
        let (content, after) = rest.split_at_checked(len)?;
        rest = after;
        let renamed = if section == IMPORT_SECTION { Some(rename(content, names)?) } else { None };
        let content = renamed.as_deref().unwrap_or(content);
        output.push(section);
        push_number(&mut output, content.len());
        output.extend(content);
    }
    Some(output)
}

/// Returns an import section with new names.
fn rename(mut section: &[u8], names: &HashMap<String, String>) -> Option<Vec<u8>> {
    let mut output = Vec::new();
    let imports = read_number(&mut section)?;
    push_number(&mut output, imports);
    for _ in 0..imports {
        let (module, name) = (read_text(&mut section)?, read_text(&mut section)?);
        for text in [module, names.get(name).map_or(name, String::as_str)] {
            push_number(&mut output, text.len());
            output.extend(text.as_bytes());
        }
        let description = section;
        let (&kind, after) = section.split_first()?;
        section = after;
        // Skips the description: a function's type index, or the type of a table, memory or global.
        match kind {
            0 => drop(read_number(&mut section)?),
            1 | 2 => {
                section = if kind == 1 { section.get(1..)? } else { section };
                let flags = read_number(&mut section)?;
                for _ in 0..=flags & 1 {
                    read_number(&mut section)?;
                }
            }
            3 => section = section.get(2..)?,
            _ => return None,
        }
        output.extend(&description[..description.len() - section.len()]);
    }
    Some(output)
}

/// Reads a text that is preceded by its length, and removes both from `bytes`.
fn read_text<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    let len = read_number(bytes)?;
    let (text, after) = bytes.split_at_checked(len)?;
    *bytes = after;
    std::str::from_utf8(text).ok()
}

/// Reads an unsigned number in LEB128, and removes it from `bytes`.
fn read_number(bytes: &mut &[u8]) -> Option<usize> {
    let mut number = 0;
    for shift in (0..35).step_by(7) {
        let (&byte, after) = bytes.split_first()?;
        *bytes = after;
        number |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Appends an unsigned number in LEB128.
fn push_number(output: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        output.push(number as u8 | 0x80);
        number >>= 7;
    }
    output.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shortened_in_both_files() {
        let script = "{\n__wbg_now_0123456789abcdef: f,\n__wbg_set_wasm: g,\n__wbg_get_fedcba9876543210: h\n}";
        let (script, names) = shorten_script(script);
        assert_eq!(script, "{\ni0: f,\n__wbg_set_wasm: g,\ni1: h\n}");
        // Two imported functions of the types 3 and 300, then a section with one byte.
        let mut section = vec![2];
        for (name, kind) in [("__wbg_get_fedcba9876543210", &[0, 3][..]), ("other", &[0, 0xac, 2])] {
            section.extend([1, b'm', name.len() as u8]);
            section.extend(name.as_bytes());
            section.extend(kind);
        }
        let wasm = [b"\0asm\x01\0\0\0\x02".as_slice(), &[section.len() as u8], &section, &[10, 1, 7]].concat();
        let shortened = shorten_imports(&wasm, &names).expect("the module is well-formed");
        let imports = b"\x02\x01m\x02i1\0\x03\x01m\x05other\0\xac\x02";
        let expected = [b"\0asm\x01\0\0\0\x02\x13".as_slice(), imports, &[10, 1, 7]].concat();
        assert_eq!(shortened, expected);
        assert_eq!(shorten_imports(&wasm[..20], &names), None);
    }
}
