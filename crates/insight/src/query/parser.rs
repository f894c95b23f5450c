//! Reads the terms of a query.

use vramscope_trace::{Category, DeviceId, EventType, MempoolId, PoolKind, SiteId};

use super::condition::{BlockUse, Condition, PoolFilter, Span, TextField, category_bit, event_type_bit};
use super::error::SearchTermError;
use super::keywords::{KEYWORDS, Keyword, KeywordKind};
use super::term::Term;
use super::tokens::{Token, tokens};
use super::values;

/// Maximum length of a query, in bytes; bounds the cost of matching.
const MAX_QUERY_BYTES: usize = 8 << 10;
/// Maximum number of terms of a query; bounds the cost of matching.
const MAX_TERMS: usize = 32;
/// Minimum number of digits of a hexadecimal address that is written without `0x`.
const MIN_ADDRESS_DIGITS: usize = 6;

/// The reason why a term is invalid, and the allowed terms.
struct Unusable {
    reason: String,
    allowed: String,
}

/// Returns the reason why a term cannot be used.
fn unusable(reason: impl Into<String>, allowed: impl Into<String>) -> Unusable {
    Unusable { reason: reason.into(), allowed: allowed.into() }
}

/// Reads all terms of a query.
///
/// # Errors
/// If a term cannot be used, or the query is too long.
pub(super) fn terms(query: &str) -> Result<Vec<Term>, SearchTermError> {
    if query.len() > MAX_QUERY_BYTES {
        let allowed = format!("at most {MAX_QUERY_BYTES} bytes");
        return Err(SearchTermError::new(query, 0..query.len(), "the query is too long".to_owned(), allowed));
    }
    let tokens = with_units(tokens(query)?);
    if let Some(extra) = tokens.get(MAX_TERMS) {
        let allowed = format!("at most {MAX_TERMS} terms");
        return Err(SearchTermError::new(
            query,
            extra.range.clone(),
            "the query has too many terms".to_owned(),
            allowed,
        ));
    }
    let term = |token: &Token| match condition(token) {
        Ok(condition) => Ok(Term { range: token.range.clone(), is_negated: token.is_negated, condition }),
        Err(Unusable { reason, allowed }) => Err(SearchTermError::new(query, token.range.clone(), reason, allowed)),
    };
    tokens.iter().map(term).collect()
}

/// Joins each age or lifetime without a unit with the unit that follows it, as in `age>10 steps`.
/// Without a unit, the term could not be used.
fn with_units(tokens: Vec<Token>) -> Vec<Token> {
    let mut joined: Vec<Token> = Vec::with_capacity(tokens.len());
    for token in tokens {
        let is_unit = !token.is_negated && !token.has_quotes() && values::is_span_unit(&token.text);
        match joined.last_mut().filter(|last| is_unit && lacks_unit(last)) {
            Some(last) => {
                last.text.push_str(&token.text);
                last.plain_len = last.text.len();
                last.range.end = token.range.end;
            }
            None => joined.push(token),
        }
    }
    joined
}

/// Returns true if a term is an age or a lifetime that ends with a number.
fn lacks_unit(token: &Token) -> bool {
    let word_len = token.text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(token.text.len());
    let (word, after) = token.text.split_at(word_len);
    let is_span =
        Keyword::find(word).is_some_and(|keyword| matches!(keyword.kind, KeywordKind::Age | KeywordKind::Life));
    let is_value = after.starts_with(':') && !after.starts_with("::") || values::starts_with_operator(after);
    is_span && is_value && !token.has_quotes() && after.ends_with(|last: char| last.is_ascii_digit())
}

/// Reads the condition of one term.
fn condition(token: &Token) -> Result<Condition, Unusable> {
    let plain = token.plain();
    if token.is_quoted() {
        return Ok(text(TextField::Any, &token.text, None));
    }
    if values::starts_with_operator(plain) {
        return size(&token.text);
    }
    let word_len = plain.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(plain.len());
    let (word, after) = plain.split_at(word_len);
    // `std::vector` is a name of C++.
    let is_assigned = after.starts_with(':') && !after.starts_with("::");
    if let Some(keyword) = Keyword::find(word).filter(|_| !word.is_empty()) {
        let is_compared = values::starts_with_operator(after) && !keyword.takes_text();
        if is_assigned || is_compared {
            let value = &token.text[word_len + usize::from(is_assigned)..];
            return keyword_condition(keyword, value, token);
        }
    }
    if !token.has_quotes() {
        if let Some(address) = bare_address(plain) {
            return Ok(Condition::Address(address));
        }
        if let Some(comparison) = values::range(plain, values::bytes) {
            return Ok(Condition::Size(comparison));
        }
        if ends_with_unit(plain) && values::bytes(plain).is_some() {
            let allowed = format!(">{plain}, <{plain} or ={plain}, or quotes to look for the text");
            return Err(unusable("a size needs a comparison", allowed));
        }
        if let Some((file, line)) = file_and_line(plain) {
            return Ok(text(TextField::File, file, Some(line)));
        }
    }
    let value = &after[usize::from(is_assigned)..];
    let is_path = value.starts_with(['/', '\\']);
    if !word.is_empty() && is_assigned && !is_path {
        let names: Vec<_> = KEYWORDS.iter().map(|keyword| keyword.name).collect();
        let allowed = format!("one of {}, or quotes to look for the text", names.join(", "));
        return Err(unusable(format!("`{word}` is not a keyword"), allowed));
    }
    Ok(text(TextField::Any, &token.text, None))
}

/// Returns the condition that `field` contains a text, and a frame's line if one is given.
fn text(field: TextField, text: &str, line: Option<u32>) -> Condition {
    Condition::Text { field, text: text.to_lowercase(), line }
}

/// Reads an address that stands alone: hexadecimal with `0x`, or of at least
/// [`MIN_ADDRESS_DIGITS`] digits with a letter and a decimal digit, so that it is neither a word
/// nor a number.
fn bare_address(term: &str) -> Option<u64> {
    if term.starts_with("0x") || term.starts_with("0X") {
        return values::address(term);
    }
    let is_mixed = term.len() >= MIN_ADDRESS_DIGITS
        && term.bytes().any(|digit| digit.is_ascii_digit())
        && term.bytes().any(|digit| digit.is_ascii_alphabetic());
    values::hexadecimal(term).filter(|_| is_mixed)
}

/// Returns true if a size ends with a unit of bytes, so that it is no plain number.
fn ends_with_unit(term: &str) -> bool {
    ["KiB", "MiB", "GiB", "TiB", "KB", "MB", "GB", "TB"].iter().any(|unit| term.ends_with(unit))
}

/// Splits `train.py:66` into the file and the line.
fn file_and_line(term: &str) -> Option<(&str, u32)> {
    let (file, line) = term.rsplit_once(':')?;
    let is_number = line.starts_with(|first: char| first.is_ascii_digit());
    let line = line.parse().ok().filter(|_| is_number)?;
    (!file.is_empty() && !file.ends_with(':')).then_some((file, line))
}

/// Reads a comparison of the size.
fn size(value: &str) -> Result<Condition, Unusable> {
    let comparison = values::comparison(value, values::bytes).map(Condition::Size);
    comparison.ok_or_else(|| unusable("the size is invalid", "bytes or a size: >100MiB, <=512, 1MiB..4MiB"))
}

/// Reads the value of a keyword in the term `token`; `value` begins with an operator or is what
/// follows the colon.
fn keyword_condition(keyword: &Keyword, value: &str, token: &Token) -> Result<Condition, Unusable> {
    if value.trim().is_empty() {
        return Err(unusable("a value is missing", format!("for example {}", keyword.example)));
    }
    let number = |what: &str, condition: Option<Condition>| {
        condition.ok_or_else(|| unusable(format!("{what} is invalid"), format!("for example {}", keyword.example)))
    };
    let is_text_quoted = token.has_quotes();
    match keyword.kind {
        KeywordKind::Size => size(value),
        KeywordKind::Requested => {
            number("the size", values::comparison(value, values::bytes).map(Condition::Requested))
        }
        KeywordKind::Address => {
            let digits = value.strip_prefix('=').unwrap_or(value);
            let address = values::address(digits).or_else(|| bare_address(digits));
            number("the address", address.map(Condition::Address))
        }
        KeywordKind::Age => span(value).map(Condition::Age).ok_or_else(|| invalid_span("age")),
        KeywordKind::Life => span(value).map(Condition::Life).ok_or_else(|| invalid_span("life")),
        KeywordKind::Event => {
            number("the event number", values::comparison(value, values::count).map(Condition::Event))
        }
        KeywordKind::Stream => number("the stream", values::comparison(value, values::address).map(Condition::Stream)),
        KeywordKind::Device => {
            let digits = value.strip_prefix('=').unwrap_or(value);
            let host = digits.eq_ignore_ascii_case("host").then_some(DeviceId::HOST);
            let device = host.or_else(|| values::count(digits).and_then(|id| u16::try_from(id).ok()).map(DeviceId));
            number("the device", device.map(Condition::Device))
        }
        KeywordKind::Site => match value.strip_prefix('#').filter(|_| !is_text_quoted) {
            Some(digits) => {
                let site = values::count(digits).and_then(|id| u32::try_from(id).ok());
                number("the site's number", site.map(|id| Condition::Site(SiteId(id))))
            }
            None => Ok(text(TextField::Site, value, None)),
        },
        KeywordKind::File => match file_and_line(value).filter(|_| !is_text_quoted) {
            Some((file, line)) => Ok(text(TextField::File, file, Some(line))),
            None => Ok(text(TextField::File, value, None)),
        },
        KeywordKind::Function => Ok(text(TextField::Function, value, None)),
        KeywordKind::Module => Ok(text(TextField::Module, value, None)),
        KeywordKind::Mark => Ok(text(TextField::Mark, value, None)),
        KeywordKind::Category => {
            word_bits(keyword, value, |word| category(word).map(category_bit)).map(Condition::Categories)
        }
        KeywordKind::EventType => word_bits(keyword, value, event_types).map(Condition::EventTypes),
        KeywordKind::Pool => match pool(value) {
            Some(filter) => Ok(Condition::Pool(filter)),
            None => Err(unusable(format!("`{value}` is not a pool"), "small, large, default, private or 0,1")),
        },
        KeywordKind::State => match value.to_ascii_lowercase().as_str() {
            "allocated" => Ok(Condition::Use(BlockUse::Allocated)),
            "pending" => Ok(Condition::Use(BlockUse::Pending)),
            _ => Err(unusable(format!("`{value}` is not a state"), "allocated or pending")),
        },
        KeywordKind::Freed => match value.to_ascii_lowercase().as_str() {
            "yes" | "true" => Ok(Condition::Freed(true)),
            "no" | "false" => Ok(Condition::Freed(false)),
            _ => Err(unusable(format!("`{value}` is neither yes nor no"), "freed:yes or freed:no")),
        },
    }
}

/// Reads words separated by commas and returns their bits; `bits` returns the bits of one word.
fn word_bits(keyword: &Keyword, value: &str, bits: impl Fn(&str) -> Option<u16>) -> Result<u16, Unusable> {
    value.split(',').try_fold(0, |known, word| match bits(&word.trim().to_ascii_lowercase()) {
        Some(bits) => Ok(known | bits),
        None => Err(unusable(format!("`{word}` is not a {}", keyword.name), keyword.values.join(", "))),
    })
}

/// Returns the category that a word, in lower case, names or begins.
fn category(word: &str) -> Option<Category> {
    let word = word.replace(['_', '-'], " ");
    Category::ALL.into_iter().find(|one| !word.is_empty() && one.name().starts_with(&word))
}

/// Returns the bits of the event types that a word, in lower case, names: an exported name such as
/// `segment_alloc`, or one of the groups `free`, `segment`, `map`, `unmap` and `sample`.
fn event_types(word: &str) -> Option<u16> {
    use EventType::{
        FreeCompleted, FreeRequested, MemorySample, SegmentAllocated, SegmentFreed, SegmentMapped, SegmentUnmapped,
    };
    let types: &[EventType] = match word {
        "free" => &[FreeRequested, FreeCompleted],
        "segment" => &[SegmentAllocated, SegmentFreed, SegmentMapped, SegmentUnmapped],
        "map" => &[SegmentMapped],
        "unmap" => &[SegmentUnmapped],
        "sample" => &[MemorySample],
        _ => return EventType::ALL.into_iter().find(|one| one.action() == word).map(event_type_bit),
    };
    Some(types.iter().fold(0, |bits, &one| bits | event_type_bit(one)))
}

/// Reads a pool: its size class, `default`, `private`, or the two numbers of a private pool.
fn pool(value: &str) -> Option<PoolFilter> {
    match value.to_ascii_lowercase().as_str() {
        "small" => Some(PoolFilter::Kind(PoolKind::Small)),
        "large" => Some(PoolFilter::Kind(PoolKind::Large)),
        "default" => Some(PoolFilter::Default),
        "private" => Some(PoolFilter::Private),
        numbers => {
            let (a, b) = numbers.trim_start_matches('(').trim_end_matches(')').split_once(',')?;
            Some(PoolFilter::Mempool(MempoolId(values::count(a.trim())?, values::count(b.trim())?)))
        }
    }
}

/// Reads a comparison of a duration, a number of events or a number of steps.
fn span(value: &str) -> Option<Span> {
    let time = values::comparison(value, values::duration_ns).map(Span::Time);
    time.or_else(|| values::comparison(value, values::events).map(Span::Events))
        .or_else(|| values::comparison(value, values::steps).map(Span::Steps))
}

/// Returns the error about the value of `keyword`, which is an age or a lifetime.
fn invalid_span(keyword: &str) -> Unusable {
    let allowed = format!("{keyword}>10s, {keyword}<2ms, {keyword}<100ev (events) or {keyword}>3steps");
    unusable("a number with a unit is missing", allowed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::query::{Comparator, Comparison, Query};

    /// Checks the only condition of a query.
    #[track_caller]
    fn check(query: &str, expected: Condition) {
        let terms = Query::parse(query).map(|query| query.terms().to_vec());
        let conditions = terms.map(|terms| terms.into_iter().map(|term| term.condition).collect::<Vec<_>>());
        assert_eq!(conditions, Ok(vec![expected]), "{query}");
    }

    #[test]
    fn terms_without_a_keyword_are_text_addresses_or_sizes() {
        let any = |word: &str| text(TextField::Any, word, None);
        check("Adam", any("adam"));
        check("\"size>5\"", any("size>5"));
        check("std::vector<int>", any("std::vector<int>"));
        check("function<void>", any("function<void>"));
        check("stream::wait", any("stream::wait"));
        check("decade", any("decade"));
        check("123456", any("123456"));
        check("../run", any("../run"));
        check("C:\\run.py", any("c:\\run.py"));
        check("-\"-x\"", any("-x"));
        check("train.py:66", text(TextField::File, "train.py", Some(66)));
        check("train:66", text(TextField::File, "train", Some(66)));
        check("0x7f", Condition::Address(0x7f));
        check("7f1a2c00", Condition::Address(0x7f1a_2c00));
        check(">100MiB", Condition::Size(Comparison::Limit(Comparator::Above, 100 << 20)));
        check("<=512", Condition::Size(Comparison::Limit(Comparator::AtMost, 512)));
        check("1MiB..4MiB", Condition::Size(Comparison::Between(1 << 20, 4 << 20)));
        check("..4K", Condition::Size(Comparison::Limit(Comparator::AtMost, 4096)));
        check("=\"2 MiB\"", Condition::Size(Comparison::Equal(2 << 20)));
    }

    #[test]
    fn keywords_take_values_and_comparisons() {
        check("size>1M", Condition::Size(Comparison::Limit(Comparator::Above, 1 << 20)));
        check("size:1M", Condition::Size(Comparison::Equal(1 << 20)));
        check("SIZE:>=1M", Condition::Size(Comparison::Limit(Comparator::AtLeast, 1 << 20)));
        check("req=1..2", Condition::Requested(Comparison::Between(1, 2)));
        check("addr:140000000000000", Condition::Address(140_000_000_000_000));
        check("address:7f1a2c00", Condition::Address(0x7f1a_2c00));
        check("age>10s", Condition::Age(Span::Time(Comparison::Limit(Comparator::Above, 10_000_000_000))));
        check("age<100ev", Condition::Age(Span::Events(Comparison::Limit(Comparator::Below, 100))));
        check("age>3steps", Condition::Age(Span::Steps(Comparison::Limit(Comparator::Above, 3))));
        check("age>10 steps", Condition::Age(Span::Steps(Comparison::Limit(Comparator::Above, 10))));
        check("life:1ms..2  ms", Condition::Life(Span::Time(Comparison::Between(1_000_000, 2_000_000))));
        check("life:1ms..2ms", Condition::Life(Span::Time(Comparison::Between(1_000_000, 2_000_000))));
        check("stream:0xff", Condition::Stream(Comparison::Equal(255)));
        check("device:host", Condition::Device(DeviceId::HOST));
        check("gpu=1", Condition::Device(DeviceId(1)));
        check("pool:(0,1)", Condition::Pool(PoolFilter::Mempool(MempoolId(0, 1))));
        check("cat:optimizer_state", Condition::Categories(category_bit(Category::OptimizerState)));
        check("category:\"optimizer state\"", Condition::Categories(category_bit(Category::OptimizerState)));
        check("kind:free", Condition::EventTypes(0b110_0000));
        check("kind:oom,MARK", Condition::EventTypes(0b10_1000_0000));
        check("event:1,000..2000", Condition::Event(Comparison::Between(1000, 2000)));
        check("site:#12", Condition::Site(SiteId(12)));
        check("site:Adam", text(TextField::Site, "adam", None));
        check("file:net.py:7", text(TextField::File, "net.py", Some(7)));
        check("module:a:b", text(TextField::Module, "a:b", None));
        check("state:pending", Condition::Use(BlockUse::Pending));
        check("freed:no", Condition::Freed(false));
    }

    #[test]
    fn errors_name_the_term_and_what_is_allowed() {
        let cases = [
            ("a >big", ">big", 2..6),
            ("size:", "size:", 0..5),
            ("-age>10 x", "-age>10", 0..7),
            ("age>10 -steps", "age>10", 0..6),
            ("age>10 \"steps\"", "age>10", 0..6),
            ("age:5..9 steps", "age:5..9 steps", 0..14),
            ("siez:5M", "siez:5M", 0..7),
            ("kind:alloc,fre", "kind:alloc,fre", 0..14),
            ("pool:medium", "pool:medium", 0..11),
            ("gpu:70000", "gpu:70000", 0..9),
            ("state:free", "state:free", 0..10),
            ("freed:maybe", "freed:maybe", 0..11),
            ("category:,", "category:,", 0..10),
            ("100MiB", "100MiB", 0..6),
            ("addr:x", "addr:x", 0..6),
        ];
        for (query, term, range) in cases {
            let error = Query::parse(query).expect_err(query);
            assert_eq!((error.term(), error.range()), (term, range), "{query}");
            assert!(!error.allowed().is_empty(), "{query}");
        }
        let error = Query::parse("age>10").expect_err("a unit is missing");
        assert_eq!(
            error.to_string(),
            "cannot use the search term `age>10`: a number with a unit is missing; use age>10s, age<2ms, age<100ev \
             (events) or age>3steps"
        );
        assert!(Query::parse(&"a ".repeat(33)).is_err());
        assert!(Query::parse(&"a".repeat(9000)).is_err());
    }

    #[test]
    fn every_keyword_has_a_valid_example_and_valid_values() {
        for keyword in KEYWORDS {
            let mut examples = vec![keyword.example.to_owned()];
            examples.extend(keyword.values.iter().map(|value| format!("{}:{value}", keyword.name)));
            examples.extend(keyword.aliases.iter().map(|alias| keyword.example.replacen(keyword.name, alias, 1)));
            for example in examples {
                let query = Query::parse(&example).expect("the example is valid");
                assert!(query.terms().len() == 1 && !query.describe().is_empty(), "{example}");
                assert!(
                    !matches!(query.terms()[0].condition, Condition::Text { field: TextField::Any, .. }),
                    "{example}"
                );
            }
        }
    }

    #[test]
    fn descriptions_use_plain_words() {
        let cases = [
            ("", "everything"),
            ("age>10s", "age more than 10.0 s"),
            ("size>10 s", "size more than 10 B; “s” in a function, file, module, category or mark"),
            ("size:1025..4K", "size 1.00 KiB (1,025 bytes) to 4 KiB"),
            ("cat:grad,input -freed:no", "category gradient or input; not: never freed"),
            ("kind:free pool:large", "free requested or free completed; large pool"),
            ("net.py:7 life<5ev", "line 7 of a file containing “net.py”; lifetime less than 5 events"),
        ];
        for (query, words) in cases {
            assert_eq!(Query::parse(query).map(|query| query.describe()).as_deref(), Ok(words), "{query}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(
            text in prop_oneof![
                ".{0,60}",
                "[-a-z:<>=.0-9\"\\\\ ,#éµ≥]{0,40}",
                "(-?(size|age|life|kind|pool|addr|site|file|event|gpu|stream|freed|state)[:<>=.]{0,3}\
                 [0-9a-zA-Z.,]{0,9} ?){0,5}",
            ],
        ) {
            match Query::parse(&text) {
                Ok(query) => {
                    prop_assert!(!query.describe().is_empty());
                    for term in query.terms() {
                        prop_assert!(text.get(term.range.clone()).is_some_and(|term| !term.is_empty()));
                    }
                }
                Err(error) => {
                    prop_assert!(text.get(error.range()).is_some());
                    prop_assert!(!error.to_string().is_empty());
                }
            }
        }
    }
}
