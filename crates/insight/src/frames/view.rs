//! A call stack as rows: own frames, and folded runs of library frames.

use std::fmt::Write;

use vramscope_trace::{
    Definitions, Frame, FrameOrigin, StackId, StringId, frame_name, frame_origin, is_python_frame, short_file_name,
    short_function_name,
};

/// One frame of a stack, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameView {
    /// File without directory, line and function: `train.py:66 gpt_step`.
    pub label: String,
    /// The function's complete name.
    pub function: String,
    /// The file's path as recorded; empty if unknown.
    pub file: String,
    /// The line, counted from 1; 0 if unknown.
    pub line: u32,
    /// Whose code it is.
    pub origin: FrameOrigin,
}

impl FrameView {
    /// Describes a frame; `in_python_stack` tells whether any frame of its stack runs Python code.
    #[must_use]
    pub fn new(definitions: &Definitions, frame: Frame, in_python_stack: bool) -> Self {
        let file = match definitions.string(frame.file) {
            "??" => "",
            file => file,
        };
        Self {
            label: frame_label(definitions, frame),
            function: definitions.string(frame.function).to_owned(),
            file: file.to_owned(),
            line: frame.line,
            origin: frame_origin(definitions, frame, in_python_stack),
        }
    }

    /// Returns the frame as a line of text: the function, then file and line if they are known.
    #[must_use]
    pub fn to_text(&self) -> String {
        match (self.file.as_str(), self.line) {
            ("", _) => self.function.clone(),
            (file, 0) => format!("{}  {file}", self.function),
            (file, line) => format!("{}  {file}:{line}", self.function),
        }
    }
}

/// A row of a shown stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StackRow {
    /// A frame of the program's own code.
    Own(FrameView),
    /// Consecutive frames of libraries and of the allocator, innermost first; never empty. The page
    /// shows [`folded_label`] until the user expands it.
    Folded(Vec<FrameView>),
}

/// A complete call stack, innermost frame first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackView {
    /// Its rows, innermost first: own frames, and the runs of other frames between them.
    pub rows: Vec<StackRow>,
}

impl StackView {
    /// Returns all frames of a stack as rows; no row for the empty stack.
    #[must_use]
    pub fn new(definitions: &Definitions, stack: StackId) -> Self {
        let has_python = definitions.stack(stack).any(|frame| is_python_frame(definitions, frame));
        let mut rows = Vec::new();
        for frame in definitions.stack(stack) {
            let frame = FrameView::new(definitions, frame, has_python);
            match (frame.origin, rows.last_mut()) {
                (FrameOrigin::Own, _) => rows.push(StackRow::Own(frame)),
                (_, Some(StackRow::Folded(run))) => run.push(frame),
                _ => rows.push(StackRow::Folded(vec![frame])),
            }
        }
        Self { rows }
    }

    /// Returns all frames, innermost first.
    pub fn frames(&self) -> impl Iterator<Item = &FrameView> + '_ {
        self.rows.iter().flat_map(|row| match row {
            StackRow::Own(frame) => std::slice::from_ref(frame),
            StackRow::Folded(run) => run.as_slice(),
        })
    }

    /// Returns true if the stack has no frame.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the complete stack as text, one frame a line: `function  file:line`.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for frame in self.frames() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}", frame.to_text());
        }
        text
    }
}

/// Returns the name of a line of a file: the file without its directory and the line's number, as
/// in `train.py:66`.
pub(crate) fn line_name(definitions: &Definitions, file: StringId, line: u32) -> String {
    format!("{}:{line}", short_file_name(definitions.string(file)))
}

/// Returns a frame's label: file without directory, line and function, as in
/// `train.py:66 gpt_step`; `unknown frame` if nothing of it is known.
#[must_use]
pub fn frame_label(definitions: &Definitions, frame: Frame) -> String {
    let name = frame_name(definitions, frame, true);
    if name.is_empty() { "unknown frame".to_owned() } else { name }
}

/// Returns the label of a folded run of frames: `12 library frames`, or `5 torch frames` if all of
/// them belong to one library.
#[must_use]
pub fn folded_label(run: &[FrameView]) -> String {
    let library = |frame: &FrameView| library_name(&frame.function, &frame.file).map(str::to_owned);
    let first = run.first().and_then(library);
    let common = first.filter(|name| run.iter().all(|frame| library(frame).as_ref() == Some(name)));
    let name = common.as_deref().unwrap_or("library");
    match run.len() {
        1 => format!("1 {name} frame"),
        count => format!("{count} {name} frames"),
    }
}

/// Returns the name of the library that a frame belongs to, judged by the file's path or the C++
/// function's namespace; `None` if neither tells.
///
/// `site-packages/torch/nn/modules/linear.py` belongs to `torch`, as do the namespaces `at`, `c10`
/// and `torch`; `lib/python3.12/threading.py` belongs to `python`.
#[must_use]
pub fn library_name<'a>(function: &'a str, file: &'a str) -> Option<&'a str> {
    for packages in ["site-packages", "dist-packages"] {
        let after = file.rfind(packages).map(|at| &file[at + packages.len()..]);
        if let Some(path) = after.and_then(|path| path.strip_prefix(['/', '\\'])) {
            let component = path.split(['/', '\\']).next()?;
            return Some(component.strip_suffix(".py").unwrap_or(component));
        }
    }
    if file.contains("lib/python") || file.starts_with('<') {
        return Some("python");
    }
    let function = short_function_name(function);
    match function.split_once("::") {
        Some(("at" | "c10" | "torch" | "caffe2", _)) => Some("torch"),
        Some((namespace @ ("std" | "core" | "alloc"), _)) => Some(namespace),
        None if function.starts_with("_Py") || function.starts_with("Py") => Some("python"),
        _ if file.contains("/torch/") => Some("torch"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::test_definitions::TestSites;

    /// Outermost first.
    const OPTIMIZER_STEP: [(&str, u32, &str); 5] = [
        ("train.py", 151, "<module>"),
        ("/home/me/train.py", 80, "train"),
        ("/usr/lib/python3/dist-packages/torch/optim/optimizer.py", 533, "wrapper"),
        ("/usr/lib/python3/dist-packages/torch/optim/adam.py", 178, "_init_group"),
        ("??", 0, "at::empty(long, c10::Device)"),
    ];

    /// Returns the view of a stack of these frames, outermost first.
    fn view(frames: &[(&str, u32, &str)]) -> StackView {
        let mut sites = TestSites::default();
        let site = sites.stack(frames);
        StackView::new(sites.definitions(), sites.definitions().site(site).stack)
    }

    #[test]
    fn library_frames_are_folded_between_own_frames() {
        let view = view(&OPTIMIZER_STEP);
        let [StackRow::Folded(run), StackRow::Own(train), StackRow::Own(main)] = view.rows.as_slice() else {
            panic!("unexpected rows: {view:?}");
        };
        assert_eq!(folded_label(run), "3 torch frames");
        assert_eq!(run[0].label, "at::empty");
        assert_eq!(
            (train.label.as_str(), train.file.as_str(), train.line),
            ("train.py:80 train", "/home/me/train.py", 80)
        );
        assert_eq!(main.label, "train.py:151 <module>");
    }

    #[test]
    fn text_has_one_complete_line_for_each_frame() {
        let text = view(&OPTIMIZER_STEP).to_text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), OPTIMIZER_STEP.len());
        assert_eq!(lines[0], "at::empty(long, c10::Device)");
        assert_eq!(lines[3], "train  /home/me/train.py:80");
    }

    #[test]
    fn long_stacks_are_complete() {
        let frames: Vec<(&str, u32, &str)> = (1..=1000)
            .map(|line| if line % 10 == 0 { ("net.py", line, "f") } else { ("site-packages/torch/a.py", line, "g") })
            .collect();
        let view = view(&frames);
        assert_eq!(view.frames().count(), 1000);
        assert_eq!(view.rows.len(), 200);
        assert_eq!(view.to_text().lines().count(), 1000);
    }

    #[test]
    fn native_frames_are_own_only_without_python_frames() {
        let native = ("src/net.cpp", 3, "net::run()");
        assert!(matches!(view(&[native]).rows.as_slice(), [StackRow::Own(_)]));
        let mixed = view(&[("train.py", 1, "main"), native]);
        assert!(matches!(mixed.rows.as_slice(), [StackRow::Folded(_), StackRow::Own(_)]));
    }

    #[test]
    fn libraries_are_named_by_path_or_namespace() {
        assert_eq!(library_name("f", "C:\\Python\\Lib\\site-packages\\numpy\\core.py"), Some("numpy"));
        assert_eq!(library_name("f", "/opt/lib/python3.12/site-packages/six.py"), Some("six"));
        assert_eq!(library_name("run", "/usr/lib/python3.12/threading.py"), Some("python"));
        assert_eq!(library_name("at::native::add(at::Tensor const&)", "??"), Some("torch"));
        assert_eq!(library_name("_PyEval_EvalFrameDefault", "??"), Some("python"));
        assert_eq!(library_name("__clone", "??"), None);
        assert_eq!(folded_label(&[]), "0 library frames");
    }
}
