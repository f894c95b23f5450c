//! Sites that differ only in library frames.

use std::collections::HashMap;

use vramscope_trace::{
    Category, Definitions, Frame, FrameId, FrameOrigin, StackId, StringId, frame_origin, is_python_frame,
};

use super::group_by::GroupBy;
use super::grouping::{GroupKey, Grouping};
use super::phase::{Phase, SiteRequest, phase};
use crate::frames::FactsCache;

/// Sites that differ only in library frames, which count as one when growth is analysed.
///
/// Merged sites have equal scopes, recorded categories, phases and frames of the program's own
/// code. Sites without a frame of the program are merged only if all frames are equal. PyTorch
/// calls a module through an additional frame while the module has hooks, so one line of a program
/// may have two sites, each of which allocates in a part of the steps only.
#[derive(Clone, Debug, Default)]
pub struct MergedSites {
    /// For each group, the first group that counts as one with it.
    first: Vec<u32>,
}

impl MergedSites {
    /// Finds the sites of a recording that count as one. With a grouping by anything but the site,
    /// each group stays by itself.
    ///
    /// The cost is linear in the definitions: each distinct stack is visited once.
    #[must_use]
    pub fn new(grouping: &Grouping, definitions: &Definitions) -> Self {
        if grouping.by() != GroupBy::Site {
            return Self::default();
        }
        let mut frames = OwnFrameLists::default();
        let mut facts = FactsCache::default();
        let has_python = grouping.recorded.has_python();
        let mut phase_of = |id| {
            let site = definitions.site(id);
            let facts = facts.get(definitions, site.stack);
            phase(definitions, SiteRequest { site, facts: &facts, lacks_python: facts.frames == 0 && has_python })
        };
        let mut first_groups: HashMap<MergeKey, u32> = HashMap::new();
        let first_of = |(key, group): (&GroupKey, u32)| {
            let GroupKey::Site(id) = *key else { return group };
            let site = definitions.site(id);
            let key = MergeKey {
                scope: site.scope,
                category: site.category,
                phase: phase_of(id),
                frames: frames.compared_frames(definitions, site.stack),
            };
            *first_groups.entry(key).or_insert(group)
        };
        Self { first: grouping.keys.iter().zip(0..).map(first_of).collect() }
    }

    /// Returns the first group that counts as one with `group`; `group` itself if no other does.
    #[must_use]
    pub fn first_of(&self, group: u32) -> u32 {
        self.first.get(group as usize).copied().unwrap_or(group)
    }
}

/// The common properties of sites that count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct MergeKey {
    scope: StringId,
    category: Category,
    phase: Option<Phase>,
    frames: ComparedFrames,
}

/// The frames of a stack that are compared with other stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ComparedFrames {
    /// The program's own frames: the number of the list.
    Own(usize),
    /// All frames of a stack without own frames.
    All(StackId),
}

/// The numbers of a stack's lists of own frames; 0 is the empty list.
#[derive(Clone, Copy, Debug, Default)]
struct OwnFrames {
    has_python: bool,
    /// The Python frames.
    python: usize,
    /// The C++ frames, which are the program's own if the stack has no Python frame.
    native: usize,
}

/// Numbers lists of own frames: equal lists have equal numbers.
#[derive(Debug, Default)]
struct OwnFrameLists {
    /// The number of each list, by its innermost frame and the number of the list of its other
    /// frames.
    numbers: HashMap<(Frame, usize), usize>,
    /// Whether a frame runs Python code, and whether it can be the program's own.
    frames: HashMap<FrameId, (bool, bool)>,
    stacks: HashMap<StackId, OwnFrames>,
}

impl OwnFrameLists {
    /// Returns the frames by which a stack is compared.
    fn compared_frames(&mut self, definitions: &Definitions, stack: StackId) -> ComparedFrames {
        let OwnFrames { has_python, python, native } = self.own_frames(definitions, stack);
        match if has_python { python } else { native } {
            0 => ComparedFrames::All(stack),
            list => ComparedFrames::Own(list),
        }
    }

    /// Returns the lists of a stack's own frames. Each distinct stack and each of its callers is
    /// visited once.
    fn own_frames(&mut self, definitions: &Definitions, stack: StackId) -> OwnFrames {
        let mut pending = Vec::new();
        let mut next = stack;
        let mut own = loop {
            if let Some(known) = self.stacks.get(&next) {
                break *known;
            }
            let Some(definition) = definitions.stack_definition(next) else { break OwnFrames::default() };
            pending.push((next, definition.frame));
            next = definition.caller;
        };
        while let Some((stack, id)) = pending.pop() {
            let frame = definitions.frame(id).unwrap_or_default();
            let (is_python, is_own) = *self.frames.entry(id).or_insert_with(|| {
                let is_own = frame_origin(definitions, frame, false) == FrameOrigin::Own;
                (is_python_frame(definitions, frame), is_own)
            });
            own.has_python |= is_python;
            if is_own {
                let list = if is_python { &mut own.python } else { &mut own.native };
                let new = self.numbers.len() + 1;
                *list = *self.numbers.entry((frame, *list)).or_insert(new);
            }
            self.stacks.insert(stack, own);
        }
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::test_definitions::TestSites;

    type FrameText = (&'static str, u32, &'static str);

    const MAIN: FrameText = ("train.py", 3, "main");
    const LAYER: FrameText = ("train.py", 20, "layer");
    const CALL: FrameText = ("/x/site-packages/torch/nn/modules/module.py", 1780, "Module._call_impl");
    const INNER: FrameText = ("/x/site-packages/torch/nn/modules/module.py", 1827, "Module._call_impl.<locals>.inner");

    /// Returns true if two sites, each a scope, a category and frames, count as one.
    fn are_merged(one: (&str, Category, &[FrameText]), other: (&str, Category, &[FrameText])) -> bool {
        let mut sites = TestSites::default();
        let ids = [one, other].map(|(scope, category, frames)| sites.site(scope, category, frames));
        assert_ne!(ids[0], ids[1]);
        let mut grouping = Grouping::new(GroupBy::Site, 0);
        grouping.update(sites.definitions());
        let merged = MergedSites::new(&grouping, sites.definitions());
        let group = |wanted| grouping.keys.iter().zip(0..).find(|(key, _)| **key == GroupKey::Site(wanted));
        let [one, other] = ids.map(|id| group(id).expect("each site has a group").1);
        assert_eq!(merged.first_of(one), one, "the first group stands for both");
        merged.first_of(other) == one
    }

    #[test]
    fn sites_that_differ_only_in_library_frames_are_one() {
        let unknown = Category::Unknown;
        let plain: &[FrameText] = &[MAIN, CALL, LAYER, CALL];
        let hooked: &[FrameText] = &[MAIN, CALL, INNER, LAYER, CALL, INNER];
        assert!(are_merged(("", unknown, plain), ("", unknown, hooked)));
        assert!(are_merged(("net.1", Category::Activation, plain), ("net.1", Category::Activation, hooked)));
        // C++ frames are a library's in a stack with Python frames.
        let native = ("/home/me/kernel.cpp", 7, "me::kernel");
        assert!(are_merged(("", unknown, &[MAIN]), ("", unknown, &[MAIN, native])));
    }

    #[test]
    fn scope_category_and_own_frames_tell_sites_apart() {
        let unknown = Category::Unknown;
        let plain: &[FrameText] = &[MAIN, CALL, LAYER];
        let hooked: &[FrameText] = &[MAIN, CALL, INNER, LAYER];
        assert!(!are_merged(("net.1", unknown, plain), ("net.2", unknown, hooked)));
        assert!(!are_merged(("", Category::Activation, plain), ("", Category::Gradient, hooked)));
        let other_line: &[FrameText] = &[MAIN, CALL, ("train.py", 21, "layer")];
        assert!(!are_merged(("", unknown, plain), ("", unknown, other_line)));
        assert!(!are_merged(("", unknown, plain), ("", unknown, &[MAIN, LAYER, LAYER])));
        let other_order: &[FrameText] = &[LAYER, CALL, MAIN];
        assert!(!are_merged(("", unknown, plain), ("", unknown, other_order)));
        let native: &[FrameText] = &[("/home/me/main.cpp", 3, "main")];
        assert!(!are_merged(("", unknown, native), ("", unknown, &[("/home/me/main.cpp", 4, "main")])));
    }

    #[test]
    fn all_frames_count_where_none_is_the_programs_own() {
        let unknown = Category::Unknown;
        assert!(!are_merged(("", unknown, &[CALL]), ("", unknown, &[CALL, INNER])));
        assert!(!are_merged(("", unknown, &[("", 0, "at::mm")]), ("", unknown, &[("", 0, "at::relu")])));
        assert!(!are_merged(("", unknown, &[CALL]), ("", unknown, &[MAIN, CALL])));
    }

    #[test]
    fn groupings_by_other_properties_merge_nothing() {
        let mut sites = TestSites::default();
        sites.stack(&[MAIN, CALL]);
        sites.stack(&[MAIN, CALL, INNER]);
        let mut grouping = Grouping::new(GroupBy::Stack, 0);
        grouping.update(sites.definitions());
        let merged = MergedSites::new(&grouping, sites.definitions());
        assert!((0..4).all(|group| merged.first_of(group) == group));
    }
}
