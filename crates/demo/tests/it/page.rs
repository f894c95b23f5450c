//! Tests that `docs/techniques.md` has a section, a picture and figures for each technique.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use vramscope_demo::techniques::Technique;

use crate::recorded::{NOT_ON_HOST, is_recorded, techniques};

/// Returns the folder `docs` of the repository.
fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Returns the text of `docs/techniques.md`.
fn page() -> String {
    fs::read_to_string(docs().join("techniques.md")).expect("docs/techniques.md")
}

/// Returns the text of the section `name`, up to the next heading.
fn section<'page>(page: &'page str, name: &str) -> &'page str {
    let heading = format!("\n### {name}\n");
    let (_, rest) = page.split_once(&heading).unwrap_or_else(|| panic!("docs/techniques.md: no section {name}"));
    rest.split("\n##").next().unwrap_or(rest)
}

#[test]
fn every_technique_has_a_section_with_picture_and_figures() {
    let page = page();
    for Technique { name, baseline, .. } in techniques() {
        let text = section(&page, name);
        for part in ["In PyTorch: ", "../examples/pytorch/", "**When not to use it.**", "| peak reserved |"] {
            assert!(text.contains(part), "{name}: no {part:?}");
        }
        for column in [format!("GPU: {baseline}"), format!("GPU: {name}")] {
            assert!(text.contains(&column), "{name}: no column {column:?}");
        }
        assert_eq!(text.contains("host: "), *name != NOT_ON_HOST, "{name}: figures of the host");
        // One row is in the table of all techniques, one in the comparison with PyTorch.
        assert_eq!(page.matches(&format!("\n| [{name}](#{name}) | ")).count(), 2, "{name}: rows in the tables");
        if is_recorded(name) {
            let picture = format!("images/techniques/{name}.svg");
            assert!(text.contains(&picture), "{name}: no {picture}");
            let drawing = fs::read_to_string(docs().join(&picture)).expect(&picture);
            let title = format!("<title>vramscope demo {baseline} and vramscope demo {name}</title>");
            assert!(drawing.contains(&title), "{picture}: not of {baseline} and {name}");
        }
    }
    for baseline in Technique::all().iter().filter(|technique| technique.is_baseline()) {
        assert!(page.contains(&format!("\n| `{}` | ", baseline.name)), "no program {}", baseline.name);
    }
    let sections = page.lines().filter_map(|line| line.strip_prefix("### "));
    let names: BTreeSet<&str> = techniques().map(|technique| technique.name).collect();
    assert_eq!(sections.collect::<BTreeSet<_>>(), names);
}

#[test]
fn page_has_the_figures_of_the_last_measurement() {
    let page = page();
    let measured = fs::read_to_string(docs().join("techniques.json")).expect("docs/techniques.json");
    let measured: Value = serde_json::from_str(&measured).expect("JSON");
    for Technique { name, baseline, .. } in techniques() {
        let entry = &measured["techniques"][name];
        assert_eq!(entry["baseline"], *baseline, "{name}");
        let devices: &[&str] = if *name == NOT_ON_HOST { &["cuda"] } else { &["host", "cuda"] };
        for device in devices {
            for run in ["before", "after"] {
                let bytes = entry[device][run]["peak_requested_bytes"].as_u64();
                assert!(bytes.is_some_and(|bytes| bytes > 0), "{name}: {device} {run}");
                let time = entry[device][run]["step_ms"].as_f64().expect("a time");
                let time = format!("{time:.2} ms");
                assert!(section(&page, name).contains(&time), "{name}: no {time} of {device} {run}");
            }
        }
    }
}
