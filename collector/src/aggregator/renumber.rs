//! Maps one recording's numbers of strings, frames, stacks and sites to those of the merged
//! recording.

use vramscope_trace::{Definition, Frame, FrameId, Interner, Site, SiteId, StackId, StringId};

/// Estimated bytes of memory that one definition takes besides its text, counted toward
/// [`MAX_PROCESS_BYTES`] and [`MAX_TABLE_BYTES`]. It is stored in [`SourceNumbers`], in the
/// process's decoder and in [`DefinitionTable`].
const DEFINITION_OVERHEAD: usize = 64;
/// The most bytes of one process's definitions, counting [`DEFINITION_OVERHEAD`] for each. Further
/// definitions become "unknown".
const MAX_PROCESS_BYTES: usize = 64 << 20;
/// The most bytes of all processes' definitions, counting [`DEFINITION_OVERHEAD`] for each. Further
/// definitions become "unknown".
const MAX_TABLE_BYTES: usize = 512 << 20;

/// The definitions (strings, frames, stacks, sites) of the merged recording, and their total size
/// in bytes, which is limited.
#[derive(Debug, Default)]
pub(super) struct DefinitionTable {
    pub(super) interner: Interner,
    bytes: usize,
}

impl DefinitionTable {
    /// Subtracts half of a forgotten process's definition bytes from the total size: its
    /// [`SourceNumbers`] are dropped, but its definitions stay in this table.
    pub(super) fn forget(&mut self, numbers: &SourceNumbers) {
        self.bytes = self.bytes.saturating_sub(numbers.bytes / 2);
    }
}

/// Maps the numbers of one process's definitions (strings, frames, stacks, sites) to their numbers
/// in the merged recording.
#[derive(Debug, Default)]
pub(super) struct SourceNumbers {
    strings: Vec<StringId>,
    frames: Vec<FrameId>,
    stacks: Vec<StackId>,
    sites: Vec<SiteId>,
    bytes: usize,
    /// True once a definition exceeded a limit. Later definitions are ignored as well, because a
    /// definition's number is its position.
    is_full: bool,
}

/// Returns the merged recording's number of the definition that its process numbered `number`.
/// `list` contains the merged numbers of the process's definitions 1, 2 and so on. Number 0 and
/// undefined numbers map to 0, which means "unknown" in every recording.
fn lookup<T: Copy + Default>(list: &[T], number: u32) -> T {
    (number as usize).checked_sub(1).and_then(|index| list.get(index)).copied().unwrap_or_default()
}

impl SourceNumbers {
    /// Adds the process's next definition to the table and to this map. Once a limit on bytes is
    /// exceeded, definitions map to number 0, "unknown".
    pub(super) fn define(&mut self, definition: &Definition, table: &mut DefinitionTable) {
        let text_bytes = if let Definition::String(text) = definition { text.len() } else { 0 };
        let bytes = DEFINITION_OVERHEAD + text_bytes;
        self.is_full |= self.bytes + bytes > MAX_PROCESS_BYTES || table.bytes + bytes > MAX_TABLE_BYTES;
        if self.is_full {
            return;
        }
        self.bytes += bytes;
        table.bytes += bytes;
        let interner = &mut table.interner;
        match definition {
            Definition::String(text) => self.strings.push(interner.string(text)),
            Definition::Frame(frame) => {
                let (function, file) = (self.string(frame.function), self.string(frame.file));
                self.frames.push(interner.frame(Frame { function, file, line: frame.line }));
            }
            Definition::Stack(stack) => {
                // Only earlier stacks are found here, so stacks cannot form a cycle.
                let (frame, caller) = (lookup(&self.frames, stack.frame.0), lookup(&self.stacks, stack.caller.0));
                self.stacks.push(interner.stack(frame, caller));
            }
            Definition::Site(site) => {
                let (stack, scope) = (lookup(&self.stacks, site.stack.0), self.string(site.scope));
                let compile_context = self.string(site.compile_context);
                self.sites.push(interner.site(Site { stack, scope, category: site.category, compile_context }));
            }
        }
    }

    /// Returns the merged recording's number of the process's string `id`; 0, "unknown", if
    /// undefined.
    pub(super) fn string(&self, id: StringId) -> StringId {
        lookup(&self.strings, id.0)
    }

    /// Returns the merged recording's number of the process's site `id`; 0, "unknown", if
    /// undefined.
    pub(super) fn site(&self, id: SiteId) -> SiteId {
        lookup(&self.sites, id.0)
    }
}
