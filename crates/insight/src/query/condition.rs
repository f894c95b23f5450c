//! The condition of one term of a query, and its description in words.

use vramscope_trace::{
    ByteSize, Category, Count, DeviceId, DurationNs, EventType, MempoolId, PoolKey, PoolKind, SiteId,
};

use super::comparison::Comparison;

/// The texts in which a term is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextField {
    /// Functions, files, scope, compile context, recorded category and mark name.
    Any,
    /// The functions of the call stack.
    Function,
    /// The files of the call stack.
    File,
    /// The scope path, which contains the names of modules, and the compile context.
    Module,
    /// The name of the site as tables show it.
    Site,
    /// The name of a mark.
    Mark,
}

impl TextField {
    /// Returns the name of the searched property, for descriptions.
    const fn name(self) -> &'static str {
        match self {
            Self::Any => "a function, file, module, category or mark",
            Self::Function => "a function",
            Self::File => "a file",
            Self::Module => "the module or scope",
            Self::Site => "the name of the site",
            Self::Mark => "the name of a mark",
        }
    }
}

/// A condition on an age or a lifetime, in one of three units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Nanoseconds.
    Time(Comparison),
    /// Events.
    Events(Comparison),
    /// Training steps: how many steps began in the span.
    Steps(Comparison),
}

impl Span {
    /// Returns the condition in words, for example `more than 10 s`.
    fn describe(self) -> String {
        match self {
            Self::Time(comparison) => comparison.describe(|ns| DurationNs(ns).to_string()),
            Self::Events(comparison) => comparison.describe(|events| Count(events).of("event", "events")),
            Self::Steps(comparison) => comparison.describe(|steps| Count(steps).of("step", "steps")),
        }
    }
}

/// A condition on the pool that an allocation or segment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolFilter {
    /// The small or the large pools, default and private.
    Kind(PoolKind),
    /// The default pools.
    Default,
    /// Any private pool.
    Private,
    /// One private pool.
    Mempool(MempoolId),
}

impl PoolFilter {
    /// Returns true if a pool meets the condition.
    #[must_use]
    pub fn contains(self, pool: PoolKey) -> bool {
        match self {
            Self::Kind(kind) => pool.kind == kind,
            Self::Default => pool.owner == MempoolId::default(),
            Self::Private => pool.owner != MempoolId::default(),
            Self::Mempool(owner) => pool.owner == owner,
        }
    }
}

/// Whether the program still holds an active block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockUse {
    /// Allocated: the program has not freed it.
    Allocated,
    /// Pending free: freed, but a stream may still use it.
    Pending,
}

/// The condition of one term of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// A text, in lower case, that `field` contains. With a line, the text is part of a frame's
    /// file and the frame has that line.
    Text {
        /// Where the text is looked for.
        field: TextField,
        /// The text in lower case.
        text: String,
        /// The line of the frame; `None` for any.
        line: Option<u32>,
    },
    /// One site.
    Site(SiteId),
    /// One of some categories, recorded or else inferred: bit n is set for category n of
    /// [`Category::ALL`].
    Categories(u16),
    /// An address in the block, segment or allocation.
    Address(u64),
    /// Size in bytes, after rounding.
    Size(Comparison),
    /// Requested size in bytes.
    Requested(Comparison),
    /// Age at the current moment.
    Age(Span),
    /// Lifetime, from the request to the program's free.
    Life(Span),
    /// Number of the event, or of the event that made the allocation.
    Event(Comparison),
    /// Stream handle.
    Stream(Comparison),
    /// Device.
    Device(DeviceId),
    /// Pool.
    Pool(PoolFilter),
    /// One of some types of events: bit n is set for type n of [`EventType::ALL`].
    EventTypes(u16),
    /// Whether the program has freed the active block.
    Use(BlockUse),
    /// Whether the program has freed the allocation.
    Freed(bool),
}

/// Joins words as in `a, b or c`.
fn any_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

impl Condition {
    /// Returns the condition in words, for example `size more than 100 MiB`.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Text { text, line: Some(line), .. } => format!("line {line} of a file containing “{text}”"),
            Self::Text { field, text, line: None } => format!("“{text}” in {}", field.name()),
            Self::Site(site) => format!("site number {}", site.0),
            Self::Categories(categories) => {
                let chosen = Category::ALL.into_iter().filter(|&one| categories & category_bit(one) != 0);
                format!("category {}", any_of(&chosen.map(Category::name).collect::<Vec<_>>()))
            }
            Self::Address(address) => format!("contains the address {address:#x}"),
            Self::Size(comparison) => format!("size {}", comparison.describe(size)),
            Self::Requested(comparison) => format!("requested {}", comparison.describe(size)),
            Self::Age(span) => format!("age {}", span.describe()),
            Self::Life(span) => format!("lifetime {}", span.describe()),
            Self::Event(comparison) => {
                format!("event number {}", comparison.describe(|number| Count(number).to_string()))
            }
            Self::Stream(comparison) => format!("stream {}", comparison.describe(|stream| stream.to_string())),
            Self::Device(device) => device.to_string(),
            Self::Pool(PoolFilter::Kind(PoolKind::Small)) => "small pool".to_owned(),
            Self::Pool(PoolFilter::Kind(PoolKind::Large)) => "large pool".to_owned(),
            Self::Pool(PoolFilter::Default) => "default pool".to_owned(),
            Self::Pool(PoolFilter::Private) => "private pool".to_owned(),
            Self::Pool(PoolFilter::Mempool(MempoolId(a, b))) => format!("private pool ({a}, {b})"),
            Self::EventTypes(types) => {
                let chosen = EventType::ALL.into_iter().filter(|&one| types & event_type_bit(one) != 0);
                any_of(&chosen.map(EventType::name).collect::<Vec<_>>())
            }
            Self::Use(BlockUse::Allocated) => "allocated".to_owned(),
            Self::Use(BlockUse::Pending) => "pending free".to_owned(),
            Self::Freed(true) => "freed".to_owned(),
            Self::Freed(false) => "never freed".to_owned(),
        }
    }
}

/// Returns the bit of a category in [`Condition::Categories`].
pub(super) const fn category_bit(category: Category) -> u16 {
    1 << category as u8
}

/// Returns the bit of a type of events in [`Condition::EventTypes`].
pub(super) const fn event_type_bit(event_type: EventType) -> u16 {
    1 << event_type as u16
}

/// Returns a size for a description: rounded, and in bytes too where that differs.
fn size(bytes: u64) -> String {
    let rounded = ByteSize(bytes).to_string();
    let is_exact = rounded.parse() == Ok(ByteSize(bytes));
    if is_exact { rounded } else { format!("{rounded} ({} bytes)", Count(bytes)) }
}
