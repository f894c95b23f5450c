//! The allocator settings of a recording, which any version of PyTorch may have written.

use crate::conf::{ParsedConf, with_nearest_key};
use crate::conf_error::{ConfError, ConfErrorKind};
use crate::settings::Settings;

/// Maximum number of skipped settings that are kept with their errors. Further ones are only
/// counted, because a recording may contain any text.
const MAX_SKIPPED: usize = 16;
/// Maximum number of skipped settings that a sentence for the user names; further ones are only
/// counted.
const MAX_NAMED: usize = 3;

/// The allocator settings of a recording, and the settings in their text that have no effect on the
/// pool.
///
/// [`Settings::parse`] refuses a text with an unknown setting, which is right for a text that a
/// user writes. A recording may come from a newer version of PyTorch: here an unknown setting is
/// skipped and all others apply.
///
/// ```
/// use vramscope_pool::RecordedConf;
///
/// let recorded = RecordedConf::parse("page_size:1g,expandable_segments:True");
/// assert!(recorded.settings.expandable_segments);
/// assert_eq!(recorded.skipped[0].to_string(), "character 1: unknown setting \"page_size\"");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedConf {
    /// The settings that the pool follows.
    pub settings: Settings,
    /// The errors of the first 16 settings that were skipped: unknown settings, and settings with a
    /// value that [`Settings::parse`] refuses.
    pub skipped: Vec<ConfError>,
    /// Number of settings that were skipped.
    pub skipped_count: usize,
    /// The error of the setting that selects another allocator, whose decisions the pool does not
    /// follow at all.
    pub other_backend: Option<ConfError>,
    /// The keys of known settings that were on and whose effect the pool does not have.
    pub unfollowed: Vec<&'static str>,
}

impl RecordedConf {
    /// Parses the settings of a recording in the syntax of `PYTORCH_CUDA_ALLOC_CONF`.
    #[must_use]
    pub fn parse(conf: &str) -> Self {
        let (mut skipped, mut skipped_count, mut other_backend) = (Vec::new(), 0, None);
        let parsed = ParsedConf::parse(conf, |error| {
            skipped_count += 1;
            if matches!(error.kind, ConfErrorKind::OtherBackend { .. }) {
                other_backend = Some(error.clone());
            }
            if skipped.len() < MAX_SKIPPED {
                skipped.push(with_nearest_key(error));
            }
            Ok(())
        });
        let parsed = parsed.unwrap_or_default();
        // Without expandable segments, their reserves have no effect.
        let is_expandable = parsed.settings.expandable_segments;
        let has_effect = |key: &&str| is_expandable || !key.starts_with("expandable_segments_");
        let unfollowed = parsed.unfollowed().filter(has_effect).collect();
        Self { settings: parsed.settings, skipped, skipped_count, other_backend, unfollowed }
    }

    /// Returns a sentence for the user about the skipped settings and one about settings that the
    /// pool does not follow, if there are any.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        /// The consequence of ignored settings, with which each sentence for the user ends.
        const EFFECT: &str = "the results of verify, simulate and what-if may differ from the program";
        let mut notes = Vec::new();
        if self.skipped_count > 0 {
            let mut errors: Vec<_> = self.skipped.iter().take(MAX_NAMED).map(ToString::to_string).collect();
            if self.skipped_count > errors.len() {
                errors.push("…".to_owned());
            }
            let (count, errors) = (self.skipped_count, errors.join("; "));
            let settings = if count == 1 { "allocator setting" } else { "allocator settings" };
            notes.push(format!("skipped {count} recorded {settings} ({errors}); {EFFECT}"));
        }
        if !self.unfollowed.is_empty() {
            notes.push(format!("the pool does not follow {}; {EFFECT}", self.unfollowed.join(", ")));
        }
        notes
    }
}
