//! One recording's numbers for strings, frames, stacks and sites, in another recording.

use vramscope_trace::{Definition, Frame, FrameId, Interner, Site, SiteId, StackId, StringId};

/// What one definition takes beside its text, here, in its decoder and in the table of all.
const DEFINITION_OVERHEAD: usize = 64;
/// The most that the definitions of one process may take.
const MAX_PROCESS_BYTES: usize = 64 << 20;
/// The most that those of all may take.
const MAX_TABLE_BYTES: usize = 512 << 20;

/// The definitions of all.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) interner: Interner,
    bytes: usize,
}

/// What one recording calls what the table calls otherwise.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    strings: Vec<StringId>,
    frames: Vec<FrameId>,
    stacks: Vec<StackId>,
    sites: Vec<SiteId>,
    bytes: usize,
    /// There was no room for one; none after it is known either, for each is called by how many came before.
    is_full: bool,
}

fn nth<T: Copy + Default>(list: &[T], number: u32) -> T {
    // As in any recording, what was never defined is none.
    (number as usize).checked_sub(1).and_then(|index| list.get(index)).copied().unwrap_or_default()
}

impl Numbers {
    /// Takes the recording's next definition. Where it has very many, what it defines from then on is called unknown.
    pub(super) fn define(&mut self, definition: &Definition, table: &mut Table) {
        let text = if let Definition::String(text) = definition { text.len() } else { 0 };
        let bytes = DEFINITION_OVERHEAD + text;
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
                // Of those defined before it alone, so that there is no circle.
                let (frame, caller) = (nth(&self.frames, stack.frame.0), nth(&self.stacks, stack.caller.0));
                self.stacks.push(interner.stack(frame, caller));
            }
            Definition::Site(site) => {
                let (stack, scope) = (nth(&self.stacks, site.stack.0), self.string(site.scope));
                let compile_context = self.string(site.compile_context);
                self.sites.push(interner.site(Site { stack, scope, category: site.category, compile_context }));
            }
        }
    }

    /// What the table calls the string `id`.
    pub(super) fn string(&self, id: StringId) -> StringId {
        nth(&self.strings, id.0)
    }

    /// What the table calls the site `id`.
    pub(super) fn site(&self, id: SiteId) -> SiteId {
        nth(&self.sites, id.0)
    }
}

impl Table {
    /// Room again for what the definitions of a process took that will not come back. What they added to the table stays.
    pub(super) fn forget(&mut self, numbers: &Numbers) {
        self.bytes = self.bytes.saturating_sub(numbers.bytes / 2);
    }
}
