//! The view "What if": the recorded requests under other allocator settings, beside the recording.

#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;

use std::cmp::Ordering;

use serde_json::Value;
use vramscope_draw::{Canvas, Theme};
use vramscope_trace::{ByteSize, Count, DeviceId};

use crate::comparison::{AxisUnit, CompareCache, ComparisonPicture, FailedRequest, Moments, side_color};
use crate::jobs::{Finished, Job, Jobs};
use crate::model::CompareWith;
use crate::ui::{Attribute, Element, Node, Tag, swatch};

use crate::command::{Command, Field, OptionChange, PageCommand};
use crate::view::{
    Cell, Context, Options, PictureFrame, Pixel, Registered, SharedCaches, StoredOptions, Table, TableBuilder, Topic,
    View, ViewContent, ViewInfo, choice, modes, search_field,
};

modes! {
    /// The settings that are simulated.
    Mode {
        /// The chosen settings, and then all that can help.
        All = "all", "all settings";
    }
}

/// The view "What if". Its filter has the settings, its number the most bytes that the allocator
/// may reserve.
#[derive(Default)]
pub struct WhatIf {
    options: Options<Mode>,
    picture: ComparisonPicture,
}

impl Registered for WhatIf {
    const INFO: ViewInfo = ViewInfo {
        picture_label: Some("Allocated and reserved bytes, recorded and simulated, over time, and both maps"),
        is_about_events: true,
        topic: Some(Topic::Settings),
        ..ViewInfo::new("whatif", "What if", ("Try other allocator settings", &["; w"]))
    };
}

/// Name of the view in commands and links.
const VIEW: &str = WhatIf::INFO.name;

impl View for WhatIf {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, _shared: &mut SharedCaches) -> ViewContent {
        content(context, &self.options, &mut self.picture.cache)
    }

    fn forget(&mut self) {
        self.picture = ComparisonPicture::default();
    }

    fn wanted_job(&self, device: DeviceId, jobs: &Jobs) -> Option<Job> {
        if device == DeviceId::HOST {
            return None;
        }
        let conf = Some(self.options.filter.trim().to_owned()).filter(|conf| !conf.is_empty());
        let run = Job::WhatIf { device, conf, capacity_bytes: self.options.number };
        let advice = Job::Advice { device, capacity_bytes: self.options.number };
        let is_known = |finished: &Option<Finished>, job: &Job| finished.as_ref().is_some_and(|one| one.job == *job);
        if !is_known(&jobs.what_if, &run) {
            return Some(run);
        }
        (self.options.mode == Some(Mode::All) && !is_known(&jobs.advice, &advice)).then_some(advice)
    }

    fn set_setting(&mut self, key: &str, value: &str, recorded: &str, jobs: &mut Jobs) -> Result<(), String> {
        match key {
            "all" => {
                self.options.mode = if self.options.mode.is_some() { None } else { Some(Mode::All) };
                // A run that was stopped begins again.
                drop(jobs.advice.take_if(|advice| advice.answer.is_err()));
            }
            "capacity" if value.trim().is_empty() => self.options.number = None,
            "capacity" => self.options.number = Some(value.parse::<ByteSize>().map_err(|error| error.to_string())?.0),
            _ => {
                let conf = if self.options.filter.is_empty() { recorded } else { &self.options.filter };
                self.options.filter = with_setting(conf, key, value);
            }
        }
        Ok(())
    }

    fn update_picture(&mut self, context: &Context<'_>, _shared: &mut SharedCaches, frame: &PictureFrame<'_>) -> bool {
        let is_known = update_sides(context, &mut self.picture.cache);
        self.picture.update(context, frame, is_known)
    }

    fn has_picture(&self) -> bool {
        self.picture.scene().is_some()
    }

    fn draw(&self, canvas: &mut Canvas<'_>, theme: &Theme) {
        self.picture.draw(canvas, theme);
    }

    fn hover(&mut self, _context: &Context<'_>, _shared: &mut SharedCaches, point: Option<Pixel>) -> Vec<String> {
        self.picture.values(point)
    }
}

/// The name of PyTorch's default settings.
const DEFAULTS: &str = "PyTorch's defaults";

/// An allocator setting with a menu: its key and the offered values; the menu also offers to omit
/// the setting.
type Menu = (&'static str, &'static [&'static str]);

/// The allocator settings with a menu in the view "What if".
const MENUS: [Menu; 4] = [
    ("expandable_segments", &["True"]),
    ("max_split_size_mb", &["32", "64", "128", "256", "512", "1024"]),
    ("garbage_collection_threshold", &["0.6", "0.7", "0.8", "0.9"]),
    ("roundup_power2_divisions", &["2", "4", "8", "16"]),
];

/// Splits `PYTORCH_CUDA_ALLOC_CONF` settings into keys and values, except at commas within
/// brackets.
fn pairs(conf: &str) -> Vec<(&str, &str)> {
    let mut depth = 0;
    let parts = conf.split(|letter| {
        depth += i32::from(letter == '[') - i32::from(letter == ']');
        letter == ',' && depth == 0
    });
    parts.filter_map(|part| part.split_once(':')).map(|(key, value)| (key.trim(), value.trim())).collect()
}

/// Returns settings in which `key` has the value `value`; an empty value removes the key. If no key
/// remains, the result states that expandable segments are off, the default.
fn with_setting(conf: &str, key: &str, value: &str) -> String {
    let mut all = pairs(conf);
    match all.iter_mut().find(|(known, _)| *known == key) {
        Some(known) => known.1 = value,
        None => all.push((key, value)),
    }
    all.retain(|(_, value)| !value.is_empty());
    if all.is_empty() {
        all.push((MENUS[0].0, "False"));
    }
    let parts: Vec<String> = all.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
    parts.join(",")
}

/// Returns the settings that the controls show: the user's choice, or the recorded settings.
fn shown_settings<'a>(context: &Context<'a>, options: &'a Options<Mode>) -> &'a str {
    if options.filter.is_empty() { &context.recording.info().alloc_conf } else { &options.filter }
}

/// Sets the two sides of the picture: the recording at the moment, and the simulated run at an
/// equal time. Returns false if there is no simulated run.
fn update_sides(context: &Context<'_>, sides: &mut CompareCache) -> bool {
    let is_simulated = context.comparison.second().is_some_and(|second| second.is_simulated);
    let run = CompareWith::Recording(context.device);
    is_simulated && sides.update_with(context, run, Moments::Now, AxisUnit::Time).is_ok()
}

/// Returns the content of the view "What if": the recorded requests under other allocator settings.
fn content(context: &Context<'_>, options: &Options<Mode>, sides: &mut CompareCache) -> ViewContent {
    let jobs = context.jobs;
    let mut content = ViewContent { hides_picture: !update_sides(context, sides), ..ViewContent::default() };
    content.controls = controls(shown_settings(context, options), options);
    let error = |finished: &Option<Finished>| finished.as_ref().and_then(|one| one.answer.as_ref().err().cloned());
    for message in error(&jobs.what_if).into_iter().chain(error(&jobs.advice)) {
        content.content.push(Element::text(Tag::P, message).with_class("filter-error").into());
    }
    let Some(answer) = jobs.what_if_answer() else {
        if jobs.what_if.is_none() {
            content = content.with_message("Reading the requests of the recording…");
        }
        return content;
    };
    content.content.extend(saving(answer).map(Node::from));
    let failed = sides.failed_request().map(|FailedRequest { requested, memory }| match memory {
        Some(_) => {
            format!("The request for {} that fails at this moment fits in the run.", ByteSize(requested))
        }
        None => format!("The request for {} that fails at this moment fails in the run, too.", ByteSize(requested)),
    });
    for note in failed.into_iter().chain(notes(answer)) {
        content.content.push(Element::text(Tag::P, note).with_class("summary").into());
    }
    let advice = jobs.advice.as_ref().and_then(|advice| advice.answer.as_ref().ok());
    // Scripts get everything that is known.
    let advice = advice.filter(|_| options.rows.limit.is_some() || options.mode == Some(Mode::All));
    content
        .content
        .extend(advice.map(|advice| Element::text(Tag::P, advice_text(advice)).with_class("summary").into()));
    if !content.hides_picture {
        let entry = |side: usize, text: &str| {
            let item = Element::new(Tag::Li).with_child(swatch(side_color(context.theme, side)));
            item.with_child(Element::text(Tag::Span, text))
        };
        let run = format!("B: {}", options.filter);
        let entries = [entry(0, "A: recorded"), entry(1, &run)];
        content.legend = vec![Element::new(Tag::Ul).with_class("compare-sides").with_children(entries).into()];
    }
    content.with_table(runs_table(context, options, answer, advice))
}

/// Returns the controls of the view "What if": a menu for each setting, all settings as text, the
/// capacity, and a button that tries all.
fn controls(conf: &str, options: &Options<Mode>) -> Vec<Node> {
    let chosen = pairs(conf);
    let mut controls: Vec<Node> = Vec::new();
    for (key, values) in MENUS {
        let current = chosen.iter().find(|(known, _)| *known == key).map_or("", |(_, value)| *value);
        let current = if current == "False" || current == "0" { "" } else { current };
        let other = (!current.is_empty() && !values.contains(&current)).then_some(current);
        let values = std::iter::once(("", "off")).chain(values.iter().copied().chain(other).map(|one| (one, one)));
        let values = values.map(|(value, text)| (value, if text == "True" { "on" } else { text }));
        controls.push(choice(key, Field::Setting(key), current, values).into());
    }
    let capacity = options.number.map(|bytes| ByteSize(bytes).to_string()).unwrap_or_default();
    let capacity = search_field("capacity", "Capacity", "capacity: as recorded", &capacity, Field::Setting("capacity"));
    let all = search_field("conf", "All settings", "all settings as text", &options.filter, Field::Filter(VIEW.into()));
    let is_all = options.mode == Some(Mode::All);
    let try_all = Element::button("Try all settings", Command::Setting("all".to_owned(), String::new()))
        .with(Attribute::Title, "Simulate every setting that can help, and rank them")
        .with(Attribute::AriaPressed, is_all.to_string());
    controls.extend([capacity, all, try_all].map(Node::from));
    controls
}

/// Returns what the simulated settings save, in large type, and a button that copies them; `None`
/// without a simulated run.
fn saving(answer: &Value) -> Option<Element> {
    let (recorded, simulated) = (&answer["recorded"], &answer["simulated"]);
    let number = |run: &Value, name: &str| run[name].as_u64();
    let (before, after) = (number(recorded, "peak_reserved_bytes")?, number(simulated, "peak_reserved_bytes")?);
    let failed = [number(simulated, "ooms").unwrap_or(0), number(recorded, "ooms").unwrap_or(0)];
    let requests = |count: u64| Count(count).of("failed request", "failed requests");
    let amount = match before.cmp(&after) {
        // Fewer failed requests matter more than bytes.
        _ if failed[0] < failed[1] => format!("avoids {}", requests(failed[1] - failed[0])),
        _ if failed[0] > failed[1] => format!("{} more", requests(failed[0] - failed[1])),
        Ordering::Greater => format!("saves {}", ByteSize(before - after)),
        Ordering::Equal => "saves nothing".to_owned(),
        Ordering::Less => format!("needs {} more", ByteSize(after - before)),
    };
    let mut text = format!("{} reserved at most instead of {}", ByteSize(after), ByteSize(before));
    if failed != [0; 2] {
        text += &format!("; {} instead of {}", requests(failed[0]), Count(failed[1]));
    }
    let conf = answer["alloc_conf"].as_str().unwrap_or_default().replace(' ', "");
    let line = format!("export PYTORCH_CUDA_ALLOC_CONF={conf}");
    let copy = Element::button("Copy the setting", Command::Page(PageCommand::Copy(line.clone())))
        .with(Attribute::Key, "setting")
        .with(Attribute::Title, line)
        .with_class("copy");
    let amount = Element::text(Tag::Span, amount).with_class("amount");
    let text = Element::text(Tag::Span, text);
    Some(Element::new(Tag::Div).with_class("saving").with_children([amount, text, copy]))
}

/// Returns notes for the user about the limitations of a simulated run.
fn notes(answer: &Value) -> Vec<String> {
    let mut notes = Vec::new();
    if answer["simulated"].is_null() {
        notes.push("Choose a setting: the recorded requests then run under it, beside the recording.".to_owned());
    }
    match answer["capacity_bytes"].as_u64() {
        Some(bytes) => notes.push(format!("The allocator may reserve {}.", ByteSize(bytes))),
        None => notes.push("The allocator may reserve any number of bytes.".to_owned()),
    }
    if let Some(event) = answer["unverified_from"].as_u64() {
        notes.push(format!(
            "From event {} on, the recorded allocator decided differently than the simulated one would.",
            Count(event)
        ));
    }
    if answer["stops_at_gap"] == true {
        notes.push("Events are missing; only those before are simulated.".to_owned());
    }
    notes
}

/// Returns the result of trying all settings as a sentence.
fn advice_text(advice: &Value) -> String {
    let mut text = match (advice["worthwhile"] == true, advice["tried"][0]["alloc_conf"].as_str()) {
        (true, Some(conf)) if !conf.is_empty() => format!("Best: {conf}."),
        (true, _) => "Best: PyTorch's defaults.".to_owned(),
        _ => "No setting is more than 1% better than the recorded ones.".to_owned(),
    };
    let smallest = &advice["smallest"];
    if let Some(bytes) = smallest["capacity_bytes"].as_u64() {
        text += &format!(" The program runs in {}", ByteSize(bytes));
        text += &smallest["card"].as_str().map(|card| format!(", on a GPU such as {card}.")).unwrap_or(".".to_owned());
    }
    text
}

/// Returns the table that compares runs: the recorded one, the simulated one on the screen, and all
/// runs that were tried.
fn runs_table(context: &Context<'_>, options: &Options<Mode>, answer: &Value, advice: Option<&Value>) -> Table {
    let recorded_conf = match context.recording.info().alloc_conf.as_str() {
        "" => DEFAULTS,
        conf => conf,
    };
    let recorded = Cell::labeled(format!("recorded: {recorded_conf}"), "recorded".into());
    let mut runs: Vec<(Cell, &str, &Value)> = vec![(recorded, "", &answer["recorded"])];
    if !answer["simulated"].is_null() {
        let conf = answer["alloc_conf"].as_str().unwrap_or_default();
        runs.push((conf.into(), conf, &answer["simulated"]));
    }
    for trial in advice.and_then(|advice| advice["tried"].as_array()).into_iter().flatten() {
        let conf = trial["alloc_conf"].as_str().unwrap_or_default();
        if runs.len() < 2 || conf != runs[1].1 {
            let (name, conf) = if conf.is_empty() { (DEFAULTS, "expandable_segments:False") } else { (conf, conf) };
            let name = match trial["needs_pytorch"].as_str() {
                Some(version) => Cell::labeled(format!("{name} (PyTorch {version} or newer)"), name.into()),
                None => name.into(),
            };
            runs.push((name, conf, &trial["predicted"]));
        }
    }
    let number = |figures: &Value, name: &str| figures[name].as_u64().unwrap_or(0);
    let is_recorded = |run: &Value| std::ptr::eq(run, &answer["recorded"]);
    TableBuilder::new(VIEW, "Figures of the recorded and of simulated runs", &runs)
        .text("alloc_conf", "settings", |(name, ..)| name.clone())
        .bar("peak_reserved_bytes", "peak reserved", |(.., run)| number(run, "peak_reserved_bytes"))
        .bytes("peak_allocated_bytes", "peak allocated", |(.., run)| number(run, "peak_allocated_bytes"))
        .count("ooms", "out of memory", |(.., run)| number(run, "ooms"))
        .count("retries", "retries", |(.., run)| number(run, "retries"))
        .count("device_allocations", "driver calls", |(.., run)| number(run, "device_allocations"))
        .number("peak_fragmentation", "peak fragmentation", |(.., run)| {
            Cell::Share(run["peak_fragmentation"].as_f64().unwrap_or(0.0))
        })
        .rows(|(_, conf, run), row| {
            row.color = Some(side_color(context.theme, usize::from(!is_recorded(run))));
            row.is_selected = *conf == options.filter;
        })
        .commands(|(_, conf, _)| Command::Set(VIEW.into(), OptionChange::Filter((*conf).to_owned())))
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_change_one_key() {
        let check = |conf: &str, key: &str, value: &str, expected: &str| {
            assert_eq!(with_setting(conf, key, value), expected, "{conf} {key} {value}");
        };
        check("", "max_split_size_mb", "64", "max_split_size_mb:64");
        check("expandable_segments:True", "max_split_size_mb", "64", "expandable_segments:True,max_split_size_mb:64");
        let divisions = "roundup_power2_divisions:[256:1,512:2],max_split_size_mb:64";
        check(divisions, "max_split_size_mb", "32", "roundup_power2_divisions:[256:1,512:2],max_split_size_mb:32");
        check(divisions, "roundup_power2_divisions", "", "max_split_size_mb:64");
        check("max_split_size_mb: 64", "max_split_size_mb", "", "expandable_segments:False");
    }
}
