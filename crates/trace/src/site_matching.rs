//! Matches the sites of two recordings by their content.

use std::collections::{HashMap, HashSet};

use crate::site::{Definitions, Frame, Interner, Site, SiteId, Stack, StackId};

/// A value of the first of two compared recordings, and the corresponding value of the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerRecording<T> {
    /// The value in the first recording.
    pub a: T,
    /// The value in the second recording.
    pub b: T,
}

/// The parts of two call stacks, besides the functions' names, that must be equal for their sites
/// to match.
#[derive(Clone, Copy)]
struct FrameMatch {
    /// Whether file paths are compared.
    files: bool,
    /// Whether line numbers are compared.
    lines: bool,
    /// Whether the frames that started the script are compared, too.
    launcher: bool,
}

/// The comparison for which every part of two call stacks must be equal.
const EXACT_MATCH: FrameMatch = FrameMatch { files: true, lines: true, launcher: true };
/// The comparisons for sites without an exact match in the other recording, tried in this order:
/// without file paths, without line numbers, without both. None compares the frames that started
/// the script.
const LOOSER_MATCHES: [FrameMatch; 3] = [
    FrameMatch { files: false, lines: true, launcher: false },
    FrameMatch { files: true, lines: false, launcher: false },
    FrameMatch { files: false, lines: false, launcher: false },
];
/// The name that Python gives to the top level of a file as a function. Its callers are the frames
/// that started the script.
pub(crate) const TOP_LEVEL: &str = "<module>";

/// Returns a number for each site of both recordings, indexed by site number (index 0 is the
/// unknown site): sites that match have equal numbers.
///
/// Sites match if scope, category and whole call stack are equal. Sites without an exact match also
/// match if they differ only in file paths, else only in line numbers, else only in both. The cost
/// is linear in the definitions.
#[must_use]
pub fn shared_site_numbers(a: &Definitions, b: &Definitions) -> PerRecording<Vec<SiteId>> {
    let numbered = |frame_match: FrameMatch| {
        let mut shared = Interner::default();
        let mut of = |definitions: &Definitions| SharedNumbering::new(&mut shared, definitions, frame_match).sites();
        PerRecording { a: of(a), b: of(b) }
    };
    let mut keys = numbered(EXACT_MATCH);
    for frame_match in LOOSER_MATCHES {
        match_remaining(&mut keys, &numbered(frame_match));
    }
    keys
}

/// Matches the sites of the two recordings that have no match in `keys` yet: sites with equal
/// numbers in `loose`, the result of a less strict comparison, get equal numbers in `keys`.
fn match_remaining(keys: &mut PerRecording<Vec<SiteId>>, loose: &PerRecording<Vec<SiteId>>) {
    let in_a: HashSet<SiteId> = keys.a.iter().copied().collect();
    let in_b: HashSet<SiteId> = keys.b.iter().copied().collect();
    // If several sites match, the first one is used for all.
    let mut key_in_b: HashMap<SiteId, SiteId> = HashMap::new();
    for (key, loose) in keys.b.iter().zip(&loose.b).filter(|(key, _)| !in_a.contains(key)) {
        key_in_b.entry(*loose).or_insert(*key);
    }
    let mut matched = HashSet::new();
    for (key, loose) in keys.a.iter_mut().zip(&loose.a) {
        if !in_b.contains(key)
            && let Some(&to) = key_in_b.get(loose)
        {
            *key = to;
            matched.insert(*loose);
        }
    }
    for (key, loose) in keys.b.iter_mut().zip(&loose.b) {
        if !in_a.contains(key) && matched.contains(loose) {
            *key = key_in_b[loose];
        }
    }
}

/// Numbers the sites, stacks and strings of two recordings with one numbering, so that equal
/// content gets equal numbers. An instance handles one of the recordings. Each stack is visited
/// once.
struct SharedNumbering<'a> {
    interner: &'a mut Interner,
    definitions: &'a Definitions,
    frame_match: FrameMatch,
    /// The shared number of each stack of this recording that was numbered so far.
    stacks: HashMap<StackId, StackId>,
}

impl<'a> SharedNumbering<'a> {
    fn new(interner: &'a mut Interner, definitions: &'a Definitions, frame_match: FrameMatch) -> Self {
        Self { interner, definitions, frame_match, stacks: HashMap::from([(StackId(0), StackId(0))]) }
    }

    /// Returns the shared number of every site of this recording, indexed by site number; index 0
    /// is the unknown site.
    fn sites(mut self) -> Vec<SiteId> {
        let count = u32::try_from(self.definitions.site_count()).unwrap_or(u32::MAX);
        (0..=count).map(|id| self.site(SiteId(id))).collect()
    }

    /// Returns the number, shared by both recordings, of the site with number `id` in this
    /// recording.
    fn site(&mut self, id: SiteId) -> SiteId {
        let Site { stack, scope, category, compile_context } = self.definitions.site(id);
        let stack = self.stack(stack);
        let scope = self.interner.string(self.definitions.string(scope));
        let compile_context = self.interner.string(self.definitions.string(compile_context));
        self.interner.site(Site { stack, scope, category, compile_context })
    }

    /// Returns the number, shared by both recordings, of the stack with number `id` in this
    /// recording.
    fn stack(&mut self, id: StackId) -> StackId {
        // Walk outwards to the first numbered caller, then number the stacks on the way back.
        let mut links: Vec<(StackId, Stack)> = Vec::new();
        let mut at = id;
        let mut caller = loop {
            if let Some(&known) = self.stacks.get(&at) {
                break known;
            }
            let Some(link) = self.definitions.stack_definition(at) else { break StackId(0) };
            links.push((at, link));
            at = link.caller;
        };
        while let Some((id, link)) = links.pop() {
            let frame = self.definitions.frame(link.frame).unwrap_or_default();
            let function = self.definitions.string(frame.function);
            if !self.frame_match.launcher && function == TOP_LEVEL {
                caller = StackId(0);
            }
            let function = self.interner.string(function);
            let file = if self.frame_match.files { self.definitions.string(frame.file) } else { "" };
            let file = self.interner.string(file);
            let line = if self.frame_match.lines { frame.line } else { 0 };
            let frame = self.interner.frame(Frame { function, file, line });
            caller = self.interner.stack(frame, caller);
            self.stacks.insert(id, caller);
        }
        caller
    }
}
