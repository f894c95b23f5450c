//! The texts of commands.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use vramscope_insight::group::GroupBy;
use vramscope_trace::DeviceId;

use super::Direction::{Back, Forward};
use super::{AllocationId, Command, OptionChange, PageCommand, ViewName};
use crate::bands::Band;
use crate::device_map::ColorBy;
use crate::editor_link::EditorTemplate;
use crate::model::{CompareWith, PeakKind};
use crate::open::SaveFormat;
use crate::pane_sizes::Splitter;
use crate::saved_picture::PictureFormat;
use crate::timeline::{AxisKind, Stacking};
use crate::ui::CommandText;
use crate::units::parse_count;

/// Commands of the start page, which take a text.
const START_PAGE: [&str; 6] = ["start", "recent", "forget", "example", "compare-served", "install"];

/// The commands without further arguments, with their texts.
static FIXED: [(&str, Command); 72] = [
    ("play", Command::Play),
    ("mark -1", Command::Mark(Back)),
    ("mark 1", Command::Mark(Forward)),
    ("first", Command::GoToEdge(Back)),
    ("last", Command::GoToEdge(Forward)),
    ("peak", Command::GoToPeak(PeakKind::Allocated)),
    ("peak-reserved", Command::GoToPeak(PeakKind::Reserved)),
    ("failure -1", Command::Failure(Back)),
    ("failure 1", Command::Failure(Forward)),
    ("follow", Command::Follow),
    ("load-all", Command::LoadAll),
    ("slower", Command::ChangeSpeed(Back)),
    ("faster", Command::ChangeSpeed(Forward)),
    ("speed-kind", Command::SpeedKind),
    ("zoom-in", Command::ZoomIn),
    ("zoom-out", Command::ZoomOut),
    ("pan-left", Command::Pan(Back)),
    ("pan-right", Command::Pan(Forward)),
    ("fit", Command::Fit),
    ("fit-all", Command::FitAll),
    ("range-start", Command::RangeStart),
    ("range-end", Command::RangeEnd),
    ("range-clear", Command::RangeClear),
    ("range-selection", Command::RangeOfSelection),
    ("cut-idle", Command::CutIdle),
    ("lanes", Command::Lanes),
    ("select -1", Command::SelectNeighbor(Back)),
    ("select 1", Command::SelectNeighbor(Forward)),
    ("select-segment -1", Command::SelectSegment(Back)),
    ("select-segment 1", Command::SelectSegment(Forward)),
    ("deselect-allocation", Command::DeselectAllocation),
    ("deselect", Command::Deselect),
    ("event -1", Command::Event(Back)),
    ("event 1", Command::Event(Forward)),
    ("device-next", Command::NextDevice),
    ("view search", Command::SearchView),
    ("address-uses", Command::AddressUses),
    ("swap", Command::Swap),
    ("split", Command::Split),
    ("color-previous", Command::PreviousColor),
    ("layout", Command::Layout),
    ("enlarge", Command::EnlargePicture),
    ("reduce", Command::ReducePicture),
    ("fit-picture", Command::FitPicture),
    ("pin-moment", Command::PinMoment),
    ("compare-close", Command::CloseSecond),
    ("find-problems", Command::FindProblems),
    ("save-findings", Command::SaveFindings),
    ("copy-details", Command::CopyDetails),
    ("copy-stack", Command::CopyStack),
    ("undo", Command::Undo),
    ("redo", Command::Redo),
    ("back", Command::Page(PageCommand::History(Back))),
    ("forward", Command::Page(PageCommand::History(Forward))),
    ("size reset", Command::Page(PageCommand::ResetSizes)),
    ("search", Command::Page(PageCommand::Search)),
    ("commands", Command::Page(PageCommand::Commands)),
    ("open", Command::Page(PageCommand::Open)),
    ("compare", Command::Page(PageCommand::Compare)),
    ("save", Command::Page(PageCommand::Save(SaveFormat::Recording))),
    ("save-html", Command::Page(PageCommand::Save(SaveFormat::Html))),
    ("save-snapshot", Command::Page(PageCommand::Save(SaveFormat::Snapshot))),
    ("copy-link", Command::Page(PageCommand::CopyLink)),
    ("save-range", Command::Page(PageCommand::SaveExcerpt(true, false))),
    ("save-redacted", Command::Page(PageCommand::SaveExcerpt(false, true))),
    ("save-range-redacted", Command::Page(PageCommand::SaveExcerpt(true, true))),
    ("copy-lines", Command::Page(PageCommand::CopyLines)),
    ("editor", Command::Page(PageCommand::Editor)),
    ("mark-now", Command::Page(PageCommand::MarkNow)),
    ("theme", Command::Page(PageCommand::Theme)),
    ("escape", Command::Page(PageCommand::Escape)),
    ("help", Command::Page(PageCommand::Help)),
];

impl Command {
    /// Parses the text of a command.
    ///
    /// # Errors
    /// If there is no such command, or an argument is invalid: a message for the user.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some((_, command)) = FIXED.iter().find(|(known, _)| *known == text) {
            return Ok(command.clone());
        }
        let (name, argument) = text.split_once(' ').unwrap_or((text, ""));
        let (first, rest) = argument.split_once(' ').unwrap_or((argument, ""));
        let view = || ViewName::Owned(first.to_owned());
        let or_active = || Some(ViewName::Owned(argument.to_owned())).filter(|view| !view.is_empty());
        let set = |change| Ok(Self::Set(view(), change));
        Ok(match name {
            "step" => Self::Step(number(name, argument)?),
            "seek" => Self::Seek(parse_count(argument)),
            "speed" => Self::Speed(number(name, argument)?),
            "range" => Self::Range(number(name, first)?, number(name, rest)?),
            "axis" if argument.is_empty() => Self::Axis(None),
            "axis" => Self::Axis(Some(
                AxisKind::from_name(argument)
                    .ok_or_else(|| format!("there is no axis of {argument:?}: choose time, events or steps"))?,
            )),
            "stack" if argument.is_empty() => Self::Stack(None),
            "stack" if argument == Stacking::COUNTERS => Self::Stack(Some(Stacking::Counters)),
            "stack" => Self::Stack(Some(Stacking::By(group_by(argument)?))),
            "band" => {
                let band = Band::ALL.into_iter().find(|band| band.id() == argument);
                Self::Band(band.ok_or_else(|| format!("there is no band called {argument:?}"))?)
            }
            "select-address" => Self::SelectAddress(address(name, argument)?),
            "select-allocation" => {
                let (since, moment) = rest.split_once(' ').unwrap_or((rest, ""));
                let (address, since) = (address(name, first)?, number(name, since)?);
                Self::SelectAllocation(AllocationId { address, since, moment: optional(name, moment)? })
            }
            "group" => {
                let (group, moment) = rest.split_once(' ').unwrap_or((rest, ""));
                Self::Group(group_by(first)?, number(name, group)?, optional(name, moment)?)
            }
            "light" if argument.is_empty() => Self::Light(None),
            "light" => Self::Light(Some(argument.parse()?)),
            "keep-light" => Self::KeepLight(argument.parse()?),
            "device" => Self::Device(DeviceId(number(name, argument)?)),
            "view" => Self::View(view()),
            "pane" => Self::Pane(usize::from(first == "1"), ViewName::Owned(rest.to_owned())),
            "by" => return set(OptionChange::By(group_by(rest)?)),
            "mode" => return set(OptionChange::Mode(rest.to_owned())),
            "filter" => return set(OptionChange::Filter(rest.to_owned())),
            "number" => return set(OptionChange::Number(optional(name, rest)?)),
            "sort" => return set(OptionChange::Sort(rest.to_owned())),
            "try" => Self::Try(argument.to_owned()),
            "what-if" => Self::Setting(first.to_owned(), rest.to_owned()),
            "step-span" => Self::StepSpan(Some(argument.to_owned()).filter(|name| !name.is_empty())),
            "scroll" => {
                let (row, count) = rest.split_once(' ').unwrap_or((rest, "0"));
                Self::Scroll(number(name, first)?, number(name, row)?, number(name, count)?)
            }
            "reveal" => Self::Reveal(or_active()),
            "color" if argument.is_empty() => Self::Color(None),
            "color" => Self::Color(Some(
                ColorBy::from_name(argument).ok_or_else(|| format!("there is no coloring by {argument:?}"))?,
            )),
            "compare-with" => Self::CompareWith(
                CompareWith::from_name(argument).ok_or_else(|| format!("cannot compare with {argument:?}"))?,
            ),
            "compare" => Self::CompareUrl(argument.to_owned()),
            "finding" => Self::Finding(number(name, argument)?),
            "copy-table" => Self::CopyTable(or_active()),
            "save-picture" => {
                let format = PictureFormat::from_name(first)
                    .ok_or_else(|| format!("pictures cannot be saved as {first:?}: use png, svg or copy"))?;
                Self::SavePicture(format, Some(ViewName::Owned(rest.to_owned())).filter(|view| !view.is_empty()))
            }
            "editor-template" if argument.is_empty() => Self::EditorTemplate(None),
            "editor-template" => Self::EditorTemplate(Some(EditorTemplate::parse(argument)?)),
            "copy" => Self::Page(PageCommand::Copy(argument.to_owned())),
            "size" => {
                let splitter = Splitter::from_name(first).ok_or_else(|| format!("there is no splitter {first:?}"))?;
                Self::Page(PageCommand::Size(splitter, number(name, rest)?))
            }
            _ => match START_PAGE.into_iter().find(|known| *known == name) {
                Some(name) => Self::Page(PageCommand::StartPage(name, argument.to_owned())),
                None => return Err(format!("there is no command called {text:?}")),
            },
        })
    }
}

/// Parses a command's argument as a number; the error names the command.
fn number<T: FromStr>(command: &str, argument: &str) -> Result<T, String> {
    argument.parse().map_err(|_| format!("{command}: {argument:?} is not a number"))
}

/// Parses a command's argument as a number; an empty one is `None`.
fn optional(command: &str, argument: &str) -> Result<Option<u64>, String> {
    if argument.is_empty() { Ok(None) } else { number(command, argument).map(Some) }
}

/// Parses a command's argument as an address, in hexadecimal with `0x` or in decimal.
fn address(command: &str, argument: &str) -> Result<u64, String> {
    match argument.strip_prefix("0x") {
        Some(digits) => {
            u64::from_str_radix(digits, 16).map_err(|_| format!("{command}: {argument:?} is not an address"))
        }
        None => number(command, argument),
    }
}

/// Parses the name of a grouping.
fn group_by(name: &str) -> Result<GroupBy, String> {
    GroupBy::from_name(name).ok_or_else(|| format!("there is no grouping by {name:?}"))
}

impl Display for Command {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some((text, _)) = FIXED.iter().find(|(_, command)| command == self) {
            return f.write_str(text);
        }
        let optional = |number: &Option<u64>| number.map(|number| format!(" {number}")).unwrap_or_default();
        match self {
            Self::Step(events) => write!(f, "step {events}"),
            Self::Seek(event) => write!(f, "seek{}", optional(event)),
            Self::Speed(index) => write!(f, "speed {index}"),
            Self::Range(from, to) => write!(f, "range {from} {to}"),
            Self::Axis(axis) => write!(f, "axis{}", named(axis.map(AxisKind::name))),
            Self::Stack(stacking) => write!(f, "stack{}", named(stacking.map(Stacking::name))),
            Self::Band(band) => write!(f, "band {}", band.id()),
            Self::SelectAddress(address) => write!(f, "select-address {address:#x}"),
            Self::SelectAllocation(AllocationId { address, since, moment }) => {
                write!(f, "select-allocation {address:#x} {since}{}", optional(moment))
            }
            Self::Group(by, group, moment) => write!(f, "group {} {group}{}", by.name(), optional(moment)),
            Self::Light(None) => f.write_str("light"),
            Self::Light(Some(memory)) => write!(f, "light {memory}"),
            Self::KeepLight(memory) => write!(f, "keep-light {memory}"),
            Self::Device(device) => write!(f, "device {}", device.0),
            Self::View(view) => write!(f, "view {view}"),
            Self::Pane(pane, view) => write!(f, "pane {pane} {view}"),
            Self::Set(view, change) => match change {
                OptionChange::By(by) => write!(f, "by {view} {}", by.name()),
                OptionChange::Mode(mode) => write!(f, "mode {view} {mode}"),
                OptionChange::Filter(filter) => write!(f, "filter {view} {filter}"),
                OptionChange::Number(number) => write!(f, "number {view}{}", optional(number)),
                OptionChange::Sort(column) => write!(f, "sort {view} {column}"),
            },
            Self::Try(settings) => write!(f, "try {settings}"),
            Self::Setting(key, value) => write!(f, "what-if {key}{}", named(non_empty(value))),
            Self::StepSpan(name) => write!(f, "step-span{}", named(name.as_deref())),
            Self::Scroll(pane, first, count) => write!(f, "scroll {pane} {first} {count}"),
            Self::Reveal(view) => write!(f, "reveal{}", named(view.as_deref())),
            Self::Color(color_by) => write!(f, "color{}", named(color_by.map(ColorBy::name))),
            Self::CompareWith(with) => write!(f, "compare-with {}", with.name()),
            Self::CompareUrl(url) => write!(f, "compare {url}"),
            Self::Finding(index) => write!(f, "finding {index}"),
            Self::CopyTable(view) => write!(f, "copy-table{}", named(view.as_deref())),
            Self::SavePicture(format, view) => {
                write!(f, "save-picture {}{}", format.name(), named(view.as_deref()))
            }
            Self::EditorTemplate(template) => {
                write!(f, "editor-template{}", named(template.as_ref().map(EditorTemplate::text)))
            }
            Self::Page(PageCommand::Copy(text)) => write!(f, "copy {text}"),
            Self::Page(PageCommand::Size(splitter, percent)) => write!(f, "size {} {percent}", splitter.name()),
            Self::Page(PageCommand::StartPage(name, argument)) => {
                write!(f, "{name}{}", named(non_empty(argument)))
            }
            // All others are in the table above.
            _ => Ok(()),
        }
    }
}

/// Returns an argument, or `None` if it is empty.
fn non_empty(argument: &str) -> Option<&str> {
    Some(argument).filter(|argument| !argument.is_empty())
}

/// Returns an optional argument with a space before it.
fn named(argument: Option<&str>) -> String {
    argument.map(|argument| format!(" {argument}")).unwrap_or_default()
}

impl From<Command> for String {
    fn from(command: Command) -> Self {
        command.to_string()
    }
}

impl TryFrom<String> for Command {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<Command> for CommandText {
    fn from(command: Command) -> Self {
        Self(command.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_parsed_to_the_command_that_writes_them() {
        let texts = [
            "step -100",
            "seek 17",
            "seek",
            "speed 3",
            "range 1 9",
            "axis",
            "axis steps",
            "stack",
            "stack counters",
            "stack site",
            "band others",
            "select-address 0x7f00",
            "select-allocation 0x10 3",
            "select-allocation 0x10 3 9",
            "group site 3",
            "group line 3 14",
            "light",
            "light stuck",
            "keep-light category activation",
            "device 2",
            "view flame",
            "view search",
            "pane 1 flame",
            "by flame line",
            "mode flame peak-unfolded",
            "filter list a b >1MiB",
            "filter list ",
            "number flame",
            "number flame 12",
            "sort list bytes",
            "what-if max_split_size_mb 64",
            "what-if all",
            "try expandable_segments:True",
            "step-span",
            "step-span my step",
            "scroll 0 10 50",
            "reveal",
            "reveal events",
            "color",
            "color category",
            "compare-with recording 0",
            "compare http://x/y.vram",
            "finding 2",
            "copy-table",
            "copy-table list",
            "save-picture png",
            "save-picture svg timeline",
            "save-picture copy device",
            "editor-template",
            "copy some text",
            "size timeline -5",
            "recent 0",
            "start",
            "example training-step",
        ];
        for text in texts.into_iter().chain(FIXED.iter().map(|(text, _)| *text)) {
            let command = Command::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(command.to_string(), text, "{command:?}");
        }
        assert_eq!(Command::parse("seek 1,234"), Ok(Command::seek(1234)));
        assert_eq!(Command::parse("seek x"), Ok(Command::Seek(None)));
    }

    #[test]
    fn invalid_texts_name_what_is_wrong() {
        for (text, expected) in [
            ("nothing", "there is no command called \"nothing\""),
            ("", "there is no command called \"\""),
            ("step x", "step: \"x\" is not a number"),
            ("by list nothing", "there is no grouping by \"nothing\""),
            ("axis x", "there is no axis of \"x\": choose time, events or steps"),
            ("select-allocation 0xg 1", "select-allocation: \"0xg\" is not an address"),
            ("save-picture gif", "pictures cannot be saved as \"gif\": use png, svg or copy"),
        ] {
            assert_eq!(Command::parse(text), Err(expected.to_owned()), "{text}");
        }
    }
}
