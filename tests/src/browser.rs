//! A real Chromium without a screen, driven through chromedriver.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use fantoccini::wd::Capabilities;
use fantoccini::{Client, ClientBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::program::lines_until;

/// What the page is shown in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Width of the page in CSS pixels.
    pub width: u32,
    /// Height of the page in CSS pixels.
    pub height: u32,
    /// Device pixels a CSS pixel.
    pub scale: u32,
    /// What the page is told that the person prefers.
    pub colors: ColorScheme,
}

/// What the operating system says the person prefers.
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

/// A running browser with one window and a profile of its own. It ends when this is dropped, also in a test that fails.
#[derive(Debug)]
pub struct Browser {
    runtime: Runtime,
    client: Option<Client>,
    // Ended after the session is.
    _driver: Driver,
    // Removed last: the browser writes into it until it has ended.
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
    /// Starts chromedriver and through it Chromium.
    ///
    /// # Panics
    /// Where either is missing or does not start.
    #[must_use]
    pub fn start(window: Window) -> Self {
        let (driver, port) = start_driver();
        let profile = tempfile::tempdir().expect("a folder for temporary files");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let capabilities = capabilities(window, profile.path().to_string_lossy().as_ref());
        let address = format!("http://127.0.0.1:{port}");
        let client = runtime.block_on(async {
            ClientBuilder::new(HttpConnector::new()).capabilities(capabilities).connect(&address).await
        });
        let client = client.unwrap_or_else(|error| panic!("chromedriver cannot start Chromium: {error}"));
        let browser = Self { runtime, client: Some(client), _driver: driver, _profile: profile };
        browser.fit(window);
        browser
    }

    /// Makes the window so large that the page in it has the size wanted.
    fn fit(&self, window: Window) {
        let around = self.run("return [outerWidth - innerWidth, outerHeight - innerHeight]", &[]);
        let outer = |size: u32, index: usize| size + around[index].as_u64().map_or(0, |around| around as u32);
        let (width, height) = (outer(window.width, 0), outer(window.height, 1));
        let resized = self.runtime.block_on(self.client().set_window_size(width, height));
        resized.unwrap_or_else(|error| panic!("cannot resize the window: {error}"));
    }

    fn client(&self) -> &Client {
        self.client.as_ref().expect("the session lasts until the browser is dropped")
    }

    /// Opens an address and waits until the document is loaded.
    ///
    /// # Panics
    /// Where it cannot be opened.
    pub fn open(&self, url: &str) {
        let opened = self.runtime.block_on(self.client().goto(url));
        opened.unwrap_or_else(|error| panic!("cannot open {url}: {error}"));
    }

    /// Runs the body of a JavaScript function in the page and gives back what it returns; a promise is waited for.
    ///
    /// # Panics
    /// Where it throws, or its promise is refused.
    pub fn run(&self, script: &str, arguments: &[Value]) -> Value {
        let result = self.runtime.block_on(self.client().execute(script, arguments.to_vec()));
        result.unwrap_or_else(|error| panic!("in the page: {error}\n{script}"))
    }

    /// Presses a key and lets it go, as a person would. WebDriver's numbers for keys that are no characters are characters of Unicode's
    /// private area.
    ///
    /// # Panics
    /// Where the browser takes no keys.
    pub fn press(&self, key: char) {
        let actions = KeyActions::new("keyboard".to_owned()).then(KeyAction::Down { value: key });
        let pressed = self.runtime.block_on(self.client().perform_actions(actions.then(KeyAction::Up { value: key })));
        pressed.unwrap_or_else(|error| panic!("cannot press {key:?}: {error}"));
    }

    /// A picture of the page, as PNG.
    ///
    /// # Panics
    /// Where the browser cannot take one.
    #[must_use]
    pub fn screenshot(&self) -> Vec<u8> {
        let picture = self.runtime.block_on(self.client().screenshot());
        picture.unwrap_or_else(|error| panic!("cannot take a screenshot: {error}"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ending the session ends Chromium; killing chromedriver alone would leave it behind.
        if let Some(client) = self.client.take() {
            let _ = self.runtime.block_on(client.close());
        }
    }
}

fn start_driver() -> (Driver, u16) {
    let mut command = Command::new("chromedriver");
    command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start chromedriver: {error}"));
    let started = lines_until(child.stdout.take().expect("stdout is piped"), |line| driver_port(line).is_some());
    let driver = Driver(child);
    let line = started.recv_timeout(Duration::from_secs(30)).expect("chromedriver says which port it took");
    (driver, driver_port(&line).expect("only a line that names the port is sent"))
}

/// The port in `ChromeDriver was started successfully on port 12345.`
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
        // Tests run as root in containers, where Chromium's sandbox cannot; the pages are our own.
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
    let capabilities = json!({
        "browserName": "chrome",
        "goog:chromeOptions": { "args": arguments },
        "timeouts": { "script": 120_000, "pageLoad": 60_000 },
    });
    let Value::Object(capabilities) = capabilities else { unreachable!("it is written as an object") };
    capabilities
}
