//! Explains an out-of-memory in one sentence: what filled the GPU, and why the request failed.

use vramscope_insight::failures::Failures;
use vramscope_insight::frames::RecordedStacks;
use vramscope_insight::group::infer_site;
use vramscope_pool::Settings;
use vramscope_trace::{ByteSize, Category, Definitions, Recording, SiteId, site_name};

/// Number of failures that are read at once.
const FAILURES_AT_ONCE: usize = 64;

/// Returns what filled the device at the last out-of-memory of a recording, and why the request
/// failed; `None` if the recording has none, or is damaged.
pub(crate) fn explain(recording: &[u8]) -> Option<String> {
    let mut read = Recording::new();
    read.push(recording).ok()?;
    let settings = Settings::parse(&read.info().alloc_conf).unwrap_or_default();
    let mut failures = Failures::new(settings);
    while !failures.step(&read, FAILURES_AT_ONCE).ok()? {}
    let card = failures.cards(&read).pop()?;
    let definitions = read.definitions();
    let holder = card.failure.holdings.iter().max_by_key(|holding| holding.bytes);
    let filled = holder.map_or_else(String::new, |holder| {
        let allocated = ByteSize(card.failure.usage.allocated_bytes);
        let (bytes, site) = (ByteSize(holder.bytes), describe_site(definitions, holder.site));
        format!("{allocated} was allocated on {}, most of it ({bytes}) {site}. ", card.failure.device)
    });
    Some(format!("{filled}{}", card.summary))
}

/// Returns a site for users: its category and where it allocates.
fn describe_site(definitions: &Definitions, site: SiteId) -> String {
    let recorded = RecordedStacks::new(definitions);
    let (category, _) = infer_site(definitions, &recorded, site, site == SiteId(0));
    let place = site_name(definitions, site);
    match category.category {
        Category::Unknown => format!("by {place}"),
        category => format!("as {} by {place}", category.name()),
    }
}
