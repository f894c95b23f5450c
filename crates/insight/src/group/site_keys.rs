//! The keys of the groups of a site's blocks.

use vramscope_trace::{Category, Definitions, Frame, FrameId, Site, SiteId, StringId, is_runtime};

use super::group_by::GroupBy;
use super::grouping::{GroupKey, Grouping};
use super::memory_category::MemoryCategory;
use super::phase::{Phase, SiteRequest, named_phase, phase};
use crate::frames::{EnginePhase, OperationSource, StackFacts, operation_name};

/// Returns true if the backward pass makes a site's requests, although the stack is that of the
/// forward operation.
fn has_forward_stack(definitions: &Definitions, site: Site, facts: &StackFacts) -> bool {
    facts.engine != Some(EnginePhase::Backward) && named_phase(definitions, site) == Some(Phase::Backward)
}

impl Grouping {
    /// Returns the group of a site's blocks, by the property by which blocks are grouped; 0 if that
    /// is not a property of their site. Grouped by category, the group of blocks of unknown
    /// category.
    pub(super) fn site_group(&mut self, definitions: &Definitions, id: SiteId, before_recording: bool) -> u32 {
        let site = definitions.site(id);
        let facts = self.facts.get(definitions, site.stack);
        let lacks_python = facts.frames == 0 && self.recorded.has_python() && !before_recording;
        let request = SiteRequest { site, facts: &facts, lacks_python };
        let no_stack = GroupKey::NoStack { before_recording };
        let key = match self.by {
            GroupBy::Stream | GroupBy::Pool | GroupBy::Size => return 0,
            GroupBy::Site if Site { compile_context: StringId(0), ..site } == Site::default() => no_stack,
            GroupBy::Site => GroupKey::Site(id),
            GroupBy::Module if site.scope == StringId(0) => GroupKey::NoModule,
            GroupBy::Module => GroupKey::Module(site.scope),
            GroupBy::Category if facts.frames == 0 => no_stack,
            GroupBy::Category => GroupKey::Category(MemoryCategory::inferred(Category::Unknown)),
            GroupBy::Phase => phase(definitions, request).map_or(no_stack, GroupKey::Phase),
            GroupBy::Stack | GroupBy::Function | GroupBy::Line | GroupBy::File | GroupBy::Operation
                if facts.frames == 0 =>
            {
                no_stack
            }
            GroupBy::Stack => GroupKey::Stack(site.stack),
            GroupBy::Line => self.line_key(definitions, site, &facts),
            GroupBy::Function | GroupBy::File => self.frame_key(definitions, &facts),
            GroupBy::Operation => self.site_operation_key(definitions, site, &facts),
        };
        self.number_of(key, id)
    }

    /// Returns the key of a site with frames, grouped by line.
    fn line_key(&mut self, definitions: &Definitions, site: Site, facts: &StackFacts) -> GroupKey {
        let key = self.frame_key(definitions, facts);
        let GroupKey::Line { file, line } = key else { return key };
        let has_forward_stack = has_forward_stack(definitions, site, facts);
        let Some((frame, _)) = facts.operation().filter(|_| has_forward_stack) else { return key };
        let Frame { function, file: function_file, .. } = definitions.frame(frame).unwrap_or_default();
        GroupKey::Backward { function, function_file, file, line }
    }

    /// Returns the key of a stack with frames, grouped by function, line or file.
    fn frame_key(&mut self, definitions: &Definitions, facts: &StackFacts) -> GroupKey {
        if facts.innermost_own().is_none() && self.by != GroupBy::Function {
            return self.library_key(definitions, facts);
        }
        let frame = facts.best_frame().and_then(|frame| definitions.frame(frame));
        let has_file = |file: &StringId| !matches!(definitions.string(*file), "" | "??");
        match (self.by, frame) {
            (GroupBy::Function | GroupBy::Operation, Some(frame)) => {
                GroupKey::Function { function: frame.function, file: frame.file }
            }
            (by, Some(frame)) if has_file(&frame.file) && (frame.line > 0 || by == GroupBy::File) => match by {
                GroupBy::File => GroupKey::File(frame.file),
                _ => GroupKey::Line { file: frame.file, line: frame.line },
            },
            _ => GroupKey::LibraryOnly,
        }
    }

    /// Returns the key of a stack without a frame of the program: the node of the backward pass,
    /// the operation, or the library's function that requests the memory.
    fn library_key(&mut self, definitions: &Definitions, facts: &StackFacts) -> GroupKey {
        let node = facts.backward_operation().map(|frame| (frame, OperationSource::Dispatcher));
        if let Some(operation) = node.or_else(|| facts.operation()) {
            return self.operation_key(definitions, operation, false);
        }
        let frame = facts.best_frame().and_then(|frame| definitions.frame(frame));
        match frame.filter(|frame| !is_runtime(definitions, *frame)) {
            Some(Frame { function, file, .. }) if function != StringId(0) => GroupKey::Function { function, file },
            _ => GroupKey::LibraryOnly,
        }
    }

    /// Returns the key of a site with frames, grouped by operation.
    fn site_operation_key(&mut self, definitions: &Definitions, site: Site, facts: &StackFacts) -> GroupKey {
        let Some((frame, source)) = facts.operation() else { return self.frame_key(definitions, facts) };
        let is_backward = source != OperationSource::Dispatcher && has_forward_stack(definitions, site, facts);
        self.operation_key(definitions, (frame, source), is_backward)
    }

    /// Returns the key of the operation that a frame names.
    fn operation_key(
        &mut self,
        definitions: &Definitions,
        (frame, source): (FrameId, OperationSource),
        is_backward: bool,
    ) -> GroupKey {
        let Frame { mut function, mut file, .. } = definitions.frame(frame).unwrap_or_default();
        if source == OperationSource::Dispatcher {
            // An operation has a function for each overload, and several for the steps of a call.
            let name = operation_name(definitions.string(function), "").unwrap_or_default();
            (function, file) = (*self.operations.entry(name).or_insert(function), StringId(0));
        }
        GroupKey::Operation { function, file, is_backward }
    }

    /// Adds the line that calls the model for a site's memory, if blocks are grouped by line.
    pub(super) fn add_model_call(&mut self, definitions: &Definitions, site: SiteId, group: u32) {
        if self.by != GroupBy::Line {
            return;
        }
        if let Some(call) = self.facts.get(definitions, definitions.site(site).stack).model_call() {
            self.model_calls.add(definitions, group, call);
        }
    }

    /// Returns the lines of the program that call the model for the memory of a group, such as
    /// `train.py:65 and train.py:95`; `None` unless blocks are grouped by line, and of a group
    /// outside of modules.
    #[must_use]
    pub fn model_calls(&self, definitions: &Definitions, group: u32) -> Option<String> {
        self.model_calls.text(definitions, group, || self.group_name(definitions, group))
    }

    /// Returns the groups of the operations within which a site's operation runs, each once.
    ///
    /// A stack has operations of one kind only, see [`group`](crate::group); functions of the
    /// program are none. Empty unless blocks are grouped by operation.
    pub(crate) fn outer_operations(&mut self, definitions: &Definitions, id: SiteId) -> Vec<u32> {
        let mut outer = Vec::new();
        let site = definitions.site(id);
        let facts = self.facts.get(definitions, site.stack);
        let Some((_, kind)) = facts.operation().filter(|_| self.by == GroupBy::Operation) else { return outer };
        let own = self.site_operation_key(definitions, site, &facts);
        let is_backward = matches!(own, GroupKey::Operation { is_backward: true, .. });
        let kind = kind.max(OperationSource::Python);
        let mut next = site.stack;
        while let Some(stack) = definitions.stack_definition(next) {
            next = stack.caller;
            if self.facts.operation_source(stack.frame) == kind {
                let key = self.operation_key(definitions, (stack.frame, kind), is_backward);
                let group = self.number_of(key, id);
                if key != own && !outer.contains(&group) {
                    outer.push(group);
                }
            }
        }
        outer
    }
}
