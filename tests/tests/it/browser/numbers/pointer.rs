//! Uses the pointer on the page's pictures, and reads what the page then shows as text.

use serde::Deserialize;
use serde_json::{Value, json};
use vramscope_tests::Page;

/// Number of points in one script: a browser stops scripts that take long.
const POINTS_PER_SCRIPT: usize = 100;

/// What the pointer does at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gesture {
    /// Moves there.
    Hover,
    /// Presses and releases the button. After what the page shows has been read, Escape clears what
    /// the click has selected.
    Click,
}

/// Width and height of a picture, in pixels, and the scale of what is in it.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Size {
    pub(super) width: i32,
    pub(super) height: i32,
    /// Size of the page's font in pixels.
    font: f32,
}

impl Size {
    /// Returns a length in pixels; `units` is that at the font size of 13 pixels.
    pub(super) fn px(self, units: i32) -> i32 {
        (units as f32 * self.font / 13.0).round() as i32
    }
}

/// What the page shows after a gesture.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Shown {
    /// The moment.
    pub(super) event: u64,
    /// The selected address.
    pub(super) selection: Option<String>,
    /// The lines of text under the pointer on the picture of a pane.
    pub(super) lines: Vec<String>,
    /// The first line of the timeline's tooltip; empty without a tooltip.
    pub(super) tooltip: String,
    /// The rows of the tooltip: names and values.
    pub(super) tooltip_rows: Vec<(String, String)>,
    /// The heading of the details panel.
    pub(super) heading: String,
    /// The sections of the details panel: names and values.
    pub(super) sections: Vec<Vec<(String, String)>>,
    /// The summary above the table of the view.
    pub(super) summary: String,
}

impl Shown {
    /// Returns the rest of the line of text under the pointer that begins with `start`.
    pub(super) fn line(&self, start: &str) -> Option<&str> {
        self.lines.iter().find_map(|line| line.strip_prefix(start))
    }

    /// Returns the value of a name in a section of the details panel; empty if it has none.
    pub(super) fn value(&self, section: usize, name: &str) -> &str {
        let rows = self.sections.get(section).into_iter().flatten();
        rows.into_iter().find(|row| row.0 == name).map_or("", |row| &row.1)
    }
}

/// Makes the functions that find the canvas of a view, read the page's text, and wait until
/// everything so far is on the screen.
const FUNCTIONS: &str = "
    const canvasOf = view => view === 'timeline'
        ? document.getElementById('timeline') : document.querySelector(`.pane[data-view=${view}] canvas`);
    const text = element => (element?.textContent ?? '').replaceAll('\\u00a0', ' ').trim();
    const drawn = () => window.vramscope.select();
    const read = view => {
        const { event, view: { selection, pointer_text } } = window.vramscope.state();
        const tooltip = document.getElementById('timeline-tooltip');
        const rows = [...tooltip.querySelectorAll('tr')];
        const details = document.getElementById('details');
        return {
            event,
            selection,
            lines: pointer_text.map(line => line.replaceAll('\\u00a0', ' ')),
            tooltip: tooltip.hidden ? '' : text(tooltip.querySelector('.title')),
            tooltip_rows: rows.map(row => [text(row.querySelector('th')), text(row.querySelector('td'))]),
            heading: text(details.querySelector('h2.subject')?.cloneNode(true)),
            sections: [...details.querySelectorAll('dl')].map(list =>
                [...list.querySelectorAll('dt')].map(name => [text(name), text(name.nextElementSibling)])),
            summary: text(document.querySelector(`.pane[data-view=${view}] .summary`)),
        };
    };";

/// Returns the size of the picture of a view, or of the timeline.
pub(super) fn picture_size(page: Page<'_>, view: &str) -> Size {
    let script = "
        const { width, height } = canvasOf(arguments[0]);
        return { width, height, font: parseFloat(getComputedStyle(document.documentElement).fontSize) };";
    page.json_of(&format!("{FUNCTIONS} {script}"), &[json!(view)])
}

/// Makes a gesture at each of the points of a view's picture, and returns what the page then shows.
pub(super) fn point(page: Page<'_>, view: &str, gesture: Gesture, points: &[(i32, i32)]) -> Vec<Shown> {
    let kinds: &[&str] = match gesture {
        Gesture::Hover => &["pointermove"],
        Gesture::Click => &["pointerdown", "pointerup"],
    };
    let script = "
        const [view, kinds, points] = arguments;
        const canvas = canvasOf(view);
        const all = [];
        for (const [x, y] of points) {
            const box = canvas.getBoundingClientRect();
            const init = {
                clientX: box.left + x + 0.25, clientY: box.top + y + 0.25, pointerId: 1, pointerType: 'mouse',
                bubbles: true, cancelable: true, composed: true,
            };
            for (const kind of kinds) canvas.dispatchEvent(new PointerEvent(kind, init));
            await drawn();
            // The text under the pointer may follow a click a frame later.
            if (kinds.length > 1) await drawn();
            all.push(read(view));
            if (kinds.length > 1) {
                canvas.dispatchEvent(new PointerEvent('pointerleave', init));
                document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }));
                await drawn();
            }
        }
        canvas.dispatchEvent(new PointerEvent('pointerleave', { pointerId: 1, pointerType: 'mouse' }));
        await drawn();
        return all;";
    let script = format!("{FUNCTIONS} {script}");
    let part =
        |points: &[(i32, i32)]| -> Vec<Shown> { page.json_of(&script, &[json!(view), json!(kinds), json!(points)]) };
    points.chunks(POINTS_PER_SCRIPT).flat_map(part).collect()
}

/// Shows a view in a pane, and the recording's history has been read.
pub(super) fn show(page: Page<'_>, view: &str) {
    let script = "
        await window.vramscope.show(arguments[0]);
        await window.vramscope.rows('allocations', { limit: 1, mode: 'all' });
        // A pane that appears is measured in the next frame.
        for (let frame = 0; frame < 4; frame++) await drawn();
        return null;";
    let _: Value = page.json_of(&format!("{FUNCTIONS} {script}"), &[json!(view)]);
}

/// Chooses a value of a field with a command: in the bar above the timeline, or in a view's pane.
pub(super) fn choose(page: Page<'_>, view: &str, command: &str, value: &str) {
    let script = "
        const [view, command, value] = arguments;
        const root = view === 'timeline'
            ? document.getElementById('timeline-bar') : document.querySelector(`.pane[data-view=${view}]`);
        const field = root.querySelector(`select[data-command='${command}']`);
        if (!field) throw new Error(`no field for ${command}: ${text(root).slice(0, 400)}`);
        field.value = value;
        field.dispatchEvent(new Event('change', { bubbles: true }));
        for (let frame = 0; frame < 4; frame++) await drawn();
        return null;";
    let _: Value = page.json_of(&format!("{FUNCTIONS} {script}"), &[json!(view), json!(command), json!(value)]);
}

/// Shows all idle time on the timeline, which hides it once a recording that is mostly idle has
/// been read.
pub(super) fn show_idle_time(page: Page<'_>) {
    let script = "
        await window.vramscope.rows('allocations', { limit: 1 });
        for (let frame = 0; frame < 4; frame++) await drawn();
        document.querySelector('#timeline-bar [data-command=cut-idle][aria-pressed=true]')?.click();
        for (let frame = 0; frame < 4; frame++) await drawn();
        return null;";
    let _: Value = page.json_of(&format!("{FUNCTIONS} {script}"), &[]);
}

/// Reads what the page shows, without a gesture.
pub(super) fn read(page: Page<'_>, view: &str) -> Shown {
    page.json_of(&format!("{FUNCTIONS} await drawn(); return read(arguments[0]);"), &[json!(view)])
}

/// Returns the texts of the cells of a view's table, as far as they are on the page.
pub(super) fn table_cells(page: Page<'_>, view: &str) -> Vec<Vec<String>> {
    let script = "
        await drawn();
        const rows = [...document.querySelectorAll(`.pane[data-view=${arguments[0]}] tbody tr`)];
        return rows.map(row => [...row.querySelectorAll('td')].map(text));";
    page.json_of(&format!("{FUNCTIONS} {script}"), &[json!(view)])
}

/// Returns the names and bytes of the entries of a view's legend that have both.
pub(super) fn legend(page: Page<'_>, view: &str) -> Vec<(String, String)> {
    let script = "
        await drawn();
        const entries = [...document.querySelectorAll(`.pane[data-view=${arguments[0]}] .legend li`)];
        return entries.filter(entry => entry.querySelector('.bytes'))
            .map(entry => [text(entry.querySelector('.name')), text(entry.querySelector('.bytes'))]);";
    page.json_of(&format!("{FUNCTIONS} {script}"), &[json!(view)])
}

/// Returns the texts of elements, by their ids; those of fields are their values.
pub(super) fn texts<const N: usize>(page: Page<'_>, ids: [&str; N]) -> [String; N] {
    let script = "
        await drawn();
        return arguments[0].map(id => {
            const element = document.getElementById(id);
            return element.value ?? text(element);
        });";
    let found: Vec<String> = page.json_of(&format!("{FUNCTIONS} {script}"), &[json!(ids.to_vec())]);
    found.try_into().unwrap_or_else(|found: Vec<String>| panic!("{} texts", found.len()))
}

/// Parses a size such as `1.25 GiB`; the part of a text after a point in the middle (`1 MiB ·
/// 1,048,576 B`) is exact. `None` if it is no size.
fn parse_size(text: &str) -> Option<f64> {
    let (number, unit) = text.rsplit('·').next()?.trim().split_once(' ')?;
    let power = ["B", "KiB", "MiB", "GiB", "TiB"].iter().position(|known| *known == unit)?;
    let number: f64 = number.replace(',', "").parse().ok()?;
    Some(number * 1024_f64.powi(power as i32))
}

/// Returns the size that a text names.
pub(super) fn size(text: &str) -> f64 {
    parse_size(text).unwrap_or_else(|| panic!("{text:?} is not a size"))
}

/// Returns true if a text is a number of bytes, to three digits.
pub(super) fn is_size(text: &str, bytes: u64) -> bool {
    parse_size(text).is_some_and(|size| (size - bytes as f64).abs() <= bytes as f64 * 0.0051)
}

/// Parses a whole number with thousands separators, after a word such as `event`.
pub(super) fn whole(text: &str) -> u64 {
    let digits = text.rsplit(' ').next().unwrap_or_default().replace(',', "");
    digits.parse().unwrap_or_else(|_| panic!("{text:?} is not a whole number"))
}

/// Returns true if a text such as `37.4%` is a share, to its last digit.
pub(super) fn is_share(text: &str, share: f64) -> bool {
    let number = text.strip_suffix('%').and_then(|number| number.trim_start_matches(['<', '>']).parse::<f64>().ok());
    number.is_some_and(|number| (number - share * 100.0).abs() <= 0.51)
}
