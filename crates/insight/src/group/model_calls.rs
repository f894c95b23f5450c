//! The lines of a program that call its model, for each line inside of the model.

use vramscope_trace::{Definitions, FrameId, StringId};

use crate::frames::line_name;

/// Maximum number of lines that are kept for a group; one more tells that there are others.
const MAX_LINES: usize = 2;

/// The lines that call the model, by the group of the line that requests the memory.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelCalls {
    /// By group number, file and line of each call in the order in which they were found; at most
    /// one more than a text lists.
    by_group: Vec<Vec<(StringId, u32)>>,
}

impl ModelCalls {
    /// Adds the frame that calls the model for a group's memory.
    pub(super) fn add(&mut self, definitions: &Definitions, group: u32, call: FrameId) {
        let Some(frame) = definitions.frame(call) else { return };
        let index = group as usize;
        if self.by_group.len() <= index {
            self.by_group.resize(index + 1, Vec::new());
        }
        let (lines, line) = (&mut self.by_group[index], (frame.file, frame.line));
        if lines.len() <= MAX_LINES && !lines.contains(&line) {
            lines.push(line);
        }
    }

    /// Returns the lines that call the model for a group's memory, such as `train.py:65`, as text;
    /// `None` if none is known. `own_name` returns the name of the group, which is no caller of
    /// itself.
    pub(super) fn text(
        &self,
        definitions: &Definitions,
        group: u32,
        own_name: impl FnOnce() -> String,
    ) -> Option<String> {
        let lines = self.by_group.get(group as usize).filter(|lines| !lines.is_empty())?.iter();
        let own_name = own_name();
        let names = lines.map(|(file, line)| line_name(definitions, *file, *line));
        let names: Vec<String> = names.filter(|name| *name != own_name).collect();
        match names.as_slice() {
            [] => None,
            [names @ .., _] if names.len() == MAX_LINES => Some(format!("{} and other lines", names.join(", "))),
            names => Some(names.join(" and ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{Category, SiteId};

    use crate::frames::test_definitions::TestSites;
    use crate::group::{GroupBy, Grouping};

    const CALL: (&str, u32, &str) = ("/x/site-packages/torch/nn/modules/module.py", 1790, "Module._call_impl");
    const LAYER: (&str, u32, &str) = ("mlp.py", 31, "Mlp.forward");

    /// Returns the calls of the model for the memory of `LAYER`, which sites with these stacks
    /// request.
    fn model_calls(stacks: &[&[(&str, u32, &str)]]) -> Option<String> {
        let mut sites = TestSites::default();
        for frames in stacks {
            sites.site("", Category::Unknown, frames);
        }
        let mut grouping = Grouping::new(GroupBy::Line, 0);
        grouping.update(sites.definitions());
        let group = grouping.group_of_site(SiteId(1), false);
        assert_eq!(grouping.group_name(sites.definitions(), group), "mlp.py:31");
        grouping.model_calls(sites.definitions(), group)
    }

    #[test]
    fn line_of_a_model_has_the_line_that_calls_the_outermost_module() {
        let [train, model] = [("train.py", 80, "train"), ("model.py", 12, "Net.forward")];
        let main = ("train.py", 99, "<module>");
        assert_eq!(model_calls(&[&[main, train, CALL, model, CALL, LAYER]]).as_deref(), Some("train.py:80"));
        assert_eq!(model_calls(&[&[main, train, LAYER]]), None, "no module is called");
        assert_eq!(model_calls(&[&[CALL, LAYER]]), None, "a library calls the model");
        assert_eq!(model_calls(&[&[LAYER, CALL, LAYER]]), None, "the line calls itself");
    }

    #[test]
    fn calls_of_several_lines_are_listed_up_to_a_limit() {
        let calls: [[(&str, u32, &str); 3]; 4] =
            [80, 90, 95, 97].map(|line| [("train.py", line, "train"), CALL, LAYER]);
        let of = |count: usize| model_calls(&calls.each_ref().map(|frames| &frames[..])[..count]);
        assert_eq!(of(2).as_deref(), Some("train.py:80 and train.py:90"));
        assert_eq!(of(3).as_deref(), Some("train.py:80, train.py:90 and other lines"));
        assert_eq!(of(4).as_deref(), Some("train.py:80, train.py:90 and other lines"));
    }
}
