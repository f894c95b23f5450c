//! Matches the files, functions and lines of two versions of a program.
//!
//! Lines move as code is inserted above them, and line 11 of one version may be line 12 of the
//! other while another statement is now at line 11. Numbers alone cannot tell. What was allocated
//! at a line can: the number and bytes of the allocations, and the functions that it called.
//! Lines keep their order within a function, so they are aligned as two sequences.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use vramscope_trace::{Definition, Definitions, Frame, FrameId, Site, SiteId, Stack, StackId, StringId};

use super::budget::Budget;
use super::requested_churn::RequestedChurn;

/// Maximum number of pairs of lines of one function that are aligned, and of files or functions
/// that are compared, a bound on memory: two functions with 1,000 recorded lines each. The lines of
/// a longer function keep their numbers.
const MAX_PAIRS: usize = 1_000_000;

/// Base score of every pair of lines, to which the scores of their similarities are added.
const CANDIDATE: u32 = 2;
/// Score of two lines that call equal sets of functions.
const SAME_CALLS: u32 = 2;
/// Score of two lines that call at least one function in common.
const COMMON_CALL: u32 = 1;
/// Score of making equally many allocations.
const SAME_ALLOCATIONS: u32 = 2;
/// Score of making equally many allocations with as many bytes. It must outweigh [`CANDIDATE`]:
/// else one more pair of lines would be preferred to pairs that agree in everything.
const SAME_BYTES: u32 = 3;
/// Score of making equally many allocations with up to 5% more bytes.
const CLOSE_BYTES: u32 = 2;
/// Score of making equally many allocations with up to 25% more bytes.
const SIMILAR_BYTES: u32 = 1;
/// Score of a line that has moved as far as the line before it.
const SAME_OFFSET: u32 = 1;
/// Score of a line that has not moved.
const NOT_MOVED: u32 = 1;
/// Minimum score of two lines at which they are similar, without the scores for their line numbers.
const SIMILAR: u32 = SAME_CALLS + SAME_ALLOCATIONS;

/// Maximum number of functions that are kept for the calls of a line. Bounds the time of a
/// comparison.
const MAX_CALLS: usize = 16;

/// The allocations made at a line or in a function, directly and in the functions that it calls.
#[derive(Clone, Debug, Default)]
struct Activity {
    /// Number of its allocations, and the bytes requested.
    churn: (u64, u64),
    /// Numbers of the functions that it called, the smallest [`MAX_CALLS`]; that of the empty name
    /// stands for a request without a deeper frame.
    calls: BTreeSet<usize>,
}

/// Numbers of functions by their names, equal in both recordings.
type CallNumbers<'a> = HashMap<&'a str, usize>;
/// The recorded lines of a function, by number.
type Lines = BTreeMap<u32, Activity>;
/// The recorded functions of a file, by name.
type Functions<'a> = BTreeMap<&'a str, Lines>;
/// The recorded code of a program, by the files' paths.
type Files<'a> = BTreeMap<&'a str, Functions<'a>>;

impl Activity {
    /// Adds the allocations of a site: their number and bytes, and the number of the function
    /// called.
    fn add(&mut self, churn: (u64, u64), call: usize) {
        self.churn.0 = self.churn.0.saturating_add(churn.0);
        self.churn.1 = self.churn.1.saturating_add(churn.1);
        self.calls.insert(call);
        if self.calls.len() > MAX_CALLS {
            self.calls.pop_last();
        }
    }

    /// Returns the similarity of this and `other`: the higher, the more likely they are one piece
    /// of code.
    fn score(&self, other: &Self) -> u32 {
        let calls = match () {
            () if self.calls == other.calls => SAME_CALLS,
            () if !self.calls.is_disjoint(&other.calls) => COMMON_CALL,
            () => 0,
        };
        let churn = match () {
            () if self.churn == other.churn => SAME_ALLOCATIONS + SAME_BYTES,
            () if self.churn.0 == other.churn.0 => SAME_ALLOCATIONS + close_bytes(self.churn.1, other.churn.1),
            () => 0,
        };
        calls + churn
    }
}

/// Returns the score of two different numbers of bytes; 0 if they differ by more than 25%.
fn close_bytes(a: u64, b: u64) -> u32 {
    let (smaller, difference) = (a.min(b), a.abs_diff(b));
    match () {
        () if difference <= smaller / 20 => CLOSE_BYTES,
        () if difference <= smaller / 4 => SIMILAR_BYTES,
        () => 0,
    }
}

/// Returns the recorded code of a program with the allocations of each line.
fn files_of<'a>(
    definitions: &'a Definitions,
    churn: &BTreeMap<SiteId, RequestedChurn>,
    numbers: &mut CallNumbers<'a>,
) -> Files<'a> {
    let mut files = Files::new();
    for (&id, of_site) in churn {
        let mut call = "";
        // A line of a recursive function counts once.
        let mut seen = HashSet::new();
        for frame in definitions.stack(definitions.site(id).stack) {
            let (function, file) = (definitions.string(frame.function), definitions.string(frame.file));
            if frame.line > 0 && seen.insert(frame) {
                let lines = files.entry(file).or_default().entry(function).or_default();
                let next = numbers.len();
                let call = *numbers.entry(call).or_insert(next);
                lines.entry(frame.line).or_default().add((of_site.churn.allocations, of_site.requested_bytes), call);
            }
            call = function;
        }
    }
    files
}

/// Pairs the keys of two maps: first equal keys, then the remaining keys by descending score. Each
/// key occurs once. Pairs with the score 0 are left out.
///
/// `steps` is the cost of a score. If the budget does not suffice for all scores, only equal keys
/// are paired: which pairs are found must not depend on where the search ended.
fn pairs<'a, T>(
    a: &BTreeMap<&'a str, T>,
    b: &BTreeMap<&'a str, T>,
    budget: &mut Budget,
    steps: impl Fn(&T, &T) -> usize,
    score: impl Fn(&T, &T) -> u32,
) -> Vec<(&'a str, &'a str)> {
    let mut pairs: Vec<(&str, &str)> = a.keys().filter(|key| b.contains_key(*key)).map(|key| (*key, *key)).collect();
    let only = |of: &BTreeMap<&'a str, T>, other: &BTreeMap<&'a str, T>| {
        of.keys().copied().filter(|key| !other.contains_key(key)).collect::<Vec<&'a str>>()
    };
    let (only_a, only_b) = (only(a, b), only(b, a));
    let pairs_to_score = only_a.len().saturating_mul(only_b.len());
    if pairs_to_score > MAX_PAIRS {
        budget.exceed();
        return pairs;
    }
    if !budget.take(pairs_to_score) {
        return pairs;
    }
    let cost_of = |one: &&str| only_b.iter().map(|other| steps(&a[*one], &b[other])).fold(0, usize::saturating_add);
    if !budget.take(only_a.iter().map(cost_of).fold(0, usize::saturating_add)) {
        return pairs;
    }
    let all = only_a.iter().flat_map(|one| only_b.iter().map(move |other| (*one, *other)));
    let mut scored: Vec<(u32, &str, &str)> = all.map(|(one, other)| (score(&a[one], &b[other]), one, other)).collect();
    scored.retain(|(score, ..)| *score > 0);
    // Names decide between equal scores, so that the result does not depend on chance.
    scored.sort_by_key(|&(score, one, other)| (Reverse(score), one, other));
    let mut used = (HashSet::new(), HashSet::new());
    for (_, one, other) in scored {
        if !used.0.contains(one) && !used.1.contains(other) {
            used.0.insert(one);
            used.1.insert(other);
            pairs.push((one, other));
        }
    }
    pairs
}

/// Returns how many functions two files have in common; 0 if that is less than half of either's.
fn common_functions(a: &Functions<'_>, b: &Functions<'_>) -> u32 {
    let common = a.keys().filter(|name| b.contains_key(*name)).count();
    if common * 2 < a.len().max(b.len()) { 0 } else { u32::try_from(common).unwrap_or(u32::MAX) }
}

/// Returns how similar two functions of different names are, to find renamed ones; 0 if fewer than
/// half of the lines of the longer one have a similar line in the other one.
fn renamed_function(a: &Lines, b: &Lines) -> u32 {
    let best = a.values().map(|one| b.values().map(|other| one.score(other)).max().unwrap_or_default());
    let similar: Vec<u32> = best.filter(|score| *score >= SIMILAR).collect();
    if similar.len() * 2 < a.len().max(b.len()) { 0 } else { similar.iter().sum() }
}

/// Returns the pairs of lines of one function in two recordings that belong together, in order:
/// the alignment with the highest score. The lines keep their numbers if the budget does not
/// suffice.
fn aligned_lines(a: &Lines, b: &Lines, budget: &mut Budget) -> Vec<(u32, u32)> {
    let unchanged = || a.keys().map(|line| (*line, *line)).collect();
    if a.keys().eq(b.keys()) {
        return unchanged();
    }
    let line_pairs = a.len().saturating_mul(b.len());
    if line_pairs > MAX_PAIRS {
        budget.exceed();
        return unchanged();
    }
    if !budget.take(line_pairs) {
        return unchanged();
    }
    let (lines_a, lines_b): (Vec<_>, Vec<_>) = (a.iter().collect(), b.iter().collect());
    let width = lines_b.len() + 1;
    // The highest score of the lines before i and j, in all and with (i - 1, j - 1) as a pair; and
    // whether that pair has moved as far as one of (i - 2, j - 2), which belongs to the score.
    let mut best = vec![0_u32; (lines_a.len() + 1) * width];
    let mut paired = best.clone();
    let mut follows_pair = vec![false; best.len()];
    for (i, (line_a, activity_a)) in (1..).zip(&lines_a) {
        for (j, (line_b, activity_b)) in (1..).zip(&lines_b) {
            let here = i * width + j;
            let before = here - width - 1;
            let offset = |a: u32, b: u32| i64::from(b) - i64::from(a);
            let moved = offset(**line_a, **line_b);
            let continues = i > 1 && j > 1 && offset(*lines_a[i - 2].0, *lines_b[j - 2].0) == moved;
            let after_pair = if continues { paired[before] + SAME_OFFSET } else { 0 };
            let score = CANDIDATE + activity_a.score(activity_b) + if moved == 0 { NOT_MOVED } else { 0 };
            follows_pair[here] = after_pair > best[before];
            paired[here] = score + best[before].max(after_pair);
            best[here] = paired[here].max(best[here - 1]).max(best[here - width]);
        }
    }
    let (mut i, mut j) = (lines_a.len(), lines_b.len());
    let (mut pairs, mut is_pair) = (Vec::new(), false);
    while i > 0 && j > 0 {
        let here = i * width + j;
        if !is_pair && best[here] == best[here - width] {
            i -= 1;
        } else if !is_pair && best[here] == best[here - 1] {
            j -= 1;
        } else {
            pairs.push((*lines_a[i - 1].0, *lines_b[j - 1].0));
            is_pair = follows_pair[here];
            (i, j) = (i - 1, j - 1);
        }
    }
    pairs.reverse();
    pairs
}

/// Returns A's definitions with the files, functions and lines that they have in B, as far as that
/// can be found out. The sites keep their numbers. `a` and `b` are the definitions of two
/// recordings, with the allocations of each site.
pub(super) fn in_terms_of_b(
    a: (&Definitions, &BTreeMap<SiteId, RequestedChurn>),
    b: (&Definitions, &BTreeMap<SiteId, RequestedChurn>),
    budget: &mut Budget,
) -> Definitions {
    let mut numbers = CallNumbers::default();
    let (files_a, files_b) = (files_of(a.0, a.1, &mut numbers), files_of(b.0, b.1, &mut numbers));
    let mut moved: HashMap<(&str, &str, u32), (&str, &str, u32)> = HashMap::new();
    let file_steps = |a: &Functions<'_>, _: &Functions<'_>| a.len();
    for (file_a, file_b) in pairs(&files_a, &files_b, budget, file_steps, common_functions) {
        let (functions_a, functions_b) = (&files_a[file_a], &files_b[file_b]);
        let function_steps = |a: &Lines, b: &Lines| a.len().saturating_mul(b.len());
        for (function_a, function_b) in pairs(functions_a, functions_b, budget, function_steps, renamed_function) {
            for (line_a, line_b) in aligned_lines(&functions_a[function_a], &functions_b[function_b], budget) {
                moved.insert((file_a, function_a, line_a), (file_b, function_b, line_b));
            }
        }
    }
    rewritten(a.0, |place| moved.get(&place).copied().unwrap_or(place))
}

/// Returns definitions in which each frame has the file, function and line that `moved` returns.
fn rewritten<'a>(
    definitions: &'a Definitions,
    moved: impl Fn((&'a str, &'a str, u32)) -> (&'a str, &'a str, u32),
) -> Definitions {
    let mut strings = Strings::default();
    for id in 1..=u32::MAX {
        let Some(frame) = definitions.frame(FrameId(id)) else { break };
        let place = (definitions.string(frame.file), definitions.string(frame.function), frame.line);
        let (file, function, line) = moved(place);
        let (function, file) = (strings.id(function), strings.id(file));
        strings.definitions.define(Definition::Frame(Frame { function, file, line }));
    }
    for id in 1..=u32::MAX {
        let Some(stack) = definitions.stack_definition(StackId(id)) else { break };
        strings.definitions.define(Definition::Stack(Stack { ..stack }));
    }
    for id in 1..=u32::try_from(definitions.site_count()).unwrap_or(u32::MAX) {
        let site = definitions.site(SiteId(id));
        let scope = strings.id(definitions.string(site.scope));
        let compile_context = strings.id(definitions.string(site.compile_context));
        strings.definitions.define(Definition::Site(Site { scope, compile_context, ..site }));
    }
    strings.definitions
}

/// Definitions under construction, in which a string is defined when it is first used.
#[derive(Default)]
struct Strings<'a> {
    numbers: HashMap<&'a str, StringId>,
    definitions: Definitions,
}

impl<'a> Strings<'a> {
    /// Returns the number of a string, defining it if it is new.
    fn id(&mut self, text: &'a str) -> StringId {
        if text.is_empty() {
            return StringId(0);
        }
        let next = u32::try_from(self.numbers.len() + 1).unwrap_or(u32::MAX);
        *self.numbers.entry(text).or_insert_with(|| {
            self.definitions.define(Definition::String(text.to_owned()));
            StringId(next)
        })
    }
}
