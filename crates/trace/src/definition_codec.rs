//! Encodes definitions and annotations as the columns of a chunk, and decodes them.
//!
//! ```text
//! definitions   | strings | frames | stacks | sites | columns
//! annotations   | unit | columns
//! ```
//!
//! A chunk of definitions begins with the number of earlier definitions of each kind. So a reader
//! can skip definitions that it already has; a chunk that was prepared for a viewer that joins late
//! repeats such definitions. Numbers are stored as differences to the previous value of their
//! column.

use crate::columns::{Columns, ColumnsWriter};
use crate::compression::{Compressor, Decompressor};
use crate::event::Annotation;
use crate::event_codec::{read_device, read_stage, stage_code};
use crate::site::{Category, Definition, Definitions, Frame, FrameId, Site, Stack, StackId, StringId};
use crate::varint::{self, PayloadError, Reader, gcd};

/// Number of columns of a chunk of definitions.
const DEFINITION_COLUMNS: usize = 12;
/// Number of the last of them that older readers skip.
const OPTIONAL_COLUMNS: usize = 1;
/// The first code of a category that only the optional column has: readers before it was added
/// reject the code in the column of categories.
const FIRST_LATER_CATEGORY: u8 = 8;
/// Number of columns of a chunk of annotations.
const ANNOTATION_COLUMNS: usize = 5;
/// Maximum number of decompressed bytes that a reader accepts in a chunk of definitions or
/// annotations; more is an error.
const MAX_COLUMNS_LEN: usize = 4 << 20;

mod column {
    /// Column id in a chunk of definitions. Per string: its length in bytes.
    pub(super) const LENGTHS: u8 = 0;
    /// Column id in a chunk of definitions. Per string: its bytes in UTF-8.
    pub(super) const TEXTS: u8 = 1;
    /// Column id in a chunk of definitions. Per frame: the number of the string with its function.
    pub(super) const FUNCTIONS: u8 = 2;
    /// Column id in a chunk of definitions. Per frame: the number of the string with its file.
    pub(super) const FILES: u8 = 3;
    /// Column id in a chunk of definitions. Per frame: its line.
    pub(super) const LINES: u8 = 4;
    /// Column id in a chunk of definitions. Per stack: the number of its innermost frame.
    pub(super) const FRAMES: u8 = 5;
    /// Column id in a chunk of definitions. Per stack: the number of its caller's stack.
    pub(super) const CALLERS: u8 = 6;
    /// Column id in a chunk of definitions. Per site: the number of its stack.
    pub(super) const STACKS: u8 = 7;
    /// Column id in a chunk of definitions. Per site: the number of the string with its scope path.
    pub(super) const SCOPES: u8 = 8;
    /// Column id in a chunk of definitions. Per site: the code of its category.
    pub(super) const CATEGORIES: u8 = 9;
    /// Column id in a chunk of definitions. Per site: the number of the string that names its
    /// `torch.compile` region.
    pub(super) const COMPILE_CONTEXTS: u8 = 10;
    /// Number of an optional column in a chunk of definitions. Per site: the code of its category
    /// if it is one of those that were added later, else 0; the zeros at the end are left out.
    pub(super) const LATER_CATEGORIES: u8 = 11;

    /// Column id in a chunk of annotations. Per annotation: its device.
    pub(super) const DEVICES: u8 = 0;
    /// Column id in a chunk of annotations. Per annotation: its time in the unit that the chunk
    /// states, as the difference to that of the previous annotation.
    pub(super) const TIMES: u8 = 1;
    /// Column id in a chunk of annotations. Per annotation: its moment, as the difference to that
    /// of the previous annotation.
    pub(super) const EVENTS: u8 = 2;
    /// Column id in a chunk of annotations. Per annotation: the code of its stage.
    pub(super) const STAGES: u8 = 3;
    /// Column id in a chunk of annotations. Per annotation: the number of the string with its name.
    pub(super) const NAMES: u8 = 4;
}

/// Numbers of defined strings, frames, stacks and sites, in this order.
pub(crate) type DefinitionCounts = [u64; 4];

/// Returns the index (0 to 3) of a definition's kind in [`DefinitionCounts`].
const fn kind_of(definition: &Definition) -> usize {
    match definition {
        Definition::String(_) => 0,
        Definition::Frame(_) => 1,
        Definition::Stack(_) => 2,
        Definition::Site(_) => 3,
    }
}

/// Collects definitions as the columns of a chunk, until [`finish`](Self::finish) writes them.
#[derive(Clone, Debug, Default)]
pub(crate) struct DefinitionWriter {
    columns: ColumnsWriter<DEFINITION_COLUMNS, OPTIONAL_COLUMNS>,
    /// Definitions in finished chunks.
    finished: DefinitionCounts,
    /// All definitions added.
    added: DefinitionCounts,
    /// The last value of each column of numbers.
    last: [u64; DEFINITION_COLUMNS],
}

impl DefinitionWriter {
    /// Appends `number` to the column with the id `id`, as the difference to that column's previous
    /// number.
    fn put_number(&mut self, id: u8, number: u32) {
        let last = std::mem::replace(&mut self.last[usize::from(id)], u64::from(number));
        varint::put_delta(self.columns.column(id), last, u64::from(number));
    }

    /// Appends the code of a site's category.
    fn put_category(&mut self, code: u8) {
        let categories = self.columns.column(column::CATEGORIES);
        let sites_before = categories.len();
        let is_later = code >= FIRST_LATER_CATEGORY;
        categories.push(if is_later { 0 } else { code });
        if is_later {
            let later = self.columns.column(column::LATER_CATEGORIES);
            later.resize(sites_before, 0);
            later.push(code);
        }
    }

    /// Adds a string, frame, stack or site to the columns of the chunk that is being written.
    pub(crate) fn put(&mut self, definition: &Definition) {
        match definition {
            Definition::String(text) => {
                varint::put(self.columns.column(column::LENGTHS), text.len() as u64);
                self.columns.column(column::TEXTS).extend_from_slice(text.as_bytes());
            }
            Definition::Frame(frame) => {
                self.put_number(column::FUNCTIONS, frame.function.0);
                self.put_number(column::FILES, frame.file.0);
                self.put_number(column::LINES, frame.line);
            }
            Definition::Stack(stack) => {
                self.put_number(column::FRAMES, stack.frame.0);
                self.put_number(column::CALLERS, stack.caller.0);
            }
            Definition::Site(site) => {
                self.put_number(column::STACKS, site.stack.0);
                self.put_number(column::SCOPES, site.scope.0);
                self.put_category(site.category as u8);
                self.put_number(column::COMPILE_CONTEXTS, site.compile_context.0);
            }
        }
        self.added[kind_of(definition)] += 1;
    }

    /// Returns the uncompressed bytes of the definitions added since the last
    /// [`finish`](Self::finish).
    pub(crate) fn len(&self) -> usize {
        self.columns.len()
    }

    /// Appends the payload of a chunk of definitions to `out` and clears the columns.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>, compressor: &mut Compressor) {
        for count in self.finished {
            varint::put(out, count);
        }
        self.columns.finish(out, Some(compressor));
        self.finished = self.added;
        self.last = [0; DEFINITION_COLUMNS];
    }
}

/// Reads a column of numbers that are each stored as the difference to the number before it.
struct DeltaReader<'a> {
    reader: Reader<'a>,
    last: u64,
}

impl DeltaReader<'_> {
    /// Returns true once all numbers of the column have been read.
    fn is_empty(&self) -> bool {
        self.reader.remaining() == 0
    }

    /// Reads the next number of the column; an error if it does not fit in 32 bits or the column
    /// has ended.
    fn next(&mut self) -> Result<u32, PayloadError> {
        self.last = self.reader.delta(self.last)?;
        u32::try_from(self.last).map_err(|_| self.reader.payload_error("number above 32 bits"))
    }
}

/// Adds a chunk's definitions to `definitions`, without repetitions of earlier definitions. `known`
/// counts the definitions read so far and is updated; `each` receives the new ones.
pub(crate) fn read_definitions(
    mut reader: Reader<'_>,
    decompressor: &mut Decompressor,
    known: &mut DefinitionCounts,
    definitions: &mut Definitions,
    mut each: impl FnMut(&Definition),
) -> Result<(), PayloadError> {
    let mut at = [0; 4];
    for (count, known) in at.iter_mut().zip(*known) {
        *count = reader.u64()?;
        if *count > known {
            return Err(reader.payload_error("definitions are missing before this chunk"));
        }
    }
    let columns = Columns::<DEFINITION_COLUMNS, OPTIONAL_COLUMNS>::read(&mut reader, decompressor, MAX_COLUMNS_LEN)?;
    let mut add = |definition: Definition| {
        let kind = kind_of(&definition);
        at[kind] += 1;
        if at[kind] > known[kind] {
            known[kind] = at[kind];
            each(&definition);
            definitions.define(definition);
        }
    };
    let numbers = |id| DeltaReader { reader: columns.column(id), last: 0 };
    let (mut lengths, mut texts) = (columns.column(column::LENGTHS), columns.column(column::TEXTS));
    while lengths.remaining() > 0 {
        let length = lengths.u64()?;
        add(Definition::String(texts.text(length)?.to_owned()));
    }
    texts.end()?;
    let (mut functions, mut files, mut lines) =
        (numbers(column::FUNCTIONS), numbers(column::FILES), numbers(column::LINES));
    while !(functions.is_empty() && files.is_empty() && lines.is_empty()) {
        let (function, file) = (StringId(functions.next()?), StringId(files.next()?));
        add(Definition::Frame(Frame { function, file, line: lines.next()? }));
    }
    let (mut frames, mut callers) = (numbers(column::FRAMES), numbers(column::CALLERS));
    while !(frames.is_empty() && callers.is_empty()) {
        add(Definition::Stack(Stack { frame: FrameId(frames.next()?), caller: StackId(callers.next()?) }));
    }
    let (mut stacks, mut scopes) = (numbers(column::STACKS), numbers(column::SCOPES));
    let (mut categories, mut contexts) = (columns.column(column::CATEGORIES), numbers(column::COMPILE_CONTEXTS));
    let mut later_categories = columns.column(column::LATER_CATEGORIES);
    while !(stacks.is_empty() && scopes.is_empty() && categories.remaining() == 0 && contexts.is_empty()) {
        let (stack, scope) = (StackId(stacks.next()?), StringId(scopes.next()?));
        let code = categories.byte()?;
        let later = if later_categories.remaining() > 0 { later_categories.byte()? } else { 0 };
        let category = if code < FIRST_LATER_CATEGORY { Category::ALL.get(usize::from(code)) } else { None };
        let category = *category.ok_or_else(|| categories.payload_error("unknown category"))?;
        let category = match later {
            0 => category,
            // Readers that skip the optional column would find another category.
            _ if later < FIRST_LATER_CATEGORY || code != 0 => {
                return Err(later_categories.payload_error("category in the wrong column"));
            }
            // A category that a newer writer knows is unknown here.
            _ => Category::ALL.get(usize::from(later)).copied().unwrap_or_default(),
        };
        let compile_context = StringId(contexts.next()?);
        add(Definition::Site(Site { stack, scope, category, compile_context }));
    }
    later_categories.end()
}

/// Appends annotations to `out` as the payload of a chunk.
pub(crate) fn put_annotations(out: &mut Vec<u8>, annotations: &[Annotation], compressor: &mut Compressor) {
    let unit = annotations.iter().fold(0, |unit, annotation| gcd(unit, annotation.time_ns)).max(1);
    varint::put(out, unit);
    let mut columns = ColumnsWriter::<ANNOTATION_COLUMNS>::default();
    let (mut units, mut event, mut name) = (0, 0, 0);
    for annotation in annotations {
        varint::put(columns.column(column::DEVICES), u64::from(annotation.device.0));
        varint::put_delta(columns.column(column::TIMES), units, annotation.time_ns / unit);
        varint::put_delta(columns.column(column::EVENTS), event, annotation.at_event);
        columns.column(column::STAGES).push(stage_code(annotation.stage));
        varint::put_delta(columns.column(column::NAMES), name, u64::from(annotation.name.0));
        (units, event, name) = (annotation.time_ns / unit, annotation.at_event, u64::from(annotation.name.0));
    }
    columns.finish(out, Some(compressor));
}

/// Reads the payload that [`put_annotations`] wrote, and calls `each` for every annotation.
pub(crate) fn read_annotations(
    mut reader: Reader<'_>,
    decompressor: &mut Decompressor,
    mut each: impl FnMut(Annotation),
) -> Result<(), PayloadError> {
    let unit = reader.u64()?;
    let columns = Columns::<ANNOTATION_COLUMNS>::read(&mut reader, decompressor, MAX_COLUMNS_LEN)?;
    let mut devices = columns.column(column::DEVICES);
    let (mut times, mut events) = (columns.column(column::TIMES), columns.column(column::EVENTS));
    let mut stages = columns.column(column::STAGES);
    let mut names = DeltaReader { reader: columns.column(column::NAMES), last: 0 };
    let (mut units, mut at_event) = (0, 0);
    while stages.remaining() > 0 {
        units = times.delta(units)?;
        at_event = events.delta(at_event)?;
        each(Annotation {
            device: read_device(&mut devices)?,
            time_ns: units.wrapping_mul(unit),
            at_event,
            stage: read_stage(&mut stages)?,
            name: StringId(names.next()?),
        });
    }
    [&devices, &times, &events, &names.reader].into_iter().try_for_each(Reader::end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the payload of a chunk with a site of every category.
    fn payload() -> Vec<u8> {
        let mut writer = DefinitionWriter::default();
        for category in Category::ALL {
            writer.put(&Definition::Site(Site { category, ..Site::default() }));
        }
        let mut payload = Vec::new();
        writer.finish(&mut payload, &mut Compressor::default());
        payload
    }

    #[test]
    fn categories_survive() {
        let mut definitions = Definitions::default();
        let mut known = DefinitionCounts::default();
        let payload = payload();
        let (reader, mut decompressor) = (Reader::new(&payload), Decompressor::default());
        read_definitions(reader, &mut decompressor, &mut known, &mut definitions, |_| {})
            .expect("the payload is valid");
        let sites = (1..=Category::ALL.len() as u32).map(|id| definitions.site(crate::SiteId(id)).category);
        assert!(sites.eq(Category::ALL));
    }

    #[test]
    fn readers_without_the_later_column_find_later_categories_unknown() {
        const COLUMNS_BEFORE: usize = 11;
        let payload = payload();
        let mut reader = Reader::new(&payload);
        for _ in 0..DefinitionCounts::default().len() {
            reader.u64().expect("a count");
        }
        let columns = Columns::<COLUMNS_BEFORE>::read(&mut reader, &mut Decompressor::default(), MAX_COLUMNS_LEN);
        let columns = columns.expect("the optional column is skipped");
        let mut categories = columns.column(column::CATEGORIES);
        let codes: Vec<u8> = Category::ALL.map(|_| categories.byte().expect("a code")).into();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 0, 0]);
    }

    #[test]
    fn categories_of_newer_writers_are_unknown() {
        let mut writer = DefinitionWriter::default();
        writer.put(&Definition::Site(Site { category: Category::Cache, ..Site::default() }));
        writer.columns.column(column::LATER_CATEGORIES)[0] = 200;
        let mut payload = Vec::new();
        writer.finish(&mut payload, &mut Compressor::default());
        let (mut definitions, mut known) = (Definitions::default(), DefinitionCounts::default());
        let reader = Reader::new(&payload);
        read_definitions(reader, &mut Decompressor::default(), &mut known, &mut definitions, |_| {})
            .expect("the payload is valid");
        assert_eq!(definitions.site(crate::SiteId(1)).category, Category::Unknown);
    }
}
