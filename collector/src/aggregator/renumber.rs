//! Maps one recording's numbers of strings, frames, stacks and sites to those of the merged
//! recording.

use vramscope_trace::{Definition, Frame, FrameId, Interner, Site, SiteId, StackId, StringId};

/// Bytes that one definition takes besides its text: in [`SourceNumbers`], in the process's decoder
/// and in the merged table.
const DEFINITION_OVERHEAD: usize = 64;
/// The most bytes of one process's definitions; further ones become "unknown".
const MAX_PROCESS_BYTES: usize = 64 << 20;
/// The most bytes of all processes' definitions; further ones become "unknown".
const MAX_TABLE_BYTES: usize = 512 << 20;

/// The definitions (strings, frames, stacks, sites) of the merged recording, with their limit.
#[derive(Debug, Default)]
pub(super) struct DefinitionTable {
    pub(super) interner: Interner,
    bytes: usize,
}

impl DefinitionTable {
    /// Subtracts the definitions of a process that is forgotten from the limit on all definitions.
    ///
    /// Only half of it: what the process added to the table stays there.
    pub(super) fn forget(&mut self, numbers: &SourceNumbers) {
        self.bytes = self.bytes.saturating_sub(numbers.bytes / 2);
    }
}

/// For one process, the merged recording's number of each of its definitions, by the number that
/// the process gave it.
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

/// Returns the entry for a definition's number, which starts at 1. Undefined numbers map to 0,
/// which means "unknown" in every recording.
fn lookup<T: Copy + Default>(list: &[T], number: u32) -> T {
    (number as usize).checked_sub(1).and_then(|index| list.get(index)).copied().unwrap_or_default()
}

impl SourceNumbers {
    /// Adds the process's next definition to the table. Beyond a limit, definitions become number
    /// 0, "unknown".
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

    /// Returns the merged recording's number of the process's string `id`.
    pub(super) fn string(&self, id: StringId) -> StringId {
        lookup(&self.strings, id.0)
    }

    /// Returns the merged recording's number of the process's site `id`.
    pub(super) fn site(&self, id: SiteId) -> SiteId {
        lookup(&self.sites, id.0)
    }
}
