//! Answers questions about memory with the page and with PyTorch's memory_viz, in one run on one
//! machine: how many actions, how long, and what can be found. `docs/memory_viz.md` has the result.
//!
//! Needs a folder with memory_viz, which is part of PyTorch and not of this repository:
//!
//! ```sh
//! cd FOLDER    # with MemoryViz.js and process_alloc_data.js of PyTorch's torch/utils/viz
//! npm install d3@7
//! cargo run -p vramscope-tests --bin memory_viz -- FOLDER [PICTURES]
//! ```
//!
//! `PICTURES` is a folder for screenshots. The program writes `index.html` into `FOLDER`, which
//! tells the browser to load d3 from there.
//!
//! The time begins when the file is chosen on the loaded page, and ends when the answer is on the
//! screen. It contains no thinking and no searching by eye: the program knows where to point. An
//! action is a click, a key, a typed query, or pointing at something to read it; a choice from a
//! menu is two.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vramscope_formats::{Limits, unpack};
use vramscope_tests::fixtures::Fixture;
use vramscope_tests::{Browser, ColorScheme, Page, Picture, Program, Window};

/// Times that each walk is repeated.
const RUNS: usize = 5;
/// Longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Size of the page.
const WINDOW: Window = Window { width: 1280, height: 800, scale: 1, colors: ColorScheme::Light };
/// Where memory_viz gets d3 from.
const CDN: &str = "https://cdn.jsdelivr.net/npm/";
/// WebDriver's code of the Enter key.
const ENTER: char = '\u{e007}';

/// An action of a walk.
enum Action {
    /// Presses a key.
    Press(char),
    /// Types a query into the field that has the focus.
    Type(&'static str),
    /// Clicks the first element that an XPath expression selects.
    Click(&'static str),
    /// Runs a script that does what a user does; it counts as this many actions.
    Run(usize, &'static str),
}

use Action::{Click, Press, Run, Type};

/// A question with a walk to its answer.
struct Walk {
    /// Name, also of the screenshot.
    name: &'static str,
    /// The snapshot.
    snapshot: &'static str,
    actions: &'static [Action],
    /// Parts of the answer, in the text on the page.
    answer: &'static [&'static str],
}

/// The walks on vramscope's page.
const VRAMSCOPE: [Walk; 5] = [
    Walk {
        name: "peak",
        snapshot: "gpt_varlen",
        actions: &[Press('p')],
        answer: &["3.93 GiB", "train.py:47", "1.71 GiB", "43.5%"],
    },
    Walk {
        name: "out-of-memory",
        snapshot: "oom_frag",
        actions: &[Press('0')],
        answer: &["61.4 MiB failed by fragmentation", "In the way"],
    },
    Walk {
        name: "address",
        snapshot: "gpt_varlen",
        actions: &[Press('h'), Press('/'), Type("0x7f34c0ec0000")],
        answer: &["188 allocations used 0x7f34c0ec0000"],
    },
    Walk {
        name: "fragmentation",
        snapshot: "gpt_varlen",
        actions: &[Press('5'), Click("//button[normalize-space()='event 196']")],
        answer: &["Fragmentation first passed 80% at event 196", "After event 196 of"],
    },
    Walk {
        name: "private-pools",
        snapshot: "graphs",
        actions: &[Press('v')],
        answer: &["Private pool (1, 0)", "37 MiB live in 3 blocks"],
    },
];

/// The walks with memory_viz.
const MEMORY_VIZ: [Walk; 4] = [
    Walk { name: "peak", snapshot: "gpt_varlen", actions: &[Run(1, POINT_AT_PEAK)], answer: &["Size: ", "train.py:"] },
    Walk {
        name: "out-of-memory",
        snapshot: "oom_frag",
        actions: &[
            Run(2, "choose('Allocator State History')"),
            // The browser's own search in the page.
            Run(
                1,
                "[...document.querySelectorAll('pre')].find(line => line.textContent.startsWith('OOM')).scrollIntoView()",
            ),
            Run(1, CLICK_FAILURE),
        ],
        answer: &["reserved)\nOOM (requested 61.4MiB", "train.py:110:oom_frag"],
    },
    Walk {
        name: "address",
        snapshot: "gpt_varlen",
        actions: &[Run(
            2,
            "const field = plot().querySelector('input[placeholder*=address]');
            field.value = '7f34c0ec0000';
            field.dispatchEvent(new Event('input'));",
        )],
        answer: &["match"],
    },
    Walk {
        name: "private-pools",
        snapshot: "graphs",
        actions: &[
            Run(2, "choose('Allocated Memory (incl. Private Pools)')"),
            Run(1, "pointAt(bands().filter(band => String(band.__data__.elem).startsWith('pool:'))[0])"),
        ],
        answer: &["Private Pool ("],
    },
];

/// Functions of a user of memory_viz.
const FUNCTIONS: &str = "
    const plot = () => [...document.querySelectorAll('body > div')].filter(div => div.offsetHeight > 100).at(-1);
    const bands = () => [...plot().querySelectorAll('polygon')].filter(band => band.__data__);
    const pointAt = element => element.dispatchEvent(new MouseEvent('mouseover', { bubbles: true }));
    const choose = name => {
        const menu = [...document.querySelectorAll('select')].find(menu => menu.textContent.includes(name));
        menu.value = name;
        menu.dispatchEvent(new Event('change'));
    };
    const sizeAt = ({ size }, at) => Array.isArray(size) ? size[at] : size;
    const top = data => data.offsets.map((offset, at) => offset + sizeAt(data, at));
    const atPeak = () => {
        let peak = 0, when = 0;
        for (const { __data__: data } of bands()) {
            top(data).forEach((bytes, at) => { if (bytes > peak) [peak, when] = [bytes, data.timesteps[at]]; });
        }
        return bands().filter(({ __data__: { timesteps } }) => timesteps[0] <= when && when <= timesteps.at(-1));
    };";
/// Points at the largest band at the highest moment.
const POINT_AT_PEAK: &str = "
    const single = atPeak().filter(({ __data__: { elem } }) => typeof elem === 'number');
    pointAt(single.reduce((a, b) => a.__data__.size >= b.__data__.size ? a : b));";
/// Clicks the first failed request in the list of events.
const CLICK_FAILURE: &str = "
    const line = [...document.querySelectorAll('pre')].find(line => line.textContent.startsWith('OOM'));
    for (const type of ['mouseover', 'mousedown', 'mouseup', 'click']) {
        line.dispatchEvent(new MouseEvent(type, { bubbles: true }));
    }";
/// What a user would have to read for the rest of an answer.
const NOTES: [(&str, &str); 2] = [
    (
        "peak",
        "const here = atPeak().filter(({ __data__: { elem } }) => typeof elem === 'number');
         const sum = here.reduce((sum, band) => sum + band.__data__.size, 0);
         return `${here.length} bands at the peak, ${sum} B together, of ${bands().length}; the largest is ${
             here.reduce((a, b) => a.__data__.size >= b.__data__.size ? a : b).getBoundingClientRect().width} px wide`",
    ),
    ("address", "return [...plot().querySelectorAll('label')].map(label => label.textContent).join('; ')"),
];

/// A local web server of a folder: Python's.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(folder: &Path) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = port.expect("a free port").port().to_string();
        let mut command = Command::new("python3");
        command.args(["-m", "http.server", "--bind", "127.0.0.1", &port, "--directory"]).arg(folder);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot start python3: {error}"));
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
            assert!(Instant::now() < deadline, "python3 -m http.server does not listen");
            thread::sleep(Duration::from_millis(50));
        }
        Self { child, url: format!("http://127.0.0.1:{port}/index.html") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns memory_viz's page, which loads d3 from the folder instead of the network.
fn index(folder: &Path) -> Result<String, String> {
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    let script = read(&folder.join("MemoryViz.js"))?;
    let mut imports = serde_json::Map::new();
    let modules = folder.join("node_modules");
    let names =
        fs::read_dir(&modules).map_err(|error| format!("{}: {error}: run npm install d3@7", modules.display()))?;
    for name in names.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let package = read(&modules.join(&name).join("package.json")).unwrap_or_default();
        let package: Value = serde_json::from_str(&package).unwrap_or_default();
        if let Some(module) = package["module"].as_str() {
            imports.insert(name.clone(), json!(format!("/node_modules/{name}/{module}")));
        }
    }
    for rest in script.split(CDN).skip(1) {
        let (Some((package, _)), Some(url)) = (rest.split_once('@'), rest.split('"').next()) else { continue };
        let module =
            imports.get(package).cloned().ok_or_else(|| format!("{package} is not in {}", modules.display()))?;
        imports.insert(format!("{CDN}{url}"), module);
    }
    Ok(format!(
        "<!DOCTYPE html>\n<script type=\"importmap\">{}</script>\n\
         <script type=\"module\" src=\"MemoryViz.js\"></script>\n",
        json!({ "imports": imports })
    ))
}

/// One of the two tools in a browser.
struct Tool<'a> {
    name: &'static str,
    browser: &'a Browser,
    url: String,
    /// CSS selector of the input for files.
    input: &'static str,
    /// Script that returns true when the snapshot is shown.
    is_open: &'static str,
}

impl Tool<'_> {
    fn run(&self, script: &str) -> Value {
        self.browser.run(&format!("{FUNCTIONS}\n{script}"), &[])
    }

    fn wait(&self, what: &str, script: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while self.run(script) != json!(true) {
            assert!(Instant::now() < deadline, "{}: waited {TIMEOUT:?} until {what}", self.name);
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Opens the snapshot on a fresh page. Returns the time when it was chosen.
    fn choose(&self, path: &Path) -> Instant {
        self.browser.open("about:blank");
        self.browser.open(&self.url);
        self.wait("the page is loaded", &format!("return document.querySelector('{}') !== null", self.input));
        if self.name == "vramscope" {
            self.run("return window.vramscope.ready.then(() => true)");
        }
        let start = Instant::now();
        self.browser.choose_file(self.input, path);
        self.wait("the snapshot is open", self.is_open);
        start
    }

    /// Does a walk once. Returns milliseconds until the snapshot is shown, and until the answer is.
    fn walk(&self, walk: &Walk, path: &Path) -> (f64, f64) {
        let start = self.choose(path);
        let opened = start.elapsed();
        for action in walk.actions {
            match action {
                Press(key) => self.browser.press(*key),
                Type(text) => text.chars().chain([ENTER]).for_each(|key| self.browser.press(key)),
                Click(xpath) => {
                    let found = "return document.evaluate(arguments[0], document, null, 9).singleNodeValue !== null";
                    while self.browser.run(found, &[json!(xpath)]) != json!(true) {
                        thread::sleep(Duration::from_millis(5));
                    }
                    self.browser.click(xpath);
                }
                Run(_, script) => drop(self.run(&format!("{script}; return true"))),
            }
            // A user sees what an action does before the next.
            self.run("return window.vramscope?.show('').then(() => true, () => true)");
        }
        let shown = "return document.body.innerText.replaceAll('\\u00a0', ' ')";
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let text = self.run(shown);
            let text = text.as_str().unwrap_or_default();
            if walk.answer.iter().all(|part| text.contains(part)) {
                break;
            }
            assert!(Instant::now() < deadline, "{}, {}: {:?} is not in\n{text}", self.name, walk.name, walk.answer);
            thread::sleep(Duration::from_millis(5));
        }
        (opened.as_secs_f64() * 1e3, start.elapsed().as_secs_f64() * 1e3)
    }

    /// Does a walk several times, prints a row, and writes a screenshot.
    fn measure(&self, walk: &Walk, path: &Path, pictures: Option<&Path>) {
        let mut times: Vec<(f64, f64)> = (0..RUNS).map(|_| self.walk(walk, path)).collect();
        times.sort_by(|one, other| one.1.total_cmp(&other.1));
        let actions: usize =
            walk.actions.iter().map(|action| if let Run(count, _) = action { *count } else { 1 }).sum();
        let (opened, answered) = times[RUNS / 2];
        println!(
            "{:14} {:10} {actions} actions   shown {opened:6.0} ms   answer {answered:6.0} ms ({:.0} to {:.0})",
            walk.name,
            self.name,
            times[0].1,
            times[RUNS - 1].1
        );
        if self.name == "memory_viz" {
            let note = NOTES.iter().find(|(name, _)| *name == walk.name);
            note.iter().for_each(|(_, script)| println!("    {}", self.run(script)));
        }
        if let Some(folder) = pictures {
            thread::sleep(Duration::from_millis(500));
            Picture::from_png(&self.browser.screenshot()).save(&folder.join(format!(
                "{}-{}.png",
                walk.name,
                self.name.replace('_', "-")
            )));
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let (folder, pictures) = match arguments.as_slice() {
        [folder] => (folder, None),
        [folder, pictures] => (folder, Some(pictures.as_path())),
        _ => {
            eprintln!("usage: memory_viz FOLDER [PICTURES]");
            return ExitCode::from(2);
        }
    };
    match index(folder) {
        Ok(index) => fs::write(folder.join("index.html"), index).expect("the folder can be written"),
        Err(message) => {
            eprintln!("memory_viz: {message}");
            return ExitCode::from(2);
        }
    }
    let server = Server::start(folder);
    let view = Program::start(["view".as_ref(), Fixture::small("tiny_inference").path.as_os_str()]);
    let browser = Browser::start(WINDOW);
    let tools = [
        Tool {
            name: "vramscope",
            browser: &browser,
            url: view.url().to_owned(),
            input: "#file",
            is_open: "return window.vramscope.state().events > 500",
        },
        Tool {
            name: "memory_viz",
            browser: &browser,
            url: server.url.clone(),
            input: "input[type=file]",
            is_open: "return document.querySelectorAll('polygon').length > 3",
        },
    ];
    // The page's own recording has fewer events than the snapshots.
    assert!(Page::open(&browser, view.url()).state().events <= 500);
    let unpacked = tempfile::tempdir().expect("a temporary folder can be created");
    let path = |name: &str| {
        let path = unpacked.path().join(format!("{name}.pickle"));
        if let (false, Some(fixture)) = (path.exists(), Fixture::large(name)) {
            let bytes = fixture.bytes();
            let bytes = unpack(&bytes, &Limits::default()).expect("a valid zstd file");
            fs::write(&path, bytes).expect("the file can be written");
        }
        path
    };
    for (tool, walks) in tools.iter().zip([&VRAMSCOPE[..], &MEMORY_VIZ[..]]) {
        for walk in walks {
            tool.measure(walk, &path(walk.snapshot), pictures);
        }
    }
    let big = path("big");
    if big.exists() {
        for tool in &tools {
            let opened = tool.choose(&big).elapsed().as_secs_f64();
            let memory = browser.renderer_bytes().map_or(0.0, |bytes| bytes as f64 / 1e6);
            println!("{:14} {:10} first picture {opened:.1} s, {memory:.0} MB the process", "big", tool.name);
        }
    }
    ExitCode::SUCCESS
}
