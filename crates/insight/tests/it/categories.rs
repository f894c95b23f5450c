//! The categories of real programs, compared with what the programs noted about their blocks
//! (`tests/data/categories`).

use std::collections::BTreeMap;

use serde_json::Value;
use vramscope_insight::categories::CategoryInference;
use vramscope_trace::{Allocation, Category, DeviceId, Recording};

use crate::autopsy::without_stacks;
use crate::composition::history_of;
use crate::recordings::recorded_in;

/// Bytes that were found right, and all bytes.
type Share = (u64, u64);

/// Returns the percentage of a share.
fn percent((right, all): Share) -> f64 {
    100.0 * right as f64 / all.max(1) as f64
}

/// Returns what a program noted about the block of an allocation; `None` if it noted nothing.
fn noted<'a>(program: &'a Value, one: &Allocation) -> Option<&'a str> {
    let find = |blocks: &'a Value, has: &dyn Fn(&Value) -> bool| {
        let categories = blocks.as_object()?.iter();
        let mut found = categories.filter(|(_, blocks)| blocks.as_array().is_some_and(|blocks| blocks.iter().any(has)));
        found.next().map(|(category, _)| category.as_str())
    };
    match one.allocating_event().filter(|_| one.start_observed) {
        Some(event) => find(&program["events"], &|block| block.as_u64() == Some(event + 1)),
        None => find(&program["older"], &|block| block.as_str() == Some(&format!("{:#x}", one.address))),
    }
}

/// Returns true if a found category agrees with what the program noted. What it noted nothing about
/// is none of its tensors that live on: an activation that it does not need, or a temporary.
fn agrees(found: Category, noted: Option<&str>) -> bool {
    match noted {
        Some(noted) => found.name() == noted,
        None => matches!(found, Category::Activation | Category::Temporary),
    }
}

/// Adds the blocks at a recording's peak to the shares of each category.
fn add_peak(recording: &Recording, program: &Value, shares: &mut BTreeMap<String, Share>) -> Share {
    let history = history_of(recording);
    let device = DeviceId(0);
    let lifetimes = history.lifetimes(device).expect("the device has events");
    let categories = CategoryInference::new(recording).categories(lifetimes);
    let peak = recording.series(device).expect("the device has counters").peak_allocated().event;
    let (mut right, mut all) = (0, 0);
    let mut wrong: BTreeMap<(Option<&str>, &str), u64> = BTreeMap::new();
    for (index, one) in lifetimes.iter().enumerate().filter(|(_, one)| one.is_allocated_at(peak)) {
        let found = categories.get(index).map_or(Category::Unknown, |known| known.category);
        let noted = noted(program, &one);
        let is_right = agrees(found, noted);
        let right_bytes = if is_right { one.size } else { 0 };
        (right, all) = (right + right_bytes, all + one.size);
        let of_category = shares.entry(noted.unwrap_or("not noted").to_owned()).or_default();
        *of_category = (of_category.0 + right_bytes, of_category.1 + one.size);
        if !is_right {
            *wrong.entry((noted, found.name())).or_default() += one.size;
        }
    }
    for ((noted, found), bytes) in wrong.into_iter().filter(|(_, bytes)| *bytes * 100 > all) {
        println!("    {} MiB {} found as {found}", bytes >> 20, noted.unwrap_or("not noted"));
    }
    (right, all)
}

/// Compares the categories at the peaks of all programs with what these noted; with or without the
/// recorded stacks. Returns the share of all bytes, and of each category.
fn check(with_stacks: bool) -> (Share, BTreeMap<String, Share>) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/categories/truth.json");
    let truth: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("the file exists")).expect("JSON");
    let (mut sum, mut shares) = ((0, 0), BTreeMap::new());
    for (name, recording) in recorded_in("../../tests/data/categories") {
        let name = name.trim_end_matches(".pickle.zst");
        let recording = if with_stacks { recording } else { without_stacks(&recording) };
        let share = add_peak(&recording, &truth[name], &mut shares);
        println!("{name}: {:.1}% of {} MiB", percent(share), share.1 >> 20);
        sum = (sum.0 + share.0, sum.1 + share.1);
    }
    for (category, share) in &shares {
        println!("{category}: {:.1}% of {} MiB", percent(*share), share.1 >> 20);
    }
    println!("all: {:.2}%", percent(sum));
    (sum, shares)
}

#[test]
fn categories_agree_with_what_programs_noted() {
    let (all, shares) = check(true);
    assert!(percent(all) >= 95.0, "{:.1}% of the bytes are right", percent(all));
    for (category, share) in shares {
        assert!(percent(share) >= 90.0, "{category}: {:.1}% of the bytes are right", percent(share));
    }
}

#[test]
fn categories_without_stacks_agree_mostly() {
    let (all, _) = check(false);
    assert!(percent(all) >= 80.0, "{:.1}% of the bytes are right", percent(all));
}
