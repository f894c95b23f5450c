//! A failure in two sentences: what filled the device, and why the request failed.

use std::collections::BTreeMap;

use vramscope_trace::{Block, ByteSize, Category, FormatError, Percent, Recording, Replay, stack_name};

use super::card::FailureCard;
use crate::group::{DeviceCategories, GroupBy, Grouping};

/// Returns what filled the device at a failure, by line of the program, and why the request failed:
/// `2.5 GiB was allocated on device 0, most of it activations (1.9 GiB); the line with most is
/// train.py:41 (1.2 GiB, 48.0%). At train.py:58 loss, 62 MiB failed because the device was full.`
///
/// `categories` are those of the failure's device. A category or a line that is not known is left
/// out. `why` is a [verdict](crate::verdict) on the failure; without one, the allocator's state
/// alone says why it failed.
///
/// # Errors
/// If a chunk cannot be read.
pub fn headline(
    recording: &Recording,
    categories: &DeviceCategories,
    card: &FailureCard,
    why: Option<&str>,
) -> Result<String, FormatError> {
    let failure = &card.failure;
    let mut replay = Replay::new();
    let state = replay.seek(recording, failure.event - 1)?;
    let blocks: Vec<&Block> = state.device(failure.device).map(|device| device.blocks().collect()).unwrap_or_default();
    let definitions = recording.definitions();
    let requester = stack_name(definitions, definitions.site(failure.site).stack);
    let of_allocator = || requester.map_or_else(|| card.summary.clone(), |name| format!("At {name}, {}", card.summary));
    let why = why.map_or_else(of_allocator, str::to_owned);

    let total = blocks.iter().map(|block| block.size).sum::<u64>();
    if total == 0 {
        return Ok(why);
    }
    let mut lines = Grouping::of(GroupBy::Line, recording).with_categories(categories);
    let category = largest_entry(blocks.iter().map(|block| (lines.category_of(block).category, block.size)));
    let category = category.filter(|&(category, _)| category != Category::Unknown).map_or_else(String::new, |known| {
        let (category, bytes) = known;
        format!(", most of it {} ({})", plural(category), ByteSize(bytes))
    });
    let groups: Vec<_> = blocks.iter().map(|block| (lines.group_of(block), block.size)).collect();
    let line = largest_entry(groups.into_iter().filter(|&(group, _)| !lines.is_unknown(group)));
    let line = line.map_or_else(String::new, |(line, bytes)| {
        let (name, share) = (lines.group_name(definitions, line), Percent::of(bytes, total));
        format!("; the line with most is {name} ({}, {share})", ByteSize(bytes))
    });
    Ok(format!("{} was allocated on {}{category}{line}. {why}", ByteSize(total), failure.device))
}

/// Returns the key with most bytes, and its bytes; `None` without any.
fn largest_entry<K: Ord + Copy>(sizes: impl Iterator<Item = (K, u64)>) -> Option<(K, u64)> {
    let mut sums = BTreeMap::new();
    sizes.for_each(|(key, bytes)| *sums.entry(key).or_insert(0) += bytes);
    sums.into_iter().max_by_key(|&(_, bytes)| bytes)
}

/// Returns the word for blocks of a category in a sentence, such as `activations`.
fn plural(category: Category) -> &'static str {
    match category {
        Category::Parameter => "parameters",
        Category::Gradient => "gradients",
        Category::Activation => "activations",
        Category::Input => "inputs",
        Category::Temporary => "temporary blocks",
        other => other.name(),
    }
}
