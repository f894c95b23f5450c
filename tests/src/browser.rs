//! A headless Chromium, controlled through chromedriver.

use std::env;
use std::fs::{self, DirEntry};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use fantoccini::wd::Capabilities;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::http;
use crate::program::lines_until;

/// Environment variable with the path of Chromium's headless shell, to use it instead of Chromium:
/// the same engine without the browser around it, which takes a third of the processor time to
/// start. It draws text slightly differently.
const SHELL_VARIABLE: &str = "VRAMSCOPE_HEADLESS_SHELL";

/// Size and preferences of the browser's window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Width of the page in CSS pixels.
    pub width: u32,
    /// Height of the page in CSS pixels.
    pub height: u32,
    /// Device pixels a CSS pixel.
    pub scale: u32,
    /// Preferred color scheme.
    pub colors: ColorScheme,
}

/// A color scheme that the operating system reports to the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColorScheme {
    /// Light text on a dark page.
    Dark,
    /// Dark text on a light page.
    Light,
}

impl Default for Window {
    fn default() -> Self {
        Self { width: 1280, height: 720, scale: 1, colors: ColorScheme::Light }
    }
}

/// A running browser with one window and a fresh profile. Dropping it ends the processes, also
/// when a test fails.
#[derive(Debug)]
pub struct Browser {
    runtime: Runtime,
    client: Option<Client>,
    /// The port of chromedriver.
    port: u16,
    // Dropped after the session has ended.
    driver: Driver,
    // Removed last: the browser writes to it until it ends.
    _profile: TempDir,
}

/// A running chromedriver.
#[derive(Debug)]
struct Driver(Child);

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Browser {
    /// Starts chromedriver and Chromium, or the headless shell at the path in
    /// `VRAMSCOPE_HEADLESS_SHELL`.
    ///
    /// # Panics
    /// Panics if either is missing or does not start.
    #[must_use]
    pub fn start(window: Window) -> Self {
        let (driver, port) = start_driver();
        let profile = tempfile::tempdir().expect("a temporary folder can be created");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the runtime starts");
        let capabilities = capabilities(window, profile.path().to_string_lossy().as_ref());
        let address = format!("http://127.0.0.1:{port}");
        let client = runtime.block_on(async {
            ClientBuilder::new(HttpConnector::new()).capabilities(capabilities).connect(&address).await
        });
        let client = client.unwrap_or_else(|error| panic!("chromedriver cannot start Chromium: {error}"));
        let browser = Self { runtime, client: Some(client), port, driver, _profile: profile };
        browser.fit(window);
        browser
    }

    /// Shows the page in a window of another size and with other preferences, without a new
    /// browser. Unlike the browser's own window, this one may be as narrow as a phone. Reduces
    /// motion.
    ///
    /// # Panics
    /// Panics if the browser cannot emulate it.
    pub fn emulate(&self, window: Window) {
        let Window { width, height, scale, colors } = window;
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": scale, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
        let colors = match colors {
            ColorScheme::Dark => "dark",
            ColorScheme::Light => "light",
        };
        let feature = |name: &str, value: &str| json!({ "name": name, "value": value });
        let features = [feature("prefers-color-scheme", colors), feature("prefers-reduced-motion", "reduce")];
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// Sends a command of Chromium's DevTools protocol.
    fn devtools(&self, command: &str, parameters: &Value) {
        let id = self.runtime.block_on(self.client().session_id());
        let id = id.ok().flatten().expect("the session has an id");
        let path = format!("/session/{id}/goog/cdp/execute");
        let body = json!({ "cmd": command, "params": parameters }).to_string();
        let response = http::request(&format!("http://127.0.0.1:{}/", self.port), "POST", &path, &body);
        let response = response.unwrap_or_else(|error| panic!("{command}: {error}"));
        assert_eq!(response.status, 200, "{command}: {}", String::from_utf8_lossy(&response.body));
    }

    /// Resizes the window so that the page in it has the wanted size.
    fn fit(&self, window: Window) {
        let around = self.run("return [outerWidth - innerWidth, outerHeight - innerHeight]", &[]);
        let outer = |size: u32, index: usize| size + around[index].as_u64().map_or(0, |around| around as u32);
        let (width, height) = (outer(window.width, 0), outer(window.height, 1));
        let resized = self.runtime.block_on(self.client().set_window_size(width, height));
        resized.unwrap_or_else(|error| panic!("cannot resize the window: {error}"));
    }

    fn client(&self) -> &Client {
        self.client.as_ref().expect("the session exists until the browser is dropped")
    }

    /// Opens a URL and waits until the document is loaded.
    ///
    /// # Panics
    /// Panics if the page cannot be opened.
    pub fn open(&self, url: &str) {
        let opened = self.runtime.block_on(self.client().goto(url));
        opened.unwrap_or_else(|error| panic!("cannot open {url}: {error}"));
    }

    /// Runs the body of a JavaScript function in the page and returns its result; awaits a promise.
    ///
    /// # Panics
    /// Panics if the function throws or its promise is rejected.
    pub fn run(&self, script: &str, arguments: &[Value]) -> Value {
        let result = self.runtime.block_on(self.client().execute(script, arguments.to_vec()));
        result.unwrap_or_else(|error| panic!("in the page: {error}\n{script}"))
    }

    /// Presses and releases a key. WebDriver codes keys such as Escape as characters of Unicode's
    /// private use area.
    ///
    /// # Panics
    /// Panics if the browser accepts no keys.
    pub fn press(&self, key: char) {
        self.type_keys(key.encode_utf8(&mut [0; 4]));
    }

    /// Presses and releases the key of each character, one after the other.
    ///
    /// # Panics
    /// Panics if the browser cannot be controlled.
    pub fn type_keys(&self, keys: &str) {
        let mut actions = KeyActions::new("keyboard".to_owned());
        for key in keys.chars() {
            actions = actions.then(KeyAction::Down { value: key }).then(KeyAction::Up { value: key });
        }
        let typed = self.runtime.block_on(self.client().perform_actions(actions));
        typed.unwrap_or_else(|error| panic!("cannot type {keys:?}: {error}"));
    }

    /// Clicks the middle of the first element that an XPath expression selects, as a mouse does.
    ///
    /// # Panics
    /// Panics if there is no such element, it is not visible, or another element covers it.
    pub fn click(&self, xpath: &str) {
        let clicked = self.runtime.block_on(async { self.client().find(Locator::XPath(xpath)).await?.click().await });
        clicked.unwrap_or_else(|error| panic!("cannot click {xpath}: {error}"));
    }

    /// Chooses a file on disk in the file input that a CSS selector names, as a user does.
    ///
    /// # Panics
    /// Panics if there is no such input.
    pub fn choose_file(&self, selector: &str, path: &Path) {
        // chromedriver accepts no other paths.
        let path = path.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let path = path.to_string_lossy();
        let chosen =
            self.runtime.block_on(async { self.client().find(Locator::Css(selector)).await?.send_keys(&path).await });
        chosen.unwrap_or_else(|error| panic!("cannot choose {path} in {selector}: {error}"));
    }

    /// Returns the memory in bytes of the process that runs the page: the largest of the browser's
    /// renderers. Memory shared with other processes counts in parts (the kernel's PSS). `None`
    /// where the kernel does not tell.
    #[must_use]
    pub fn renderer_bytes(&self) -> Option<u64> {
        let mut pids = vec![self.driver.0.id()];
        let mut largest = None;
        while let Some(pid) = pids.pop() {
            let of_thread = |entry: DirEntry| fs::read_to_string(entry.path().join("children")).ok();
            let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            let children: String = threads.filter_map(of_thread).collect();
            pids.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&command).contains("--type=renderer") {
                let maps = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
                let line = maps.lines().find_map(|line| line.strip_prefix("Pss:"));
                let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
                largest = largest.max(kib.map(|kib| kib * 1024));
            }
        }
        largest
    }

    /// Takes a screenshot of the page, as PNG.
    ///
    /// # Panics
    /// Panics if the browser cannot take one.
    #[must_use]
    pub fn screenshot(&self) -> Vec<u8> {
        let picture = self.runtime.block_on(self.client().screenshot());
        picture.unwrap_or_else(|error| panic!("cannot take a screenshot: {error}"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ending the session ends Chromium; killing only chromedriver would leave it running.
        if let Some(client) = self.client.take() {
            let _ = self.runtime.block_on(client.close());
        }
    }
}

/// Starts chromedriver and returns its port.
///
/// chromedriver lets the system choose a port of one address family, needs the port with this
/// number of the other too, and exits if another program has it: it is then started again.
fn start_driver() -> (Driver, u16) {
    for _ in 0..10 {
        let mut command = Command::new("chromedriver");
        command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start chromedriver: {error}"));
        let started = lines_until(child.stdout.take().expect("stdout is piped"), |line| driver_port(line).is_some());
        let driver = Driver(child);
        match started.recv_timeout(Duration::from_secs(30)) {
            Ok(line) => return (driver, driver_port(&line).expect("the line names a port")),
            Err(RecvTimeoutError::Disconnected) => {}
            Err(RecvTimeoutError::Timeout) => panic!("chromedriver did not print its port"),
        }
    }
    panic!("chromedriver exited ten times without naming a port: run it by hand to see why")
}

/// Parses the port in `ChromeDriver was started successfully on port 12345.`
fn driver_port(line: &str) -> Option<u16> {
    line.split_once("successfully on port ")?.1.trim_end_matches('.').parse().ok()
}

fn capabilities(window: Window, profile: &str) -> Capabilities {
    let color_scheme = match window.colors {
        ColorScheme::Dark => 0,
        ColorScheme::Light => 1,
    };
    let arguments = [
        "--headless=new".to_owned(),
        // Chromium's sandbox does not run as root in containers; the pages are our own.
        "--no-sandbox".to_owned(),
        "--disable-gpu".to_owned(),
        "--disable-dev-shm-usage".to_owned(),
        "--no-first-run".to_owned(),
        "--disable-background-networking".to_owned(),
        "--disable-component-update".to_owned(),
        "--disable-sync".to_owned(),
        format!("--user-data-dir={profile}"),
        format!("--force-device-scale-factor={}", window.scale),
        format!("--blink-settings=preferredColorScheme={color_scheme}"),
    ];
    let (name, options) = match env::var(SHELL_VARIABLE) {
        Ok(path) => ("chrome-headless-shell", json!({ "args": arguments, "binary": path })),
        Err(_) => ("chrome", json!({ "args": arguments })),
    };
    let capabilities = json!({
        "browserName": name,
        "goog:chromeOptions": options,
        "timeouts": { "script": 120_000, "pageLoad": 60_000 },
    });
    let Value::Object(capabilities) = capabilities else { unreachable!("the value above is an object") };
    capabilities
}
