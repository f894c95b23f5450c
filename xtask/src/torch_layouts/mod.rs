//! `cargo xtask torch-layouts`: reads the layout of PyTorch's classes from its wheels into
//! `crates/hook/src/torch/layouts.rs`.
//!
//! For each version, [`wheel`] downloads the wheel and keeps its headers and small libraries in
//! `target/torch-layouts`; [`probe`] compiles `probe.cpp` with the headers, runs it and checks the
//! vtable slot with [`library`]. [`table`] stores the results. In the end [`assertions`] compiles a
//! program of `static_assert`s, made from the table, with the headers of each version.

mod assertions;
mod compiler;
mod layout;
/// The table of layouts, compiled from the hook's source file.
#[path = "../../../crates/hook/src/torch/layouts.rs"]
mod layouts;
mod library;
mod probe;
mod table;
mod wheel;

use crate::shell::Result;
use crate::tools::Tool;
use layout::{COMMON_OFFSETS, minor_version};
use probe::Measured;
use table::Table;
use wheel::{Cache, Wheel};

/// Reads the layouts of the named versions, or of all versions in the table, and writes the table.
/// With `--check` as the first argument, only compares the layouts with the table.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err("the layouts are those of x86-64 Linux: run this command on such a machine".to_owned());
    }
    let (is_check, versions) = match arguments {
        ["--check", versions @ ..] => (true, versions),
        versions => (false, versions),
    };
    versions.iter().try_for_each(|version| minor_version(version).map(drop))?;
    let mut table = Table::read()?;
    let versions =
        if versions.is_empty() { table.versions() } else { versions.iter().map(ToString::to_string).collect() };
    if is_check {
        versions.iter().try_for_each(|version| table.layout(minor_version(version)?).map(drop))?;
    }
    [Tool::Python, Tool::Unzip, Tool::Gxx].into_iter().try_for_each(Tool::ensure)?;
    let cache = Cache::open()?;
    let wheels = versions.iter().map(|version| cache.wheel(version)).collect::<Result<Vec<Wheel>>>()?;
    let mut differences = Vec::new();
    for wheel in &wheels {
        let measured = probe::measure(wheel).map_err(|error| format!("PyTorch {}: {error}", wheel.version))?;
        eprintln!("{}", summary(&measured));
        differences.extend(common_differences(&measured));
        if is_check {
            differences.extend(table.layout(measured.wheel.layout.minor)?.differences(&measured.wheel));
        } else {
            table.insert(measured.wheel);
        }
    }
    if !differences.is_empty() {
        let differences = differences.join("\n  ");
        let remedy = if is_check { "\nTo update the table, run without --check." } else { "" };
        return Err(format!("the table differs from the wheels:\n  {differences}{remedy}"));
    }
    if !is_check {
        table.write()?;
    }
    for wheel in &wheels {
        assertions::check(wheel, table.layout(minor_version(&wheel.version)?)?)?;
    }
    eprintln!("the table agrees with the wheels of PyTorch {}", versions.join(", "));
    Ok(())
}

/// Returns one line with the layout of a wheel.
fn summary(measured: &Measured) -> String {
    format!("PyTorch {}: {}", measured.wheel.version, measured.wheel.fields().join(", "))
}

/// Returns a sentence for each constant of the table's file that is wrong for a wheel.
fn common_differences(measured: &Measured) -> Vec<String> {
    let offsets = COMMON_OFFSETS.iter().zip(measured.common_offsets);
    let different = offsets.filter(|((_, constant, _), offset)| constant != offset);
    different
        .map(|((name, constant, member), offset)| {
            let version = &measured.wheel.version;
            format!(
                "PyTorch {version}: {member} is at {offset}, not at {name} = {constant}: \
                 correct {name}, or make it a field of the table if versions differ"
            )
        })
        .collect()
}
