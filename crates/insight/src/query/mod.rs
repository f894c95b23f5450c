//! The search language of the page and the commands.
//!
//! A query is a list of terms separated by spaces; an item matches if it matches all of them. `-`
//! before a term negates it, and double quotes enclose text with spaces or signs (`\"` is a quote
//! inside quotes). A term is one of:
//!
//! - text to look for: `adam`, `train.py:66`, `"two words"`;
//! - an address: `0x7f1a2c000000`, or at least 6 hexadecimal digits with both a letter and a
//!   decimal digit;
//! - a comparison of the size: `>100MiB`, `<=512`, `=2MiB`, `1MiB..4MiB`;
//! - a keyword with a value or a comparison: `category:gradient`, `age>10s`. [`KEYWORDS`] lists
//!   them all.
//!
//! Ranges include both ends; either end may be omitted. A space may precede the unit of an age or a
//! lifetime: `age>10 steps`. A term about a property that an item lacks does not match, and its
//! negation matches: an event without a site has no category, so `category:unknown` does not match
//! it and `-category:unknown` does.
//!
//! The category is the one that tables show: the recorded one, or else the one that follows from
//! the stack by the rules of [`group`](crate::group). Text without a keyword is looked for in the
//! name of the recorded category only.
//!
//! [`Query::parse`] reads a query, [`Query::describe`] explains it, and [`Query::compile`] prepares
//! it for a recording: the [`Matcher`] knows the answer of all terms about text for each site, so
//! that matching a block, allocation or event takes no search.

mod block_categories;
mod comparison;
mod condition;
mod error;
mod keywords;
mod matcher;
mod parser;
mod progress;
mod site_bits;
mod term;
mod terms;
mod tokens;
mod values;

pub use crate::comparator::Comparator;
pub use comparison::Comparison;
pub use condition::{BlockUse, Condition, PoolFilter, Span, TextField};
pub use error::SearchTermError;
pub use keywords::{KEYWORDS, Keyword};
pub(crate) use matcher::age_of;
pub use matcher::{Matcher, Now};
pub use progress::ScanProgress;
pub use term::Term;
pub use terms::Query;
