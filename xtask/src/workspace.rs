//! Paths and versions of this checkout.

use std::fs;
use std::path::PathBuf;

pub(crate) use crate::shell::root;
use crate::shell::{self, Result};

/// Returns the folder that cargo builds into.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let metadata = shell::output(shell::cargo().args(["metadata", "--no-deps", "--format-version", "1"]))
        .ok_or("`cargo metadata` failed")?;
    let metadata: serde_json::Value =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let folder = metadata["target_directory"].as_str().ok_or("`cargo metadata` names no target directory")?;
    Ok(PathBuf::from(folder))
}

/// Returns the version of this workspace's crates.
pub(crate) fn version() -> Result<String> {
    locked_version("xtask")
}

/// Returns the version of `package` in `Cargo.lock`.
pub(crate) fn locked_version(package: &str) -> Result<String> {
    let path = root().join("Cargo.lock");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    version_in_lock(&text, package).ok_or_else(|| format!("{} has no {package}", path.display()))
}

/// Returns the version of `package` in the text of a `Cargo.lock`; `None` if the package is
/// missing.
fn version_in_lock(lock: &str, package: &str) -> Option<String> {
    let name = format!("name = \"{package}\"");
    let version = lock.lines().skip_while(|line| *line != name).nth(1)?;
    Some(version.strip_prefix("version = \"")?.strip_suffix('"')?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_found_by_the_whole_package_name() {
        let lock = "[[package]]\nname = \"wasm-bindgen-shared\"\nversion = \"0.1.0\"\n\n\
                    [[package]]\nname = \"wasm-bindgen\"\nversion = \"0.2.130\"\n";
        assert_eq!(version_in_lock(lock, "wasm-bindgen").as_deref(), Some("0.2.130"));
        assert_eq!(version_in_lock(lock, "wasm"), None);
    }

    #[test]
    fn wasm_bindgen_and_its_generator_have_one_version() {
        assert_eq!(locked_version("wasm-bindgen"), locked_version("wasm-bindgen-cli-support"));
    }
}
