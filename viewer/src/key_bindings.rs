//! The commands in the help and in the command list, and the keys that run them.

use std::borrow::Cow;

use crate::command::Command;
use crate::views::ViewId;

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

/// A command in the help and in the command list, with the keys that run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedCommand {
    /// Text of the command, with arguments: `step 100`.
    pub name: Cow<'static, str>,
    /// Description, an imperative.
    pub title: &'static str,
    /// Keys that run the command, each in the notation of the browser's `KeyboardEvent.key`, after
    /// `Ctrl+` for Ctrl or Meta, and after `Shift+` unless Shift already shows in the key's letter
    /// or sign. For [`PREFIX_KEY`] followed by another key: both, with a space between.
    pub keys: &'static [&'static str],
    /// Group in the help.
    pub group: Group,
}

impl ListedCommand {
    /// Returns the command.
    ///
    /// # Errors
    /// If there is no command with this text; a test finds out.
    pub fn command(&self) -> Result<Command, String> {
        Command::parse(&self.name)
    }
}

/// A row of [`COMMANDS`]: text, description and keys of a command, and its group.
type Row = (&'static str, &'static str, &'static [&'static str], Group);

/// The commands of the page in the order of the help, without those that show a view.
const COMMANDS: &[Row] = &[
    ("play", "Play or pause", &[" "], Group::Time),
    ("step -1", "Go one event back", &["ArrowLeft"], Group::Time),
    ("step 1", "Go one event forward", &["ArrowRight"], Group::Time),
    ("mark -1", "Go to the previous mark", &["Shift+ArrowLeft"], Group::Time),
    ("mark 1", "Go to the next mark", &["Shift+ArrowRight"], Group::Time),
    ("step -100", "Go 100 events back", &["PageUp"], Group::Time),
    ("step 100", "Go 100 events forward", &["PageDown"], Group::Time),
    ("first", "Go to the first event", &["Home"], Group::Time),
    ("last", "Go to the last event", &["End"], Group::Time),
    ("peak", "Go to the peak of the allocated bytes and explain it", &["p"], Group::Time),
    ("peak-reserved", "Go to the peak of the reserved bytes", &["P"], Group::Time),
    ("failure -1", "Go to the previous out-of-memory error and explain it", &["e"], Group::Time),
    ("failure 1", "Go to the next out-of-memory error and explain it", &["E"], Group::Time),
    ("follow", "Follow the newest event", &["l"], Group::Time),
    ("slower", "Play slower", &["<"], Group::Time),
    ("faster", "Play faster", &[">"], Group::Time),
    ("speed-kind", "Play the whole in a given time, as recorded, or by events per second", &["A"], Group::Time),
    ("zoom-in", "Zoom in", &["w", "+", "="], Group::Range),
    ("zoom-out", "Zoom out", &["s", "-"], Group::Range),
    ("pan-left", "Move to earlier times", &["a"], Group::Range),
    ("pan-right", "Move to later times", &["d"], Group::Range),
    ("fit", "Show the selection, or the whole recording", &["f"], Group::Range),
    ("fit-all", "Show the whole recording", &["F"], Group::Range),
    ("range-start", "Begin the selected range at this moment", &["i"], Group::Range),
    ("range-end", "End the selected range at this moment", &["u"], Group::Range),
    ("range-clear", "Clear the selected range", &["r"], Group::Range),
    ("range-selection", "Select the time range of the selected allocation, or of the span", &["M"], Group::Range),
    ("axis", "Show time, events or steps on the axis", &["x"], Group::Range),
    ("cut-idle", "Hide idle time: long times without events", &["X"], Group::Range),
    ("select -1", "Select the previous block", &["["], Group::Selection),
    ("select 1", "Select the next block", &["]"], Group::Selection),
    ("select-segment -1", "Select the first block of the previous segment", &["{"], Group::Selection),
    ("select-segment 1", "Select the first block of the next segment", &["}"], Group::Selection),
    ("event -1", "Go to the previous event of the selection", &[","], Group::Selection),
    ("event 1", "Go to the next event of the selection", &["."], Group::Selection),
    ("deselect", "Clear the selection", &["Backspace"], Group::Selection),
    ("device-next", "Show the next device", &["g"], Group::Selection),
    ("find-problems", "Look for problems", &["; e"], Group::Views),
    ("pin-moment", "Pin this moment, to compare others with it", &["J"], Group::Views),
    ("swap", "Swap the panes", &["\\"], Group::Views),
    ("split", "Show one pane or two", &["|"], Group::Views),
    ("color", "Color by the next property", &["c"], Group::Views),
    ("color-previous", "Color by the previous property", &["C"], Group::Views),
    ("enlarge", "Zoom the picture in at the selection", &["W"], Group::Views),
    ("reduce", "Zoom the picture out", &["S"], Group::Views),
    ("fit-picture", "Show the whole picture", &["n"], Group::Views),
    ("layout", "Change the layout of the view", &["y"], Group::Views),
    ("lanes", "Show or hide the lanes of the devices", &["R"], Group::Views),
    ("stack", "Stack the timeline by the next property", &["k"], Group::Views),
    ("copy-table", "Copy the table of the view", &["Y"], Group::Views),
    ("copy-details", "Copy the details as text", &["D"], Group::Views),
    ("copy-stack", "Copy the call stack in the details", &["K"], Group::Views),
    ("save-picture copy", "Copy the picture of the view", &["; k"], Group::Views),
    ("save-picture png", "Save the picture of the view as PNG", &["I"], Group::Views),
    ("save-picture svg", "Save the picture of the view as SVG", &["G"], Group::Views),
    ("save-picture png timeline", "Save the timeline as PNG", &["; p"], Group::Views),
    ("save-picture svg timeline", "Save the timeline as SVG", &["; g"], Group::Views),
    ("reveal", "Scroll the list to this moment", &["V"], Group::Views),
    ("undo", "Undo the last change of the view", &["z", "Ctrl+z"], Group::Views),
    ("redo", "Redo the last change that was undone", &["Z", "Ctrl+Shift+z", "Ctrl+y"], Group::Views),
    ("back", "Go back to the view before, like the browser (Alt+←)", &["; ArrowLeft"], Group::Views),
    ("forward", "Go forward again, like the browser (Alt+→)", &["; ArrowRight"], Group::Views),
    ("size timeline 5", "Make the timeline higher", &["Ctrl+Shift+ArrowDown"], Group::Views),
    ("size timeline -5", "Make the timeline lower", &["Ctrl+Shift+ArrowUp"], Group::Views),
    ("size panes 5", "Make the left pane wider", &["Ctrl+Shift+ArrowRight"], Group::Views),
    ("size panes -5", "Make the left pane narrower", &["Ctrl+Shift+ArrowLeft"], Group::Views),
    ("size details 3", "Make the details wider", &["Ctrl+Shift+Home"], Group::Views),
    ("size details -3", "Make the details narrower", &["Ctrl+Shift+End"], Group::Views),
    ("size reset", "Reset the sizes of timeline, panes and details", &["; 0"], Group::Views),
    ("search", "Search or filter", &["/"], Group::Page),
    ("commands", "Show all commands", &["Ctrl+Shift+p", ":"], Group::Page),
    ("open", "Open a file", &["o"], Group::Page),
    ("compare", "Open a second recording and compare", &["; c"], Group::Page),
    ("save", "Save the recording", &["Ctrl+s"], Group::Page),
    ("save-html", "Save the recording with this page as one HTML file", &["; h"], Group::Page),
    ("save-snapshot", "Save a PyTorch snapshot (.pickle), for memory_viz", &["; s"], Group::Page),
    ("copy-link", "Copy a link to this view", &["; u"], Group::Page),
    ("save-range", "Save the selected or visible range as a smaller recording", &["; r"], Group::Page),
    ("save-redacted", "Save the recording without names", &["; n"], Group::Page),
    ("save-range-redacted", "Save the selected or visible range without names", &["; N"], Group::Page),
    ("start", "Show the recordings on this server, recent files and the gallery", &["O"], Group::Page),
    ("recent 0", "Open the most recent file again", &["; o"], Group::Page),
    ("forget", "Forget the recent files", &["; f"], Group::Page),
    ("compare-served", "Compare the two recordings that are chosen in the list of this server", &["; v"], Group::Page),
    ("example training-step", "Open an example: training steps of ResNet-50", &["; 1"], Group::Page),
    ("example fragmentation", "Open an example: out of memory with memory free", &["; 2"], Group::Page),
    ("example kept-outputs", "Open an example: outputs that keep their graph", &["; 3"], Group::Page),
    ("copy-lines", "Copy the lines that record a PyTorch program", &["; l"], Group::Page),
    ("install", "Install this page, to use it without a server", &["; i"], Group::Page),
    ("editor", "Set the editor link template, to open files and lines", &["L"], Group::Page),
    (
        "mark-now",
        "Mark this moment in the running program; in a file, select the range of the selection",
        &["m"],
        Group::Page,
    ),
    ("theme", "Switch between light, dark and system colors", &["T"], Group::Page),
    ("escape", "Close, or clear the selection", &["Escape"], Group::Page),
    ("help", "Show all keys", &["?"], Group::Page),
];

/// Returns all commands, in the order of the help: the commands that show a view come first in
/// their group.
pub fn all() -> Vec<ListedCommand> {
    let listed = |&(name, title, keys, group): &Row| ListedCommand { name: name.into(), title, keys, group };
    let (before, after) = COMMANDS.split_at(COMMANDS.iter().position(|row| row.3 == Group::Views).unwrap_or(0));
    let views = ViewId::all().map(|view| {
        let (title, keys) = view.info().command;
        ListedCommand { name: format!("view {}", view.name()).into(), title, keys, group: Group::Views }
    });
    before.iter().map(listed).chain(views).chain(after.iter().map(listed)).collect()
}

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
    /// Returns the key in the notation of [`ListedCommand::keys`].
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
pub fn for_key(press: KeyPress<'_>, is_second: bool) -> Option<ListedCommand> {
    let mut notation = press.notation();
    if is_second {
        notation = format!("{PREFIX_KEY} {notation}");
    }
    all().into_iter().find(|command| command.keys.contains(&notation.as_str()))
}

/// Returns the commands whose name and description together contain every word of `text`, ignoring
/// case.
pub fn matching(text: &str) -> impl Iterator<Item = ListedCommand> {
    let words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
    all().into_iter().filter(move |command| {
        let described = format!("{} {}", command.name, command.title).to_lowercase();
        words.iter().all(|word| described.contains(word.as_str()))
    })
}

/// Converts a key from the notation of [`ListedCommand::keys`] to the text that the page shows:
/// `Space`, `←`, `Ctrl+S`, `; R`.
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
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|command| &*command.name).collect();
        assert_eq!(names.len(), all.len());
        let mut keys = BTreeSet::new();
        for command in &all {
            assert!(!command.keys.is_empty(), "{} has a key", command.name);
            assert_eq!(command.command().map(|command| command.to_string()), Ok(command.name.to_string()));
            for key in command.keys {
                assert!(keys.insert(*key), "{key} runs two commands");
            }
        }
    }

    #[test]
    fn menu_for_saving_has_commands_of_the_list() {
        let (_, menu) = include_str!("../../www/index.html").split_once("id=\"save-menu\"").expect("a menu");
        let (menu, _) = menu.split_once("</div>").expect("the menu's end");
        let names: Vec<&str> =
            menu.split("data-command=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(names.len() >= 8, "{names:?}");
        for name in names {
            assert!(all().iter().any(|command| command.name == name), "{name}");
        }
    }

    #[test]
    fn keys_run_their_commands() {
        let check = |key: &str, shift: bool, ctrl: bool, expected: Option<&str>| {
            let found = for_key(KeyPress { key, shift, ctrl }, false);
            assert_eq!(found.as_ref().map(|command| &*command.name), expected, "{key}");
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
        let second = |key| for_key(KeyPress { key, shift: false, ctrl: false }, true);
        assert_eq!((second("r").map(|command| command.name), second("x")), (Some("save-range".into()), None));
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
        let found: Vec<Cow<'_, str>> = matching("show fragm").map(|command| command.name).collect();
        assert_eq!(found, ["view fragmentation"]);
        assert_eq!(matching("").count(), all().len());
    }
}
