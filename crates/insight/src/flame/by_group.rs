//! Flame graphs by group: modules by the parts of their paths, files by folder and line, functions
//! and lines with their callers, categories by site.

use std::collections::HashMap;
use std::sync::Arc;

use vramscope_trace::{AllocationOrigin, Definitions, Frame, FrameOrigin, SiteId, frame_origin, short_file_name};

use super::graph::{Builder, FlameGraph, FlameNodeKind};
use super::weights::{StackKey, StackWeights};
use crate::frames::FactsCache;
use crate::group::{GroupBy, Grouping};

/// Maximum number of levels of a flame graph by group.
const MAX_LEVELS: usize = 512;

impl FlameGraph {
    /// Arranges weighted sites by their groups.
    ///
    /// `by` decides on the levels: a function or a line has its callers below it, a file is below
    /// its folder, and a module below the modules that contain it. Files, modules and all other
    /// groups have the groups of `parts` below them, if it groups by something else. If
    /// `fold_libraries` is true, callers are frames of the program's own code only. The cost is
    /// linear in the number of sites and of their frames.
    #[must_use]
    pub fn by_group(
        definitions: &Definitions,
        weights: &StackWeights,
        by: &mut Grouping,
        parts: &mut Grouping,
        fold_libraries: bool,
    ) -> Self {
        let mut levels = GroupTree {
            tree: Builder::new(definitions, fold_libraries),
            facts: FactsCache::default(),
            names: HashMap::new(),
        };
        for (key, weight) in weights.iter() {
            let (group, part) = (group_of(by, key), group_of(parts, key));
            let node = match by.by() {
                GroupBy::Function | GroupBy::Line => {
                    let node = levels.add_group(0, by, group, None);
                    levels.add_callers(node, key.site)
                }
                GroupBy::Module => {
                    let node = levels.add_module(by, group);
                    levels.add_group(node, parts, part, None)
                }
                GroupBy::File => {
                    let node = levels.add_file(by, group);
                    if by.is_unknown(group) { node } else { levels.add_group(node, parts, part, None) }
                }
                _ => {
                    let node = levels.add_group(0, by, group, None);
                    if by.by() == parts.by() { node } else { levels.add_group(node, parts, part, None) }
                }
            };
            levels.tree.add_blocks(node, key, weight);
        }
        levels.tree.finish()
    }
}

/// Returns the group of blocks with a key. A site does not determine the stream, pool or size: with
/// such a grouping, all blocks get one group.
fn group_of(grouping: &mut Grouping, StackKey { site, is_older, category }: StackKey) -> u32 {
    if grouping.by() == GroupBy::Category {
        return grouping.group_with_category(site, category, is_older);
    }
    grouping.group_of_origin(&AllocationOrigin { site, ..AllocationOrigin::default() }, 0, is_older)
}

/// The tree under construction, with tables to find its nodes.
struct GroupTree<'a> {
    tree: Builder<'a>,
    facts: FactsCache,
    /// The number of each part of a name, see [`FlameNodeKind::Part`].
    names: HashMap<&'a str, u32>,
}

impl<'a> GroupTree<'a> {
    /// Returns the node of a group below `parent`, adding it if it is new; `label` is its text if
    /// that is not the group's name.
    fn add_group(&mut self, parent: u32, grouping: &mut Grouping, group: u32, label: Option<&str>) -> u32 {
        let (by, definitions) = (grouping.by(), self.tree.definitions);
        let name = || Some(label.map_or_else(|| grouping.cached_name(definitions, group), Arc::from));
        let node = self.tree.add_named(parent, FlameNodeKind::Group(by, group), name);
        self.tree.nodes[node as usize].group = Some((by, group));
        node
    }

    /// Returns the node of a part of a name below `parent`, adding it if it is new.
    fn add_part(&mut self, parent: u32, text: &'a str) -> u32 {
        let next = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        let number = *self.names.entry(text).or_insert(next);
        self.tree.add_named(parent, FlameNodeKind::Part(number), || Some(text.into()))
    }

    /// Returns the node of a module, adding it below the nodes of the modules that contain it if it
    /// is new.
    fn add_module(&mut self, modules: &mut Grouping, group: u32) -> u32 {
        let definitions = self.tree.definitions;
        let Some(path) = modules.text_of(group) else { return self.add_group(0, modules, group, None) };
        let path = definitions.string(path);
        let parts = path.splitn(MAX_LEVELS, '/').filter(|part| !part.is_empty());
        let node = parts.fold(0, |node, part| self.add_part(node, part));
        if node == 0 {
            return self.add_group(0, modules, group, None);
        }
        self.tree.nodes[node as usize].group = Some((GroupBy::Module, group));
        node
    }

    /// Returns the node of a file, adding it below its folder if it is new.
    fn add_file(&mut self, files: &mut Grouping, group: u32) -> u32 {
        let definitions = self.tree.definitions;
        let path = files.text_of(group).map(|path| definitions.string(path));
        let Some(path) = path else { return self.add_group(0, files, group, None) };
        let name = short_file_name(path);
        let folder = path.get(..path.len() - name.len()).unwrap_or_default();
        let parent = if folder.is_empty() { 0 } else { self.add_part(0, folder) };
        self.add_group(parent, files, group, Some(name))
    }

    /// Adds the callers of a site's function or line below `node`, the function's or line's node.
    /// Returns the node of the outermost caller.
    fn add_callers(&mut self, mut node: u32, site: SiteId) -> u32 {
        let definitions = self.tree.definitions;
        let stack = definitions.site(site).stack;
        let facts = self.facts.get(definitions, stack);
        let named = facts.best_frame().and_then(|frame| definitions.frame(frame));
        let has_python = facts.has_python();
        let is_own = |frame: &Frame| frame_origin(definitions, *frame, has_python) == FrameOrigin::Own;
        let callers = definitions.stack(stack).skip_while(|frame| Some(*frame) != named).skip(1);
        let folds = self.tree.fold_libraries;
        for frame in callers.filter(|frame| !folds || is_own(frame)).take(MAX_LEVELS) {
            let kind =
                if is_own(&frame) { FlameNodeKind::Own(frame) } else { FlameNodeKind::Library { frame, frames: 1 } };
            node = self.tree.add(node, kind);
        }
        node
    }
}
