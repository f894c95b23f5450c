//! The encoding of fleet views between a server and its page.
//!
//! A [`ViewEncoder`] turns the views of one connection into messages, and a [`ViewDecoder`] turns
//! them back. The first message describes every rank; later ones contain only the numbers that
//! changed, as differences. For 4,096 ranks, a message has about 40 KB, ten times a second. A view
//! that is skipped costs nothing: each message is relative to the one before it on the same
//! connection.
//!
//! A message is one byte with the version and a [`Message`] in postcard. Numbers are rounded to the
//! precision of the page: times to milliseconds, offsets of clocks to microseconds, fragmentation
//! to
//! 0.01%, growth to bytes a second.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::clock_offset::OffsetEstimate;
use super::outliers::{MarkedMetric, Outlier};
use super::view::{EventsState, FleetView, ProcessIdentity, RankRow, StageRow};

/// The version of the encoding: the first byte of every message.
const VERSION: u8 = 1;
/// Maximum number of ranks, and of stages, in a view: the maximum number of processes in a fleet.
const MAX_RANKS: usize = 16_384;
/// Maximum number of texts of a connection; then the encoder starts again with a full message.
const MAX_TEXTS: usize = 32_768;
/// Maximum length of a text in bytes; longer texts are cut off.
const MAX_TEXT_BYTES: usize = 256;
/// Number of values of a rank that messages contain.
const NUMBERS: usize = 21;

/// The values of a rank in messages, in the order in which [`numbers`] returns them.
type Numbers = [u64; NUMBERS];

/// The content of a message: the changes since the message before it.
#[derive(Debug, Serialize, Deserialize)]
struct Message {
    time_unix_ns: u64,
    /// All ranks, if they differ from the ranks in the last message. Then texts and numbers are
    /// sent anew.
    ranks: Option<Vec<RankDescription>>,
    /// Texts that were not sent before. The first text of a connection has the number 1; 0 is the
    /// empty text.
    texts: Vec<String>,
    /// The changes of each of the numbers.
    columns: Vec<Column>,
    stages: Vec<StageRow>,
}

/// The facts of a rank that rarely change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RankDescription {
    identity: String,
    rank: Option<u32>,
    host: String,
    pipeline: Option<u32>,
    tensor: Option<u32>,
}

/// The changes of one number of all ranks.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Column {
    /// The rows that changed: the first, then the distance of each from the one before it.
    rows: Vec<u32>,
    /// New minus old number, for each of these rows.
    differences: Vec<i64>,
}

/// Encodes the views of one connection.
#[derive(Debug, Default)]
pub struct ViewEncoder {
    /// Time of the newest encoded view; `None` before the first.
    time_unix_ns: Option<u64>,
    ranks: Vec<RankDescription>,
    numbers: Vec<Numbers>,
    texts: HashMap<String, u64>,
}

impl ViewEncoder {
    /// Returns the message that brings the other side from the last encoded view to this one;
    /// `None` if both views have equal times.
    pub fn encode(&mut self, view: &FleetView) -> Option<Vec<u8>> {
        if self.time_unix_ns == Some(view.time_unix_ns) {
            return None;
        }
        self.time_unix_ns = Some(view.time_unix_ns);
        let rows = &view.ranks[..view.ranks.len().min(MAX_RANKS)];
        let is_same = rows.len() == self.ranks.len() && rows.iter().zip(&self.ranks).all(is_described_by);
        let has_room = self.texts.len() + 2 * rows.len() <= MAX_TEXTS;
        let ranks = (!is_same || !has_room).then(|| {
            self.ranks = rows.iter().map(description).collect();
            self.numbers = vec![[0; NUMBERS]; rows.len()];
            self.texts.clear();
            self.ranks.clone()
        });
        let (mut texts, mut columns) = (Vec::new(), Vec::new());
        columns.resize_with(NUMBERS, Column::default);
        let mut newest = [0; NUMBERS];
        for (row, old) in (0_u32..).zip(&mut self.numbers) {
            let new = numbers(&rows[row as usize], |text| text_number(&mut self.texts, &mut texts, text));
            for (index, column) in columns.iter_mut().enumerate().filter(|(index, _)| new[*index] != old[*index]) {
                column.rows.push(row - newest[index]);
                column.differences.push(new[index].wrapping_sub(old[index]).cast_signed());
                newest[index] = row;
            }
            *old = new;
        }
        let stages = view.stages.iter().take(MAX_RANKS).cloned().collect();
        let message = Message { time_unix_ns: view.time_unix_ns, ranks, texts, columns, stages };
        Some(postcard::to_extend(&message, vec![VERSION]).expect("numbers and texts always serialize"))
    }
}

/// Returns true if the row has this description.
fn is_described_by((row, description): (&RankRow, &RankDescription)) -> bool {
    let RankDescription { identity, rank, host, pipeline, tensor } = description;
    (row.identity.0.as_str(), row.rank, row.pipeline, row.tensor) == (identity.as_str(), *rank, *pipeline, *tensor)
        && cut_off(&row.host) == host
}

/// Returns a row's description.
fn description(row: &RankRow) -> RankDescription {
    RankDescription {
        identity: row.identity.0.clone(),
        rank: row.rank,
        host: cut_off(&row.host).to_owned(),
        pipeline: row.pipeline,
        tensor: row.tensor,
    }
}

/// Returns the first [`MAX_TEXT_BYTES`] of a text.
fn cut_off(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

/// Returns the number of a text, and adds it to the `new` texts if it was not sent before.
fn text_number(known: &mut HashMap<String, u64>, new: &mut Vec<String>, text: &str) -> u64 {
    let text = cut_off(text);
    if text.is_empty() {
        return 0;
    }
    if let Some(number) = known.get(text) {
        return *number;
    }
    let number = known.len() as u64 + 1;
    known.insert(text.to_owned(), number);
    new.push(text.to_owned());
    number
}

/// Returns the numbers of a row; `text` returns the number of a text.
fn numbers(row: &RankRow, mut text: impl FnMut(&str) -> u64) -> Numbers {
    let site = row.largest_site.as_ref();
    let outlier = row.outlier.as_ref();
    let events = match row.events {
        EventsState::Closed => 0,
        EventsState::Open => 1,
        EventsState::Always => 2,
    };
    [
        row.allocated,
        row.reserved,
        row.peak_allocated,
        (row.fragmentation * 1e4).round() as u64,
        (row.growth.round() as i64).cast_unsigned(),
        row.step.map_or(0, |step| step.saturating_add(1)),
        text(&row.mark),
        site.map_or(0, |(name, _)| text(name) + 1),
        site.map_or(0, |(_, bytes)| *bytes),
        u64::from(row.ooms),
        row.lag_ns / 1_000_000,
        row.summaries,
        row.lost_summaries,
        row.clock.map_or(0, |clock| clock.error_ns.div_ceil(1000) + 1),
        row.clock.map_or(0, |clock| clock.offset_ns / 1000).cast_unsigned(),
        u64::from(row.has_ended),
        events,
        row.device.map_or(0, |device| u64::from(device) + 1),
        outlier.map_or(0, |outlier| outlier.metric as u64 + 1),
        outlier.map_or(0, |outlier| pack_pair(outlier.value, outlier.median)),
        outlier.map_or(0, |outlier| (outlier.distance as f32).to_bits().into()),
    ]
}

/// Packs two numbers into one, each with the precision of an `f32`.
fn pack_pair(a: f64, b: f64) -> u64 {
    u64::from((a as f32).to_bits()) << 32 | u64::from((b as f32).to_bits())
}

/// Returns the number in the lower half of a [`pack_pair`].
fn lower_half(pair: u64) -> f64 {
    f64::from(f32::from_bits(pair as u32))
}

/// The error of decoding a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message is of another version, or empty.
    #[error("the server sends another version: load the page again")]
    Version,
    /// The message is damaged.
    #[error("a message of the server is damaged")]
    Damaged,
}

/// Decodes the messages of one connection, in order. After an error, start with a new decoder.
#[derive(Debug, Default)]
pub struct ViewDecoder {
    numbers: Vec<Numbers>,
    texts: Vec<String>,
    view: FleetView,
}

impl ViewDecoder {
    /// Returns the view as of the last message.
    #[must_use]
    pub fn view(&self) -> &FleetView {
        &self.view
    }

    /// Applies the next message. Returns true if the message describes all ranks: the rows of ranks
    /// may then have moved.
    ///
    /// # Errors
    /// If the message is damaged or of another version.
    pub fn decode(&mut self, message: &[u8]) -> Result<bool, WireError> {
        let Some((&VERSION, message)) = message.split_first() else { return Err(WireError::Version) };
        let (message, rest): (Message, _) = postcard::take_from_bytes(message).map_err(|_| WireError::Damaged)?;
        let is_full = message.ranks.is_some();
        self.apply(message).filter(|()| rest.is_empty()).ok_or(WireError::Damaged)?;
        Ok(is_full)
    }

    /// Applies a message; `None` if it is damaged.
    fn apply(&mut self, message: Message) -> Option<()> {
        let Message { time_unix_ns, ranks, texts, columns, stages } = message;
        if let Some(ranks) = ranks {
            if ranks.len() > MAX_RANKS {
                return None;
            }
            self.texts.clear();
            self.numbers = vec![[0; NUMBERS]; ranks.len()];
            self.view.ranks = ranks.into_iter().map(empty_row).collect();
        }
        self.texts.extend(texts);
        if self.texts.len() > MAX_TEXTS || stages.len() > MAX_RANKS || columns.len() != NUMBERS {
            return None;
        }
        let mut has_changed = vec![false; self.numbers.len()];
        for (index, Column { rows, differences }) in columns.iter().enumerate() {
            if rows.len() != differences.len() || rows.len() > self.numbers.len() {
                return None;
            }
            let mut row = 0_usize;
            for (distance, difference) in rows.iter().zip(differences) {
                row = row.checked_add(*distance as usize)?;
                let number = &mut self.numbers.get_mut(row)?[index];
                *number = number.wrapping_add(difference.cast_unsigned());
                has_changed[row] = true;
            }
        }
        for (row, numbers) in self.numbers.iter().enumerate().filter(|(row, _)| has_changed[*row]) {
            set_numbers(&mut self.view.ranks[row], numbers, &self.texts)?;
        }
        (self.view.time_unix_ns, self.view.stages) = (time_unix_ns, stages);
        Some(())
    }
}

/// Returns the row of a rank whose numbers are all 0.
fn empty_row(description: RankDescription) -> RankRow {
    let RankDescription { identity, rank, host, pipeline, tensor } = description;
    RankRow { identity: ProcessIdentity(identity), rank, host, pipeline, tensor, ..RankRow::default() }
}

/// Sets a row to these numbers, as [`numbers`] returned them; `None` if one is invalid.
fn set_numbers(row: &mut RankRow, numbers: &Numbers, texts: &[String]) -> Option<()> {
    let text = |number: u64| match number.checked_sub(1) {
        None => Some(""),
        Some(index) => texts.get(usize::try_from(index).ok()?).map(String::as_str),
    };
    let [allocated, reserved, peak_allocated, fragmentation, growth, step, mark, site, site_bytes, rest @ ..] =
        *numbers;
    let [ooms, lag_ms, summaries, lost_summaries, clock_error, clock_offset, has_ended, events, device, rest @ ..] =
        rest;
    let [metric, value_and_median, distance] = rest;
    (row.allocated, row.reserved, row.peak_allocated) = (allocated, reserved, peak_allocated);
    row.fragmentation = fragmentation as f64 / 1e4;
    row.growth = growth.cast_signed() as f64;
    row.step = step.checked_sub(1);
    row.mark.clear();
    row.mark.push_str(text(mark)?);
    row.largest_site = match site.checked_sub(1) {
        None => None,
        Some(number) => Some((text(number)?.to_owned(), site_bytes)),
    };
    row.ooms = u32::try_from(ooms).ok()?;
    row.lag_ns = lag_ms.checked_mul(1_000_000)?;
    (row.summaries, row.lost_summaries) = (summaries, lost_summaries);
    row.clock = match clock_error.checked_sub(1) {
        None => None,
        Some(error_us) => Some(OffsetEstimate {
            offset_ns: clock_offset.cast_signed().checked_mul(1000)?,
            error_ns: error_us.checked_mul(1000)?,
        }),
    };
    row.has_ended = has_ended != 0;
    row.events = match events {
        0 => EventsState::Closed,
        1 => EventsState::Open,
        2 => EventsState::Always,
        _ => return None,
    };
    row.device = match device.checked_sub(1) {
        None => None,
        Some(device) => Some(u16::try_from(device).ok()?),
    };
    row.outlier = match metric.checked_sub(1) {
        None => None,
        Some(metric) => Some(Outlier {
            metric: *MarkedMetric::ALL.get(usize::try_from(metric).ok()?)?,
            value: lower_half(value_and_median >> 32),
            median: lower_half(value_and_median),
            distance: lower_half(distance),
        }),
    };
    Some(())
}

#[cfg(test)]
mod tests;
