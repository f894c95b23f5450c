//! Encodes the relabels of one chunk of events, and decodes them.
//!
//! A chunk contains the relabels before each of its events, so that it can be decoded on its own.
//! Relabels after the last event are written at once in a chunk without events, for live viewers
//! and the end of a recording, and again in the chunk with the next event.

use super::fields::read_device;
use super::layout::{COLUMNS, MAX_RELABELS, OPTIONAL_COLUMNS, column};
use crate::columns::{Columns, ColumnsWriter};
use crate::event::Relabel;
use crate::site::SiteId;
use crate::varint::{self, PayloadError, Reader};

/// A relabel and its position in a chunk of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacedRelabel {
    /// Number of the chunk's events before it.
    pub(crate) position: u32,
    pub(crate) relabel: Relabel,
}

/// The relabels of a chunk of events, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkRelabels {
    /// Number of relabels since the last event that earlier chunks contain.
    pub(crate) earlier: u64,
    pub(crate) relabels: Vec<PlacedRelabel>,
}

impl ChunkRelabels {
    /// Returns how many of the chunk's relabels, from the first on, are already in `known`, the
    /// relabels that the reader has read since the last event. If the chunk has no events
    /// (`has_events` is false), adds its other relabels to `known`. Returns `None` if the chunk
    /// contradicts `known` or has more relabels than a reader accepts.
    pub(crate) fn repeated(&self, has_events: bool, known: &mut Vec<PlacedRelabel>) -> Option<usize> {
        let earlier = usize::try_from(self.earlier).ok()?;
        let Some(expected) = known.get(earlier..) else {
            // The reader lacks earlier relabels. The chunk with the next event has all of them.
            return Some(self.relabels.len());
        };
        let repeated = expected.len().min(self.relabels.len());
        if self.relabels[..repeated] != expected[..repeated] || has_events && repeated < expected.len() {
            return None;
        }
        if has_events {
            known.clear();
        } else {
            known.extend_from_slice(&self.relabels[repeated..]);
        }
        (known.len() <= MAX_RELABELS).then_some(repeated)
    }
}

/// Appends relabels to the columns of a chunk that begins with the time `start_ns`. `earlier` is
/// the number of relabels since the last event that earlier chunks contain.
pub(super) fn put_relabels(
    columns: &mut ColumnsWriter<COLUMNS, OPTIONAL_COLUMNS>,
    start_ns: u64,
    earlier: u64,
    relabels: &[PlacedRelabel],
) {
    if relabels.is_empty() {
        return;
    }
    varint::put(columns.column(column::RELABEL_POSITIONS), earlier);
    let (mut last_position, mut last_ns, mut last_address, mut last_site) = (0, start_ns, 0, 0);
    for &PlacedRelabel { position, relabel: Relabel { device, time_ns, address, site } } in relabels {
        varint::put(columns.column(column::RELABEL_POSITIONS), u64::from(position - last_position));
        varint::put(columns.column(column::RELABEL_DEVICES), u64::from(device.0));
        varint::put_delta(columns.column(column::RELABEL_TIMES), last_ns, time_ns);
        varint::put_delta(columns.column(column::RELABEL_ADDRESSES), last_address, address);
        varint::put_delta(columns.column(column::RELABEL_SITES), last_site, u64::from(site.0));
        (last_position, last_ns, last_address, last_site) = (position, time_ns, address, u64::from(site.0));
    }
}

/// Reads the relabels of a chunk of `event_count` events that begins with the time `start_ns`.
/// Returns an error if one follows the chunk's last event, except in a chunk without events.
pub(super) fn read_relabels(
    columns: &Columns<COLUMNS, OPTIONAL_COLUMNS>,
    start_ns: u64,
    event_count: u32,
) -> Result<ChunkRelabels, PayloadError> {
    let mut positions = columns.column(column::RELABEL_POSITIONS);
    let mut all = ChunkRelabels::default();
    if positions.remaining() == 0 {
        return Ok(all);
    }
    let mut devices = columns.column(column::RELABEL_DEVICES);
    let mut times = columns.column(column::RELABEL_TIMES);
    let mut addresses = columns.column(column::RELABEL_ADDRESSES);
    let mut sites = columns.column(column::RELABEL_SITES);
    all.earlier = positions.u64()?;
    let (mut position, mut time_ns, mut address, mut site) = (0u64, start_ns, 0, 0);
    while positions.remaining() > 0 {
        position = position.saturating_add(positions.u64()?);
        if position > u64::from(event_count.saturating_sub(1)) || all.relabels.len() == MAX_RELABELS {
            return Err(positions.payload_error("relabel after the last event, or too many"));
        }
        time_ns = times.delta(time_ns)?;
        address = addresses.delta(address)?;
        site = sites.delta(site)?;
        let number = u32::try_from(site).map_err(|_| sites.payload_error("number above 32 bits"))?;
        let relabel = Relabel { device: read_device(&mut devices)?, time_ns, address, site: SiteId(number) };
        all.relabels.push(PlacedRelabel { position: position as u32, relabel });
    }
    [&devices, &times, &addresses, &sites].into_iter().try_for_each(Reader::end)?;
    Ok(all)
}
