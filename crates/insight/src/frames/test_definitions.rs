//! Definitions for tests, from frames written as `(file, line, function)`.

use vramscope_trace::{Category, Definitions, Frame, Interner, Site, SiteId, StackId};

/// Collects sites for a test.
#[derive(Debug, Default)]
pub(crate) struct TestSites {
    interner: Interner,
    definitions: Definitions,
}

impl TestSites {
    /// Defines a site with a stack of these frames, outermost first.
    pub(crate) fn stack(&mut self, frames: &[(&str, u32, &str)]) -> SiteId {
        self.site("", Category::Unknown, frames)
    }

    /// Defines a site with a scope, a category and a stack of these frames, outermost first.
    pub(crate) fn site(&mut self, scope: &str, category: Category, frames: &[(&str, u32, &str)]) -> SiteId {
        let mut stack = StackId(0);
        for &(file, line, function) in frames {
            let (file, function) = (self.interner.string(file), self.interner.string(function));
            let frame = self.interner.frame(Frame { function, file, line });
            stack = self.interner.stack(frame, stack);
        }
        let scope = self.interner.string(scope);
        let site = self.interner.site(Site { stack, scope, category, ..Site::default() });
        for definition in self.interner.take_new() {
            self.definitions.define(definition);
        }
        site
    }

    /// Returns the definitions of all sites so far.
    pub(crate) fn definitions(&self) -> &Definitions {
        &self.definitions
    }
}
