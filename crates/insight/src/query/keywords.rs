//! The keywords of the search language, with help and an example each.

/// The kind of value that follows a keyword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeywordKind {
    Address,
    Age,
    Category,
    Device,
    Event,
    EventType,
    File,
    Freed,
    Function,
    Life,
    Mark,
    Module,
    Pool,
    Requested,
    Site,
    Size,
    State,
    Stream,
}

/// A keyword of the search language, for help and completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyword {
    /// The keyword as help shows it.
    pub name: &'static str,
    /// Other spellings.
    pub aliases: &'static [&'static str],
    /// One line that says what the keyword matches.
    pub help: &'static str,
    /// The values that it takes, for completion; empty for numbers and free text.
    pub values: &'static [&'static str],
    /// A term with the keyword.
    pub example: &'static str,
    pub(super) kind: KeywordKind,
}

impl Keyword {
    /// Returns the keyword with this name or alias, in any case.
    pub(super) fn find(word: &str) -> Option<&'static Self> {
        let is_it = |name: &&str| name.eq_ignore_ascii_case(word);
        KEYWORDS.iter().find(|keyword| is_it(&keyword.name) || keyword.aliases.iter().any(is_it))
    }

    /// Returns true if the keyword takes text, so that only `:` may follow it.
    pub(super) fn takes_text(&self) -> bool {
        use KeywordKind::{Category, EventType, File, Freed, Function, Mark, Module, Pool, Site, State};
        matches!(self.kind, Category | EventType | File | Freed | Function | Mark | Module | Pool | Site | State)
    }
}

/// Creates an entry of [`KEYWORDS`].
const fn keyword(
    kind: KeywordKind,
    name: &'static str,
    aliases: &'static [&'static str],
    help: &'static str,
    values: &'static [&'static str],
    example: &'static str,
) -> Keyword {
    Keyword { name, aliases, help, values, example, kind }
}

/// All keywords of the search language, in the order of the help.
pub const KEYWORDS: &[Keyword] = &[
    keyword(
        KeywordKind::Size,
        "size",
        &[],
        "Size after rounding; a comparison alone means it, too",
        &[],
        "size>100MiB",
    ),
    keyword(KeywordKind::Requested, "requested", &["req"], "Size that the program requested", &[], "requested=1..512"),
    keyword(KeywordKind::Address, "addr", &["address"], "Block that contains an address", &[], "addr:0x7f1a2c000000"),
    keyword(KeywordKind::Age, "age", &[], "Time, events (ev) or steps since the allocation", &[], "age>3steps"),
    keyword(
        KeywordKind::Life,
        "life",
        &["lifetime"],
        "Time, events (ev) or steps from the allocation to its free",
        &[],
        "life<5ev",
    ),
    keyword(KeywordKind::Freed, "freed", &[], "Whether the program freed the allocation", &["yes", "no"], "freed:no"),
    keyword(
        KeywordKind::State,
        "state",
        &[],
        "Whether a live block is allocated or pending free",
        &["allocated", "pending"],
        "state:pending",
    ),
    keyword(
        KeywordKind::Category,
        "category",
        &["cat"],
        "What the memory is for, recorded or inferred; several with commas",
        &[
            "unknown",
            "parameter",
            "gradient",
            "optimizer",
            "activation",
            "input",
            "temporary",
            "workspace",
            "cache",
            "communication",
        ],
        "category:gradient,optimizer",
    ),
    keyword(
        KeywordKind::Function,
        "function",
        &["func"],
        "Text in a function of the stack",
        &[],
        "function:_init_group",
    ),
    keyword(
        KeywordKind::File,
        "file",
        &[],
        "Text in a file of the stack, with or without a line",
        &[],
        "file:train.py:66",
    ),
    keyword(KeywordKind::Module, "module", &["scope"], "Text in the module or scope path", &[], "module:layer3"),
    keyword(KeywordKind::Site, "site", &[], "Text in the site's name, or # and its number", &[], "site:adam.py"),
    keyword(KeywordKind::Mark, "mark", &[], "Text in the name of a mark", &[], "mark:step"),
    keyword(KeywordKind::Stream, "stream", &[], "Stream handle", &[], "stream:7"),
    keyword(
        KeywordKind::Pool,
        "pool",
        &[],
        "Size class, or default or private pool, or the two numbers of a private pool",
        &["small", "large", "default", "private"],
        "pool:private",
    ),
    keyword(
        KeywordKind::Device,
        "gpu",
        &["device"],
        "Device number, or host for pinned host memory",
        &["host"],
        "gpu:1",
    ),
    keyword(
        KeywordKind::EventType,
        "kind",
        &["type"],
        "Kind of event; several with commas",
        &[
            "alloc",
            "free",
            "free_requested",
            "free_completed",
            "segment",
            "segment_alloc",
            "segment_free",
            "map",
            "unmap",
            "oom",
            "mark",
            "memory_sample",
            "gap",
        ],
        "kind:alloc,free",
    ),
    keyword(
        KeywordKind::Event,
        "event",
        &["ev"],
        "Number of the event, or of the event that made the allocation",
        &[],
        "event:1000..2000",
    ),
];
