//! Every function of the page as a command with a name, a description and keys.
//!
//! Buttons, keys, the command list and scripts run these commands; the help is generated from this
//! list. A command may have arguments, separated by spaces: `seek 17`.

/// Where a command is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunsIn {
    /// On the page's main thread: the command concerns dialogs, files or the clipboard.
    Page,
    /// In the engine, a web worker: the command changes the picture or the panes.
    Engine,
}

/// A group of commands in the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Moving through time.
    Time,
    /// Showing and selecting a range of time.
    Range,
    /// Choosing blocks, segments and devices.
    Selection,
    /// Changing views and panes.
    Views,
    /// Opening files, search and help.
    Page,
}

impl Group {
    /// All groups, in the order of the help.
    pub const ALL: [Self; 5] = [Self::Time, Self::Range, Self::Selection, Self::Views, Self::Page];

    /// Returns the group's heading in the help, such as `Time range`.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Time => "Moment",
            Self::Range => "Time range",
            Self::Selection => "Selection",
            Self::Views => "Views",
            Self::Page => "Files, search and help",
        }
    }
}

/// A function of the page that a name or a key runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Text that runs the command, with arguments: `seek 17`.
    pub name: &'static str,
    /// Description, an imperative.
    pub title: &'static str,
    /// Keys that run the command, each in the notation of the browser's `KeyboardEvent.key`, after
    /// `Ctrl+` for Ctrl or Meta, and after `Shift+` unless Shift already shows in the key's letter
    /// or sign. For [`PREFIX_KEY`] followed by another key: both, with a space between.
    pub keys: &'static [&'static str],
    /// Group in the help.
    pub group: Group,
    /// Thread that executes the command.
    pub runs_in: RunsIn,
}

/// Creates a command that the engine executes.
const fn engine(name: &'static str, title: &'static str, keys: &'static [&'static str], group: Group) -> Command {
    Command { name, title, keys, group, runs_in: RunsIn::Engine }
}

/// Creates a command of [`Group::Page`] that the page executes.
const fn page(name: &'static str, title: &'static str, keys: &'static [&'static str]) -> Command {
    Command { name, title, keys, group: Group::Page, runs_in: RunsIn::Page }
}

/// Creates a command of [`Group::Views`] that the page executes.
const fn layout(name: &'static str, title: &'static str, keys: &'static [&'static str]) -> Command {
    Command { name, title, keys, group: Group::Views, runs_in: RunsIn::Page }
}

/// All commands of the page, in the order of the help.
pub const COMMANDS: &[Command] = &[
    engine("play", "Play or pause", &[" "], Group::Time),
    engine("step -1", "Go one event back", &["ArrowLeft"], Group::Time),
    engine("step 1", "Go one event forward", &["ArrowRight"], Group::Time),
    engine("mark -1", "Go to the previous mark", &["Shift+ArrowLeft"], Group::Time),
    engine("mark 1", "Go to the next mark", &["Shift+ArrowRight"], Group::Time),
    engine("step -100", "Go 100 events back", &["PageUp"], Group::Time),
    engine("step 100", "Go 100 events forward", &["PageDown"], Group::Time),
    engine("first", "Go to the first event", &["Home"], Group::Time),
    engine("last", "Go to the last event", &["End"], Group::Time),
    engine("peak", "Go to the peak of the allocated bytes and explain it", &["p"], Group::Time),
    engine("peak-reserved", "Go to the peak of the reserved bytes", &["P"], Group::Time),
    engine("failure -1", "Go to the previous out-of-memory error and explain it", &["e"], Group::Time),
    engine("failure 1", "Go to the next out-of-memory error and explain it", &["E"], Group::Time),
    engine("follow", "Follow the newest event", &["l"], Group::Time),
    engine("slower", "Play slower", &["<"], Group::Time),
    engine("faster", "Play faster", &[">"], Group::Time),
    engine("speed-kind", "Play the whole in a given time, as recorded, or by events per second", &["A"], Group::Time),
    engine("zoom-in", "Zoom in", &["w", "+", "="], Group::Range),
    engine("zoom-out", "Zoom out", &["s", "-"], Group::Range),
    engine("pan-left", "Move to earlier times", &["a"], Group::Range),
    engine("pan-right", "Move to later times", &["d"], Group::Range),
    engine("fit", "Show the selection, or the whole recording", &["f"], Group::Range),
    engine("fit-all", "Show the whole recording", &["F"], Group::Range),
    engine("range-start", "Begin the selected range at this moment", &["i"], Group::Range),
    engine("range-end", "End the selected range at this moment", &["u"], Group::Range),
    engine("range-clear", "Clear the selected range", &["r"], Group::Range),
    engine("range-selection", "Select the time range of the selected allocation, or of the span", &["M"], Group::Range),
    engine("axis", "Show time, events or steps on the axis", &["x"], Group::Range),
    engine("cut-idle", "Hide idle time: long times without events", &["X"], Group::Range),
    engine("select -1", "Select the previous block", &["["], Group::Selection),
    engine("select 1", "Select the next block", &["]"], Group::Selection),
    engine("select-segment -1", "Select the first block of the previous segment", &["{"], Group::Selection),
    engine("select-segment 1", "Select the first block of the next segment", &["}"], Group::Selection),
    engine("event -1", "Go to the previous event of the selection", &[","], Group::Selection),
    engine("event 1", "Go to the next event of the selection", &["."], Group::Selection),
    engine("deselect", "Clear the selection", &["Backspace"], Group::Selection),
    engine("device-next", "Show the next device", &["g"], Group::Selection),
    engine("view heatmap", "Show the heatmap", &["1"], Group::Views),
    engine("view allocations", "Show allocations as bands over time", &["2"], Group::Views),
    engine("view sites", "Show who holds the memory", &["3"], Group::Views),
    engine("view table", "Show memory by phase, line or operation", &["; t"], Group::Views),
    engine("view flame", "Show the call stacks as a flame graph", &["4"], Group::Views),
    engine("view fragmentation", "Show fragmentation over time", &["5"], Group::Views),
    engine("view peak", "Explain the peak", &["6"], Group::Views),
    engine("view steps", "Compare steps", &["7"], Group::Views),
    engine("view leaks", "Show what is never freed", &["8"], Group::Views),
    engine("view events", "List the events", &["9"], Group::Views),
    engine("view failures", "Explain out-of-memory errors", &["0"], Group::Views),
    engine("view temporaries", "Show what is freed at once", &["t"], Group::Views),
    engine("view list", "List allocations", &["b"], Group::Views),
    engine("view address", "Show all uses of the selected address", &["h"], Group::Views),
    engine("view segments", "List pools and segments", &["v"], Group::Views),
    engine("view compare", "Compare two recordings, devices or moments", &["j"], Group::Views),
    engine("view whatif", "Try other allocator settings", &["; w"], Group::Views),
    engine("find-problems", "Look for problems", &["; e"], Group::Views),
    engine("pin-moment", "Pin this moment, to compare others with it", &["J"], Group::Views),
    engine("view about", "Show program, settings and counters", &["q"], Group::Views),
    engine("swap", "Swap the panes", &["\\"], Group::Views),
    engine("split", "Show one pane or two", &["|"], Group::Views),
    engine("color", "Color by the next property", &["c"], Group::Views),
    engine("color-previous", "Color by the previous property", &["C"], Group::Views),
    engine("heatmap-zoom-in", "Zoom the heatmap in at the selection", &["W"], Group::Views),
    engine("heatmap-zoom-out", "Zoom the heatmap out", &["S"], Group::Views),
    engine("heatmap-fit", "Show the whole heatmap", &["n"], Group::Views),
    engine("layout", "Change the layout of the view", &["y"], Group::Views),
    engine("lanes", "Show or hide the lanes of the devices", &["R"], Group::Views),
    engine("stack", "Stack the timeline by the next property", &["k"], Group::Views),
    engine("copy-table", "Copy the table of the view", &["Y"], Group::Views),
    engine("copy-details", "Copy the details as text", &["D"], Group::Views),
    engine("copy-stack", "Copy the call stack in the details", &["K"], Group::Views),
    engine("save-picture png", "Save the picture of the view as PNG", &["I"], Group::Views),
    engine("save-picture svg", "Save the picture of the view as SVG", &["G"], Group::Views),
    engine("save-picture png timeline", "Save the timeline as PNG", &["; p"], Group::Views),
    engine("save-picture svg timeline", "Save the timeline as SVG", &["; g"], Group::Views),
    engine("reveal", "Scroll the list to this moment", &["V"], Group::Views),
    engine("undo", "Undo the last change of the view", &["z", "Ctrl+z"], Group::Views),
    engine("redo", "Redo the last change that was undone", &["Z", "Ctrl+Shift+z", "Ctrl+y"], Group::Views),
    layout("back", "Go back to the view before, like the browser (Alt+←)", &["; ArrowLeft"]),
    layout("forward", "Go forward again, like the browser (Alt+→)", &["; ArrowRight"]),
    layout("size timeline 5", "Make the timeline higher", &["Ctrl+Shift+ArrowDown"]),
    layout("size timeline -5", "Make the timeline lower", &["Ctrl+Shift+ArrowUp"]),
    layout("size panes 5", "Make the left pane wider", &["Ctrl+Shift+ArrowRight"]),
    layout("size panes -5", "Make the left pane narrower", &["Ctrl+Shift+ArrowLeft"]),
    layout("size details 3", "Make the details wider", &["Ctrl+Shift+Home"]),
    layout("size details -3", "Make the details narrower", &["Ctrl+Shift+End"]),
    layout("size reset", "Reset the sizes of timeline, panes and details", &["; 0"]),
    page("search", "Search or filter", &["/"]),
    page("commands", "Show all commands", &["Ctrl+Shift+p", ":"]),
    page("open", "Open a file", &["o"]),
    page("compare", "Open a second recording and compare", &["; c"]),
    page("save", "Save the recording", &["Ctrl+s"]),
    page("save-range", "Save the selected or visible range as a smaller recording", &["; r"]),
    page("save-redacted", "Save the recording without names", &["; n"]),
    page("save-range-redacted", "Save the selected or visible range without names", &["; N"]),
    page("start", "Show the recordings on this server, recent files and the gallery", &["O"]),
    page("recent 0", "Open the most recent file again", &["; o"]),
    page("forget", "Forget the recent files", &["; f"]),
    page("compare-served", "Compare the two recordings that are chosen in the list of this server", &["; v"]),
    page("example training-step", "Open an example: training steps of ResNet-50", &["; 1"]),
    page("example fragmentation", "Open an example: out of memory with memory free", &["; 2"]),
    page("example kept-outputs", "Open an example: outputs that keep their graph", &["; 3"]),
    page("copy-lines", "Copy the lines that record a PyTorch program", &["; l"]),
    page("install", "Install this page, to use it without a server", &["; i"]),
    page("editor", "Set the editor link template, to open files and lines", &["L"]),
    page("mark-now", "Mark this moment in the running program; in a file, select the range of the selection", &["m"]),
    page("theme", "Switch between light, dark and system colors", &["T"]),
    page("escape", "Close, or clear the selection", &["Escape"]),
    page("help", "Show all keys", &["?"]),
];

/// The first key of commands that two keys in a row run.
pub const PREFIX_KEY: &str = ";";

/// A key press, as the browser reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPress<'a> {
    /// The browser's name of the key (`KeyboardEvent.key`): `a`, `A`, `ArrowLeft`.
    pub key: &'a str,
    /// Whether Shift is held.
    pub shift: bool,
    /// Whether Ctrl or Meta is held.
    pub ctrl: bool,
}

impl KeyPress<'_> {
    /// Returns the key in the notation of [`Command::keys`].
    #[must_use]
    pub fn notation(&self) -> String {
        let mut notation = String::new();
        if self.ctrl {
            notation.push_str("Ctrl+");
        }
        // Shift already shows in a letter or sign: `A`, `?`.
        if self.shift && (self.ctrl || self.key.chars().count() > 1) {
            notation.push_str("Shift+");
        }
        if self.ctrl && self.key.chars().count() == 1 {
            notation.push_str(&self.key.to_lowercase());
        } else {
            notation.push_str(self.key);
        }
        notation
    }
}

/// Returns the command that a key runs, or `None`. If `is_second`, [`PREFIX_KEY`] was pressed
/// before the key.
#[must_use]
pub fn for_key(press: KeyPress<'_>, is_second: bool) -> Option<&'static Command> {
    let mut notation = press.notation();
    if is_second {
        notation = format!("{PREFIX_KEY} {notation}");
    }
    COMMANDS.iter().find(|command| command.keys.contains(&notation.as_str()))
}

/// Returns the commands whose name and description together contain every word of `text`, ignoring
/// case.
pub fn matching(text: &str) -> impl Iterator<Item = &'static Command> {
    let words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
    COMMANDS.iter().filter(move |command| {
        let described = format!("{} {}", command.name, command.title).to_lowercase();
        words.iter().all(|word| described.contains(word.as_str()))
    })
}

/// Converts a key from the notation of [`Command::keys`] to the text that the page shows: `Space`,
/// `←`, `Ctrl+S`, `; R`.
#[must_use]
pub fn key_name(key: &str) -> String {
    if let Some((first, second)) = key.split_once(' ').filter(|(first, _)| *first == PREFIX_KEY) {
        return format!("{first} {}", key_name(second));
    }
    let (modifiers, key) = match key.rsplit_once('+') {
        Some((modifiers, name)) if !name.is_empty() => (format!("{modifiers}+"), name),
        _ => (String::new(), key),
    };
    let name = match key {
        " " => "Space".to_owned(),
        "ArrowLeft" => "←".to_owned(),
        "ArrowRight" => "→".to_owned(),
        "ArrowUp" => "↑".to_owned(),
        "ArrowDown" => "↓".to_owned(),
        "Escape" => "Esc".to_owned(),
        "PageUp" => "Page up".to_owned(),
        "PageDown" => "Page down".to_owned(),
        key if key.chars().all(|letter| letter.is_ascii_uppercase()) && key.len() == 1 => format!("Shift+{key}"),
        key if key.len() == 1 => key.to_ascii_uppercase(),
        key => key.to_owned(),
    };
    modifiers + &name
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_and_keys_are_unique() {
        let names: BTreeSet<&str> = COMMANDS.iter().map(|command| command.name).collect();
        assert_eq!(names.len(), COMMANDS.len());
        assert!(COMMANDS.iter().all(|command| !command.keys.is_empty()), "every command has a key");
        let mut keys = BTreeSet::new();
        for key in COMMANDS.iter().flat_map(|command| command.keys) {
            assert!(keys.insert(key), "{key} runs two commands");
        }
    }

    #[test]
    fn keys_run_their_commands() {
        let check = |key: &str, shift: bool, ctrl: bool, expected: Option<&str>| {
            assert_eq!(for_key(KeyPress { key, shift, ctrl }, false).map(|command| command.name), expected, "{key}");
        };
        check(" ", false, false, Some("play"));
        check("ArrowLeft", false, false, Some("step -1"));
        check("ArrowLeft", true, false, Some("mark -1"));
        check("P", true, false, Some("peak-reserved"));
        check("P", true, true, Some("commands"));
        check("s", false, true, Some("save"));
        check("z", false, true, Some("undo"));
        check("Z", true, true, Some("redo"));
        check("y", false, true, Some("redo"));
        check("ArrowDown", true, true, Some("size timeline 5"));
        check("?", true, false, Some("help"));
        check("Q", true, false, None);
        check(PREFIX_KEY, false, false, None);
        let second = |key| for_key(KeyPress { key, shift: false, ctrl: false }, true).map(|command| command.name);
        assert_eq!((second("r"), second("x")), (Some("save-range"), None));
    }

    #[test]
    fn keys_have_readable_names() {
        let check = |key: &str, expected: &str| assert_eq!(key_name(key), expected);
        check(" ", "Space");
        check("Shift+ArrowLeft", "Shift+←");
        check("p", "P");
        check("P", "Shift+P");
        check("Ctrl+Shift+p", "Ctrl+Shift+P");
        check("+", "+");
        check("?", "?");
        check("; N", "; Shift+N");
        check(";", ";");
    }

    #[test]
    fn commands_are_found_by_words() {
        let found: Vec<&str> = matching("show fragm").map(|command| command.name).collect();
        assert_eq!(found, ["view fragmentation"]);
        assert_eq!(matching("").count(), COMMANDS.len());
    }
}
