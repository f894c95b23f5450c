//! The message in which processes send summaries, and its encoding.

use serde::{Deserialize, Serialize};
use vramscope_insight::fleet::Summary;

/// Version of the encoding, which is the first byte of a message.
const VERSION: u8 = 1;
/// Maximum length of a site's or mark's name in a summary, in characters.
pub(crate) const MAX_NAME_CHARS: usize = 80;
/// Maximum number of devices in a summary, of names in a summary, and of sites of a device that a
/// reader accepts.
pub(crate) const MAX_ITEMS: usize = 64;
/// Maximum number of processes in one message, all of one machine.
pub(crate) const MAX_BATCH: usize = 64;

/// Maximum length of an identity, in hexadecimal digits.
const MAX_IDENTITY_DIGITS: usize = 32;

/// The summaries in one message: of the sender only, or of all processes of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SummaryBatch {
    /// For each process, the identity of its recording (empty for the sender itself) and its
    /// summary.
    pub(crate) summaries: Vec<(String, Summary)>,
}

impl SummaryBatch {
    /// Encodes the batch: a version byte and the fields in postcard's format.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![VERSION]).unwrap_or_default()
    }

    /// Decodes a batch.
    ///
    /// # Errors
    /// If the bytes are of another version, damaged, or exceed a limit.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (version, rest) = bytes.split_first().ok_or("the message is empty")?;
        if *version != VERSION {
            return Err(format!("summaries of version {version}; this vramscope reads version {VERSION}"));
        }
        let batch: Self = postcard::from_bytes(rest).map_err(|error| format!("damaged summaries: {error}"))?;
        let is_small = |summary: &Summary| {
            summary.devices.len() <= MAX_ITEMS
                && summary.names.len() <= MAX_ITEMS
                && summary.devices.iter().all(|device| device.sites.len() <= MAX_ITEMS)
                && summary.names.iter().all(|(_, name)| name.chars().count() <= MAX_NAME_CHARS)
                && summary.mark.chars().count() <= MAX_NAME_CHARS
        };
        let is_identity =
            |text: &str| text.len() <= MAX_IDENTITY_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !batch.summaries.iter().all(|(identity, _)| is_identity(identity)) {
            return Err("the summaries name an invalid identity".to_owned());
        }
        if batch.summaries.len() > MAX_BATCH || !batch.summaries.iter().all(|(_, summary)| is_small(summary)) {
            return Err("the summaries exceed a limit".to_owned());
        }
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use vramscope_insight::fleet::{Acknowledged, DeviceSummary};

    use super::*;

    #[test]
    fn summaries_are_small_and_survive_their_encoding() {
        let device = DeviceSummary {
            allocated: 61_234_567_890,
            reserved: 70_234_567_890,
            active: 61_234_567_890,
            requested: 61_234_000_000,
            free: 9_000_000_000,
            largest_free: 2_000_000_000,
            segments: 1234,
            blocks: 5678,
            sites: vec![(17, 30_000_000_000), (300, 20_000_000_000), (4000, 900_000_000), (5, 800_000_000)],
            ..DeviceSummary::default()
        };
        let summary = Summary {
            number: 36_000,
            time_unix_ns: 1_800_000_000_000_000_000,
            events: 123_456_789,
            step: Some(1234),
            mark: "forward".to_owned(),
            devices: vec![device],
            acknowledged: Some(Acknowledged { number: 35_999, time_unix_ns: 1_800_000_000_000_000_000 }),
            ..Summary::default()
        };
        let batch = SummaryBatch { summaries: vec![(String::new(), summary)] };
        let bytes = batch.to_bytes();
        assert!(bytes.len() < 150, "{} bytes", bytes.len());
        assert_eq!(SummaryBatch::parse(&bytes), Ok(batch));
    }

    #[test]
    fn damaged_and_large_summaries_are_refused() {
        let with = |change: fn(&mut Summary)| {
            let mut summary = Summary::default();
            change(&mut summary);
            SummaryBatch { summaries: vec![(String::new(), summary)] }.to_bytes()
        };
        assert!(SummaryBatch::parse(&with(|_| {})).is_ok());
        let large: [fn(&mut Summary); 4] = [
            |summary| summary.devices = vec![DeviceSummary::default(); MAX_ITEMS + 1],
            |summary| summary.names = vec![(0, String::new()); MAX_ITEMS + 1],
            |summary| summary.names = vec![(0, "n".repeat(MAX_NAME_CHARS + 1))],
            |summary| summary.mark = "m".repeat(MAX_NAME_CHARS + 1),
        ];
        for change in large {
            assert_eq!(SummaryBatch::parse(&with(change)), Err("the summaries exceed a limit".to_owned()));
        }
        let many = SummaryBatch { summaries: vec![Default::default(); MAX_BATCH + 1] };
        assert!(SummaryBatch::parse(&many.to_bytes()).is_err());
        let named = |identity: &str| {
            SummaryBatch::parse(&SummaryBatch { summaries: vec![(identity.to_owned(), Summary::default())] }.to_bytes())
        };
        assert!(named(&"0f".repeat(16)).is_ok());
        for identity in ["0".repeat(33), "0".repeat(1 << 20), "x".repeat(32), "../".to_owned()] {
            assert_eq!(named(&identity), Err("the summaries name an invalid identity".to_owned()));
        }
        // A damaged length that exceeds the message allocates no memory.
        for bytes in [&[][..], &[2], &[VERSION], &[VERSION, 0xff, 0xff, 0xff, 0xff, 0x0f], &[VERSION, 1, 0xff]] {
            assert!(SummaryBatch::parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
