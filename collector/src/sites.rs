//! Sites: where memory was asked for, as a number.
//!
//! A request costs a look into a small table that holds the numbers of the sites that were met before. All pools of a recording number theirs in
//! common, so that one number means one site in it.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vramscope_trace::{Definitions, Frame, Interner, Sink, Site, SiteId, StackId, StringId};

use crate::scope::{Context, PathId};

mod native;

use native::{Native, NativeId};

/// The numbers of a recording's strings and sites, for all that record into it. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers(Arc<Mutex<Numbering>>);

#[derive(Debug, Default)]
struct Numbering {
    interner: Interner,
    /// How many names were given a number.
    names: usize,
    /// What was told, for whoever reads a pool.
    definitions: Definitions,
}

impl Numbering {
    /// Tells `sink` what is new.
    fn tell(&mut self, sink: &mut (impl Sink + ?Sized)) {
        for definition in self.interner.take_new() {
            sink.define(&definition);
            self.definitions.define(definition);
        }
    }
}

/// Different names of moments that are kept apart. A program that numbers its steps has another name for each, and each is held for as long as the
/// recording goes on, by everyone who has it: so many take some 60 MB.
const MAX_NAMES: usize = 1 << 18;

/// What is left of a name when there are too many: without the number at its end, of which there are few.
fn unnumbered(name: &str) -> String {
    format!("{}…", name.trim_end_matches(|c: char| c.is_ascii_digit()))
}

impl Numbers {
    fn lock(&self) -> MutexGuard<'_, Numbering> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers something. What is new is told to `sink` before anyone else can have its number.
    pub(crate) fn number<R>(&self, sink: &mut (impl Sink + ?Sized), number: impl FnOnce(&mut Interner) -> R) -> R {
        let mut numbering = self.lock();
        let numbered = number(&mut numbering.interner);
        numbering.tell(sink);
        numbered
    }

    /// The number of the name of a moment, of which `sink` is told where it is a new one. Where there are too many different ones,
    /// a new one loses the number at its end.
    pub(crate) fn name(&self, sink: &mut (impl Sink + ?Sized), name: &str) -> StringId {
        let mut numbering = self.lock();
        if let Some(known) = numbering.interner.find(name) {
            return known;
        }
        let short = match numbering.names {
            ..MAX_NAMES => name.to_owned(),
            MAX_NAMES.. => unnumbered(name),
        };
        let text = if numbering.names < 2 * MAX_NAMES { short.as_str() } else { "…" };
        let id = numbering.interner.string(text);
        numbering.tell(sink);
        numbering.names += 1;
        id
    }

    /// Everything that was defined.
    pub(crate) fn definitions(&self) -> Definitions {
        self.lock().definitions.clone()
    }
}

/// How many sites are found without a look into the table. A training step asks for memory at some dozens of lines in some dozens of
/// scopes, and a line that shares its place with another costs a look into the table and nothing else.
const RECENT: usize = 256;

/// What a site says, beside the scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    /// The line that asked.
    Lines,
    /// Nothing.
    Scopes,
}

/// The numbers of the sites that a pool has met, each looked up by what a program has at hand.
#[derive(Debug)]
pub(crate) struct Sites {
    numbers: Numbers,
    sites: HashMap<Key, SiteId>,
    /// Sites that were asked for before, each in the place that its key says.
    recent: Box<[(Key, SiteId); RECENT]>,
    says: Says,
    /// Looks at the call stack, where that is wanted.
    native: Option<Native>,
}

/// A context and a location. The location is that at which the compiler put it, which is quicker to compare than its text. The
/// compiler may put one twice; the interner then still finds that they are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    location: usize,
    context: Context,
    stack: NativeId,
}

impl Key {
    /// The key of nothing: no location is at address 0.
    const NONE: Self = Self { location: 0, context: Context::NONE, stack: NativeId::NONE };

    /// One of the places of [`Sites::recent`].
    #[inline]
    fn place(self) -> usize {
        let context = u64::from(self.context.path.0) << 8 | self.context.category as u64;
        let mixed = self.location as u64 ^ context.rotate_left(32) ^ u64::from(self.stack.0).rotate_left(20);
        // The upper bits of a product depend on all bits of its factors; the number is 2^64 over the golden ratio.
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - RECENT.ilog2())) as usize
    }
}

impl Sites {
    pub(crate) fn new(numbers: Numbers, says: Says) -> Self {
        let recent = Box::new([(Key::NONE, SiteId(0)); RECENT]);
        Self { numbers, sites: HashMap::new(), recent, says, native: None }
    }

    /// From now on each site has the call stack, of up to so many frames; of none at 0.
    pub(crate) fn record_stacks(&mut self, max_frames: usize) {
        self.native = (max_frames > 0).then(|| Native::new(max_frames));
    }

    /// The site of a call from `location` in `context`; `sink` is told of it where it is a new one.
    #[inline]
    pub(crate) fn site(
        &mut self,
        context: Context,
        location: &'static Location<'static>,
        sink: &mut (impl Sink + ?Sized),
    ) -> SiteId {
        let stack = self.native.as_mut().map_or(NativeId::NONE, Native::look);
        let key = Key { location: std::ptr::from_ref(location).addr(), context, stack };
        let (recent, site) = self.recent[key.place()];
        if recent == key { site } else { self.look_up(key, location, sink) }
    }

    #[cold]
    fn look_up(&mut self, key: Key, location: &'static Location<'static>, sink: &mut (impl Sink + ?Sized)) -> SiteId {
        let Self { numbers, sites, native, says, .. } = self;
        let site = *sites.entry(key).or_insert_with(|| {
            numbers.number(sink, |interner| {
                let callers = native.as_mut().map_or(StackId(0), |native| native.stack(key.stack, location, interner));
                let stack = match says {
                    Says::Lines if callers == StackId(0) => stack_of(location, interner),
                    Says::Lines | Says::Scopes => callers,
                };
                let scope = scope_of(key.context.path, interner);
                interner.site(Site { stack, scope, category: key.context.category, ..Site::default() })
            })
        });
        self.recent[key.place()] = (key, site);
        site
    }

    /// The number of the name of a moment.
    pub(crate) fn name(&self, name: &str, sink: &mut (impl Sink + ?Sized)) -> StringId {
        self.numbers.name(sink, name)
    }

    /// Everything that was defined.
    pub(crate) fn definitions(&self) -> Definitions {
        self.numbers.definitions()
    }
}

/// The stack of a call of which nothing but its line is known.
fn stack_of(location: &Location<'_>, interner: &mut Interner) -> StackId {
    let file = interner.string(location.file());
    let frame = interner.frame(Frame { function: StringId(0), file, line: location.line() });
    interner.stack(frame, StackId(0))
}

fn scope_of(path: PathId, interner: &mut Interner) -> StringId {
    path.with_text(|text| interner.string(text))
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{Category, MemorySink};

    use super::*;
    use crate::scope::Scope;

    fn told(sink: &MemorySink) -> Definitions {
        let mut definitions = Definitions::default();
        sink.definitions.iter().cloned().for_each(|definition| definitions.define(definition));
        definitions
    }

    #[test]
    fn a_site_keeps_its_number_among_more_than_are_at_hand() {
        let (mut sites, mut sink) = (Sites::new(Numbers::default(), Says::Lines), MemorySink::default());
        let location = Location::caller();
        let contexts: Vec<_> = (0..2 * RECENT)
            .map(|n| {
                let _layer = Scope::open_with(&format!("layer{n}"), Category::Activation);
                Context::current()
            })
            .collect();
        let first: Vec<_> = contexts.iter().map(|&context| sites.site(context, location, &mut sink)).collect();
        let count = sink.definitions.len();
        let again: Vec<_> = contexts.iter().map(|&context| sites.site(context, location, &mut sink)).collect();
        assert_eq!(first, again);
        assert_eq!(sink.definitions.len(), count);
        let definitions = told(&sink);
        assert_eq!(definitions.site_count(), contexts.len());
        for (n, site) in first.into_iter().enumerate() {
            let Site { scope, category, .. } = definitions.site(site);
            assert_eq!((definitions.string(scope), category), (&*format!("layer{n}"), Category::Activation));
        }
    }

    #[test]
    fn names_that_are_numbered_lose_their_numbers_when_there_are_too_many() {
        let (numbers, mut sink) = (Numbers::default(), MemorySink::default());
        let first = numbers.name(&mut sink, "step 0");
        numbers.lock().names = MAX_NAMES - 1;
        let last = numbers.name(&mut sink, "step 1000");
        let beyond = numbers.name(&mut sink, "step 1001");
        assert_eq!(numbers.name(&mut sink, "step 1002"), beyond);
        assert_eq!(numbers.name(&mut sink, "step 0"), first);
        assert_ne!(numbers.name(&mut sink, "evaluation 7"), beyond);
        numbers.lock().names = 2 * MAX_NAMES;
        let others = numbers.name(&mut sink, "something else");
        let definitions = told(&sink);
        let text = |id| definitions.string(id);
        assert_eq!([text(first), text(last), text(beyond), text(others)], ["step 0", "step 1000", "step …", "…"]);
        // What is known keeps its name, and nothing is told twice.
        assert_eq!(numbers.name(&mut sink, "step 1000"), last);
        assert_eq!(sink.definitions.len(), 5);
    }

    #[test]
    fn pools_of_one_recording_agree_on_numbers() {
        let (numbers, mut sink) = (Numbers::default(), MemorySink::default());
        let (mut one, mut other) = (Sites::new(numbers.clone(), Says::Lines), Sites::new(numbers.clone(), Says::Lines));
        let here = Location::caller();
        let first = one.site(Context::NONE, here, &mut sink);
        let _scope = Scope::open("forward");
        let second = other.site(Context::current(), here, &mut sink);
        assert_ne!(first, second);
        assert_eq!(one.site(Context::current(), here, &mut sink), second);
        assert_eq!(one.name("a mark", &mut sink), other.name("a mark", &mut sink));
        assert_eq!(told(&sink), numbers.definitions());
    }
}
