//! The lines of the program that call the line with most memory.

use std::cmp::Reverse;
use std::collections::HashMap;

use vramscope_trace::is_python_frame;
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Allocation, Block, Definitions, FrameOrigin, SiteId, StringId, frame_origin, is_decorator};

use crate::frames::line_name;

/// Share of the bytes that one line must hold for its callers to be shown, in percent.
const DOMINANT_PERCENT: u128 = 90;
/// Maximum number of frames of a stack that are looked at; deeper recursion repeats them.
const MAX_FRAMES: usize = 512;
/// Maximum number of the program's lines of a stack that are looked at.
const MAX_LINES: usize = 64;

/// A line of the program that calls another one, with the bytes that were requested through it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The line, such as `train.py:80`; empty if no line of the program calls.
    pub name: String,
    /// Live bytes, after rounding.
    pub bytes: u64,
    /// Number of live blocks.
    pub blocks: u64,
}

/// Returns true if one line holds so much of `all` bytes that its callers say more.
#[must_use]
pub fn is_dominant(bytes: u64, all: u64) -> bool {
    u128::from(bytes) * 100 > u128::from(all) * DOMINANT_PERCENT
}

/// The memory of a line of the program, from which its callers are found.
#[derive(Clone, Debug, Default)]
pub struct LineCallers {
    by_site: HashMap<SiteId, (u64, u64)>,
}

impl LineCallers {
    /// Adds blocks of the line.
    #[must_use]
    pub fn of_blocks<'a>(blocks: impl Iterator<Item = &'a Block>) -> Self {
        let mut callers = Self::default();
        blocks.for_each(|block| callers.add(block.site, block.size));
        callers
    }

    /// Adds allocations of the line.
    #[must_use]
    pub fn of_allocations(allocations: impl Iterator<Item = Allocation>) -> Self {
        let mut callers = Self::default();
        allocations.for_each(|one| callers.add(one.site, one.size));
        callers
    }

    /// Adds a block.
    fn add(&mut self, site: SiteId, size: u64) {
        let (bytes, blocks) = self.by_site.entry(site).or_default();
        (*bytes, *blocks) = (bytes.saturating_add(size), *blocks + 1);
    }

    /// Returns the lines of the program that call the line, most bytes first: the nearest ones
    /// where calls differ, or if all blocks have one path of calls, the outermost line of it. None
    /// if no line of the program calls it.
    #[must_use]
    pub fn callers(&self, definitions: &Definitions) -> Vec<Caller> {
        let paths = self.by_site.iter().map(|(site, sums)| (own_lines(definitions, *site), *sums));
        let paths: Vec<(Vec<Line>, (u64, u64))> = paths.collect();
        let mut found = Vec::new();
        for depth in 1..MAX_LINES {
            let mut sums: HashMap<Option<Line>, Caller> = HashMap::new();
            for (path, (bytes, blocks)) in &paths {
                let caller = sums.entry(path.get(depth).copied()).or_default();
                (caller.bytes, caller.blocks) = (caller.bytes.saturating_add(*bytes), caller.blocks + blocks);
            }
            if sums.keys().all(Option::is_none) {
                break;
            }
            let named = |(line, caller): (Option<Line>, Caller)| Caller {
                name: line.map_or_else(String::new, |line| line.name(definitions)),
                ..caller
            };
            found = sums.into_iter().map(named).collect();
            sort_by_key(&mut found, |caller| (Reverse(caller.bytes), caller.name.clone()));
            if found.len() > 1 {
                break;
            }
        }
        found
    }
}

/// A line of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Line {
    file: StringId,
    line: u32,
}

impl Line {
    /// Returns the file's name and the number of the line.
    fn name(self, definitions: &Definitions) -> String {
        line_name(definitions, self.file, self.line)
    }
}

/// Returns the lines of the program in a site's stack, from the innermost on, without decorators.
fn own_lines(definitions: &Definitions, site: SiteId) -> Vec<Line> {
    let stack = definitions.site(site).stack;
    let frames = || definitions.stack(stack).take(MAX_FRAMES);
    let has_python = frames().any(|frame| is_python_frame(definitions, frame));
    let own = frames().filter(|frame| {
        frame_origin(definitions, *frame, has_python) == FrameOrigin::Own && !is_decorator(definitions, *frame)
    });
    let mut lines: Vec<Line> = own.map(|frame| Line { file: frame.file, line: frame.line }).take(MAX_LINES).collect();
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use vramscope_trace::Category;

    use super::*;
    use crate::frames::test_definitions::TestSites;

    const TRAIN: FrameText = ("train.py", 80, "train");
    const MODEL: FrameText = ("model.py", 12, "Net.forward");
    const CALL: FrameText = ("/x/site-packages/torch/nn/modules/module.py", 1790, "Module._call_impl");
    const LAYER: FrameText = ("mlp.py", 31, "Mlp.forward");

    type FrameText = (&'static str, u32, &'static str);

    /// Returns the callers of blocks, each with its stack and bytes.
    fn callers(stacks: &[(&[FrameText], u64)]) -> Vec<(String, u64)> {
        let mut sites = TestSites::default();
        let mut callers = LineCallers::default();
        for (frames, bytes) in stacks {
            callers.add(sites.site("", Category::Unknown, frames), *bytes);
        }
        callers.callers(sites.definitions()).into_iter().map(|one| (one.name, one.bytes)).collect()
    }

    #[test]
    fn callers_are_the_nearest_lines_that_differ() {
        let other = ("model.py", 14, "Net.forward");
        let found = callers(&[(&[TRAIN, CALL, MODEL, CALL, LAYER], 5), (&[TRAIN, CALL, other, CALL, LAYER], 7)]);
        assert_eq!(found, [("model.py:14".to_owned(), 7), ("model.py:12".to_owned(), 5)]);
        let evaluate = ("train.py", 95, "evaluate");
        let found = callers(&[(&[TRAIN, CALL, MODEL, CALL, LAYER], 5), (&[evaluate, CALL, MODEL, CALL, LAYER], 7)]);
        assert_eq!(found, [("train.py:95".to_owned(), 7), ("train.py:80".to_owned(), 5)]);
    }

    #[test]
    fn one_path_of_calls_has_its_outermost_line() {
        assert_eq!(callers(&[(&[TRAIN, CALL, MODEL, CALL, LAYER], 5)]), [("train.py:80".to_owned(), 5)]);
        assert_eq!(callers(&[(&[LAYER], 5)]), []);
        assert_eq!(callers(&[(&[], 5)]), []);
    }

    #[test]
    fn most_of_the_bytes_are_more_than_nine_tenths() {
        assert!(is_dominant(91, 100) && !is_dominant(90, 100) && !is_dominant(0, 0));
        assert!(is_dominant(u64::MAX, u64::MAX));
    }
}
