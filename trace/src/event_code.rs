//! Events as bytes, and back.
//!
//! An event is a tag, the time since the event before, and the fields of its kind. The tag's low four bits are the kind; a high bit
//! says that a field is the same as in the event before and left out. At the start of a chunk "the event before" is all zero.
//!
//! ```text
//! tag | [device] | time | [address] | size | requested | [stream, pool] | [site] | ...
//! ```

use crate::event::{DeviceId, Event, EventKind, MempoolId, Pool, PoolKind, Stage, StreamId};
use crate::site::{SiteId, StringId};
use crate::varint::{self, Malformed, Reader};

const SAME_DEVICE: u8 = 0x10;
const SAME_ADDRESS: u8 = 0x20;
const SAME_POOL: u8 = 0x40;
const SAME_SITE: u8 = 0x80;

/// The fewest bytes that an event takes: its tag and its time.
const MIN_EVENT_LEN: usize = 2;

/// The event before, as far as the next one may repeat it.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    device: DeviceId,
    time_ns: u64,
    address: u64,
    stream: StreamId,
    pool: Pool,
    site: SiteId,
}

/// The fields of an event by what they are rather than by its kind.
struct Fields {
    code: u8,
    address: Option<u64>,
    size: Option<u64>,
    requested: Option<u64>,
    stream: Option<StreamId>,
    pool: Option<Pool>,
    site: Option<SiteId>,
}

impl Fields {
    fn of(kind: &EventKind) -> Self {
        let none = Self { code: 0, address: None, size: None, requested: None, stream: None, pool: None, site: None };
        match *kind {
            EventKind::SegmentAllocated { address, size, stream, pool, site } => Self {
                code: 0,
                address: Some(address),
                size: Some(size),
                stream: Some(stream),
                pool: Some(pool),
                site: Some(site),
                ..none
            },
            EventKind::SegmentMapped { address, size, stream, pool, site } => Self {
                code: 1,
                address: Some(address),
                size: Some(size),
                stream: Some(stream),
                pool: Some(pool),
                site: Some(site),
                ..none
            },
            EventKind::SegmentFreed { address, size, site } => {
                Self { code: 2, address: Some(address), size: Some(size), site: Some(site), ..none }
            }
            EventKind::SegmentUnmapped { address, size, site } => {
                Self { code: 3, address: Some(address), size: Some(size), site: Some(site), ..none }
            }
            EventKind::BlockAllocated { address, size, requested, stream, pool, site } => Self {
                code: 4,
                address: Some(address),
                size: Some(size),
                requested: Some(requested),
                stream: Some(stream),
                pool: Some(pool),
                site: Some(site),
            },
            EventKind::FreeRequested { address, site } => {
                Self { code: 5, address: Some(address), site: Some(site), ..none }
            }
            EventKind::FreeCompleted { address, site } => {
                Self { code: 6, address: Some(address), site: Some(site), ..none }
            }
            EventKind::OutOfMemory { site, .. } => Self { code: 7, site: Some(site), ..none },
            EventKind::MemorySample { .. } => Self { code: 8, ..none },
            EventKind::Mark { .. } => Self { code: 9, ..none },
            EventKind::Gap { .. } => Self { code: 10, ..none },
        }
    }
}

pub(crate) fn put_pool(out: &mut Vec<u8>, pool: Pool) {
    let private = pool.owner != MempoolId::default();
    out.push(u8::from(pool.kind == PoolKind::Large) | u8::from(private) << 1);
    if private {
        varint::put(out, pool.owner.0);
        varint::put(out, pool.owner.1);
    }
}

pub(crate) fn read_pool(reader: &mut Reader<'_>) -> Result<Pool, Malformed> {
    let bits = reader.byte()?;
    if bits > 3 {
        return Err(reader.malformed("an unknown kind of pool"));
    }
    let kind = if bits & 1 == 0 { PoolKind::Small } else { PoolKind::Large };
    let owner = if bits & 2 == 0 { MempoolId::default() } else { MempoolId(reader.u64()?, reader.u64()?) };
    Ok(Pool { kind, owner })
}

pub(crate) const fn stage_code(stage: Stage) -> u8 {
    match stage {
        Stage::Instant => 0,
        Stage::Begin => 1,
        Stage::End => 2,
    }
}

pub(crate) fn read_stage(reader: &mut Reader<'_>) -> Result<Stage, Malformed> {
    Ok(match reader.byte()? {
        0 => Stage::Instant,
        1 => Stage::Begin,
        2 => Stage::End,
        _ => return Err(reader.malformed("an unknown stage of a mark")),
    })
}

pub(crate) fn read_device(reader: &mut Reader<'_>) -> Result<DeviceId, Malformed> {
    let number = reader.u64()?;
    u16::try_from(number).map(DeviceId).map_err(|_| reader.malformed("a device number of more than 16 bits"))
}

/// Writes the events of one chunk.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventWriter {
    before: Before,
    bytes: Vec<u8>,
    count: u32,
}

impl EventWriter {
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn clear(&mut self) {
        self.before = Before::default();
        self.bytes.clear();
        self.count = 0;
    }

    pub(crate) fn put(&mut self, event: &Event) {
        let fields = Fields::of(&event.kind);
        let before = &mut self.before;
        let out = &mut self.bytes;
        let tag_at = out.len();
        let mut tag = fields.code;
        out.push(tag);
        if event.device == before.device {
            tag |= SAME_DEVICE;
        } else {
            varint::put(out, u64::from(event.device.0));
        }
        varint::put_delta(out, before.time_ns, event.time_ns);
        if let Some(address) = fields.address {
            if address == before.address {
                tag |= SAME_ADDRESS;
            } else {
                varint::put_delta(out, before.address, address);
            }
            before.address = address;
        }
        if let Some(size) = fields.size {
            varint::put_size(out, size);
            if let Some(requested) = fields.requested {
                varint::put_delta(out, requested, size);
            }
        }
        if let (Some(stream), Some(pool)) = (fields.stream, fields.pool) {
            if (stream, pool) == (before.stream, before.pool) {
                tag |= SAME_POOL;
            } else {
                varint::put(out, stream.0);
                put_pool(out, pool);
            }
            (before.stream, before.pool) = (stream, pool);
        }
        if let Some(site) = fields.site {
            if site == before.site {
                tag |= SAME_SITE;
            } else {
                varint::put(out, u64::from(site.0));
            }
            before.site = site;
        }
        put_rest(out, &event.kind);
        (before.device, before.time_ns) = (event.device, event.time_ns);
        out[tag_at] = tag;
        self.count += 1;
    }
}

/// The fields that only one kind of event has.
fn put_rest(out: &mut Vec<u8>, kind: &EventKind) {
    match *kind {
        EventKind::OutOfMemory { requested, device_free, stream, .. } => {
            varint::put_size(out, requested);
            varint::put_size(out, device_free);
            varint::put(out, stream.0);
        }
        EventKind::MemorySample { used_by_context, used_by_others, free } => {
            for bytes in [used_by_context, used_by_others, free] {
                varint::put_size(out, bytes);
            }
        }
        EventKind::Mark { stage, name } => {
            out.push(stage_code(stage));
            varint::put(out, u64::from(name.0));
        }
        EventKind::Gap { lost } => varint::put(out, lost),
        _ => {}
    }
}

/// Reads the events of one chunk.
#[derive(Debug)]
pub(crate) struct EventReader<'a> {
    reader: Reader<'a>,
    before: Before,
    left: u32,
}

impl<'a> EventReader<'a> {
    pub(crate) fn new(payload: &'a [u8], count: u32) -> Result<Self, Malformed> {
        let reader = Reader::new(payload);
        if count as usize > payload.len() / MIN_EVENT_LEN {
            return Err(reader.malformed("more events promised than the payload has room for"));
        }
        Ok(Self { reader, before: Before::default(), left: count })
    }

    /// The next event; `None` behind the last.
    pub(crate) fn next_event(&mut self) -> Result<Option<Event>, Malformed> {
        if self.left == 0 {
            return self.reader.end().map(|()| None);
        }
        self.left -= 1;
        let tag = self.reader.byte()?;
        if tag & SAME_DEVICE == 0 {
            self.before.device = read_device(&mut self.reader)?;
        }
        self.before.time_ns = self.reader.delta(self.before.time_ns)?;
        let kind = self.kind(tag)?;
        Ok(Some(Event { device: self.before.device, time_ns: self.before.time_ns, kind }))
    }

    fn kind(&mut self, tag: u8) -> Result<EventKind, Malformed> {
        Ok(match tag & 0x0f {
            code @ (0 | 1) => {
                let (address, size) = (self.address(tag)?, self.reader.size()?);
                let (stream, pool) = self.pool(tag)?;
                let site = self.site(tag)?;
                if code == 0 {
                    EventKind::SegmentAllocated { address, size, stream, pool, site }
                } else {
                    EventKind::SegmentMapped { address, size, stream, pool, site }
                }
            }
            2 => EventKind::SegmentFreed {
                address: self.address(tag)?,
                size: self.reader.size()?,
                site: self.site(tag)?,
            },
            3 => EventKind::SegmentUnmapped {
                address: self.address(tag)?,
                size: self.reader.size()?,
                site: self.site(tag)?,
            },
            4 => {
                let (address, size) = (self.address(tag)?, self.reader.size()?);
                // The difference was written from the request up to the block's size.
                let requested = size.wrapping_sub(self.reader.delta(0)?);
                let (stream, pool) = self.pool(tag)?;
                EventKind::BlockAllocated { address, size, requested, stream, pool, site: self.site(tag)? }
            }
            5 => EventKind::FreeRequested { address: self.address(tag)?, site: self.site(tag)? },
            6 => EventKind::FreeCompleted { address: self.address(tag)?, site: self.site(tag)? },
            7 => {
                let site = self.site(tag)?;
                let (requested, device_free) = (self.reader.size()?, self.reader.size()?);
                EventKind::OutOfMemory { requested, device_free, stream: StreamId(self.reader.u64()?), site }
            }
            8 => EventKind::MemorySample {
                used_by_context: self.reader.size()?,
                used_by_others: self.reader.size()?,
                free: self.reader.size()?,
            },
            9 => EventKind::Mark { stage: read_stage(&mut self.reader)?, name: StringId(self.reader.u32()?) },
            10 => EventKind::Gap { lost: self.reader.u64()? },
            _ => return Err(self.reader.malformed("an unknown kind of event")),
        })
    }

    fn address(&mut self, tag: u8) -> Result<u64, Malformed> {
        if tag & SAME_ADDRESS == 0 {
            self.before.address = self.reader.delta(self.before.address)?;
        }
        Ok(self.before.address)
    }

    fn pool(&mut self, tag: u8) -> Result<(StreamId, Pool), Malformed> {
        if tag & SAME_POOL == 0 {
            self.before.stream = StreamId(self.reader.u64()?);
            self.before.pool = read_pool(&mut self.reader)?;
        }
        Ok((self.before.stream, self.before.pool))
    }

    fn site(&mut self, tag: u8) -> Result<SiteId, Malformed> {
        if tag & SAME_SITE == 0 {
            self.before.site = SiteId(self.reader.u32()?);
        }
        Ok(self.before.site)
    }
}
