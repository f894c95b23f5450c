//! Tests with a client of the protocol, and with hostile input.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CancelledNotificationParam, ClientConfig, ClientRequest, ProgressNotificationParam, Request,
};
use rmcp::service::{NotificationContext, PeerRequestOptions, RunningService};
use rmcp::{ClientHandler, RoleClient, ServiceExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::duplex;
use tokio::runtime::{Builder, Runtime};

use super::bounds::MAX_RESULT_BYTES;
use super::server::AnalysisServer;
use super::sources::Sources;
use super::tools::Tool;

/// A client that keeps the notifications of progress.
#[derive(Clone, Default)]
struct Client(Arc<Mutex<Vec<ProgressNotificationParam>>>);

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::default()
    }

    async fn on_progress(&self, progress: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.0.lock().expect("no test panics meanwhile").push(progress);
    }
}

/// A server with a client that is connected to it.
struct Connection {
    runtime: Runtime,
    client: Option<RunningService<RoleClient, Client>>,
    progress: Client,
}

impl Connection {
    /// Connects to a server that may read files below `folder`.
    fn new(folder: &Path) -> Self {
        let sources = Sources::new(&[folder.to_owned()], &[]).expect("the folder exists");
        Self::of(AnalysisServer::new(sources))
    }

    fn of(server: AnalysisServer) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let progress = Client::default();
        let client = runtime.block_on(async {
            let (server_side, client_side) = duplex(1 << 16);
            tokio::spawn(async move {
                let running = server.serve(server_side).await.expect("the client introduces itself");
                running.waiting().await
            });
            progress.clone().serve(client_side).await.expect("the server answers")
        });
        Self { runtime, client: Some(client), progress }
    }

    fn client(&self) -> &RunningService<RoleClient, Client> {
        self.client.as_ref().expect("connected")
    }

    /// Calls a tool. Returns its structured result, or the error's text.
    fn call(&self, tool: &str, arguments: Value) -> Result<Value, String> {
        let arguments = arguments.as_object().expect("an object").clone();
        let request = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let result = self.runtime.block_on(self.client().call_tool(request)).map_err(|error| error.to_string())?;
        let text = result.content[0].as_text().expect("a text").text.clone();
        if result.is_error == Some(true) {
            assert_eq!(result.structured_content, None);
            return Err(text);
        }
        let value = result.structured_content.expect("a structured result");
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), value, "both contents are the same");
        assert!(text.len() <= MAX_RESULT_BYTES, "{} bytes", text.len());
        Ok(value)
    }

    /// Calls a tool and returns the text of its error.
    #[track_caller]
    fn error(&self, tool: &str, arguments: Value) -> String {
        let text = arguments.to_string();
        match self.call(tool, arguments) {
            Ok(value) => panic!("{text}: {value}"),
            Err(error) => error,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            // The server may have ended already.
            let _ = self.runtime.block_on(client.cancel());
        }
    }
}

fn data() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")).expect("the repository has tests")
}

#[test]
fn tools_return_the_json_of_the_commands() {
    let connection = Connection::new(&data());
    let tools = connection.runtime.block_on(connection.client().list_all_tools()).expect("the tools");
    let names: Vec<&str> = tools.iter().map(|tool| &*tool.name).collect();
    assert_eq!(names, Tool::ALL.map(Tool::name));

    let source = "data/mlp_train.pickle.zst";
    let info = connection.call("info", json!({"source": source})).expect("a summary");
    assert_eq!(info["format"]["name"], "pytorch-pickle");
    assert_eq!((&info["devices"][0]["device"], &info["left_out"]), (&json!(0), &json!([])));

    let table = connection.call("table", json!({"source": source, "by": "line", "limit": 3})).expect("a table");
    assert_eq!(table["devices"][0]["rows"].as_array().map(Vec::len), Some(3));
    assert_eq!(table["left_out"][0]["list"], "devices.rows");
    assert!(table["left_out"][0]["entries"].as_u64().is_some_and(|entries| entries > 0), "{table}");

    let failed = "labelled/development/oom_fragmentation_1.pickle.gz";
    let diagnosis = connection.call("diagnose", json!({"source": failed})).expect("a diagnosis");
    assert!(diagnosis["findings"].as_array().is_some_and(|findings| !findings.is_empty()), "{diagnosis}");
    let autopsy = connection.call("autopsy", json!({"source": failed})).expect("an autopsy");
    assert_eq!(autopsy["ooms"][0]["cause"], "fragmentation");

    let advice = connection.call("advise", json!({"source": source, "capacity": "2GiB"})).expect("advice");
    assert_eq!(advice["devices"][0]["capacity_bytes"], 2_u64 << 30);
    assert!(advice["devices"][0]["best"]["alloc_conf"].is_string(), "{advice}");

    let arguments = json!({"a": source, "b": source, "a_moment": "100", "b_moment": "end", "limit": 5});
    let diff = connection.call("diff", arguments).expect("a comparison");
    assert_eq!((&diff["moments"]["a"], &diff["moments"]["b"]), (&json!("100"), &json!("end")));
    assert!(diff["sites"].as_array().is_some_and(|sites| sites.len() <= 5), "{diff}");
}

#[test]
fn unusable_arguments_are_errors_that_say_what_to_do() {
    let connection = Connection::new(&data());
    let source = "data/mlp_train.pickle.zst";
    let check = |tool: &str, arguments: Value, expected: &str| {
        let error = connection.error(tool, arguments);
        assert!(error.contains(expected), "{tool}: {error}");
    };
    check("info", json!({}), "missing field `source`");
    check("info", json!({"source": 5}), "expected a string");
    check("info", json!({"source": source, "file": source}), "unknown field `file`");
    check("info", json!({"source": source, "limit": 0}), "use 1 to 200");
    check("info", json!({"source": source, "limit": 1_000_000_000}), "use 1 to 200");
    check("table", json!({"source": source, "by": "color"}), "is not a grouping: use one of");
    check("table", json!({"source": source, "by": "line", "at": "noon"}), "expected peak, end or the number");
    check("table", json!({"source": source, "by": "line", "at": "99999999"}), "the recording has the moments 0 to");
    check("autopsy", json!({"source": source, "limit_bytes": "much"}), "limit_bytes: ");
    check("advise", json!({"source": source, "capacity": "-1"}), "capacity: ");
    check("advise", json!({"source": "data/state_only.pickle.gz"}), "contains no requests");
    check("diff", json!({"a": source, "b": source, "a_moment": "noon"}), "is not a moment: use");
    check("diff", json!({"a": source, "b": source, "b_device": 1}), "needs a_device");
    check("diff", json!({"a": source, "b": source, "a_device": 7}), "has no device 7");
    check("shell", json!({"command": "ls"}), "there is no such tool");
}

#[cfg(unix)]
#[test]
fn files_outside_of_the_directories_are_refused() {
    use std::os::unix::fs::symlink;

    let folder = TempDir::new().expect("a temporary folder");
    let allowed = folder.path().join("allowed");
    fs::create_dir_all(allowed.join("inner")).expect("a folder");
    let outside = folder.path().join("outside.pickle.zst");
    fs::copy(data().join("data/ring.pickle.zst"), &outside).expect("a copy");
    fs::copy(&outside, allowed.join("run.pickle.zst")).expect("a copy");
    fs::create_dir(folder.path().join("allowed-not")).expect("a folder");
    fs::copy(&outside, folder.path().join("allowed-not/run.pickle.zst")).expect("a copy");
    symlink(&outside, allowed.join("link.pickle.zst")).expect("a link");
    symlink(folder.path(), allowed.join("up")).expect("a link");
    symlink("../run.pickle.zst", allowed.join("inner/link.pickle.zst")).expect("a link");
    symlink("loop", allowed.join("loop")).expect("a link");
    let connection = Connection::new(&allowed);
    let path = |name: &str| allowed.join(name).to_string_lossy().into_owned();

    for source in ["run.pickle.zst", "inner/link.pickle.zst", "./inner/../run.pickle.zst", &path("run.pickle.zst")] {
        connection.call("info", json!({"source": source})).unwrap_or_else(|error| panic!("{source}: {error}"));
    }
    let outside = outside.to_string_lossy().into_owned();
    for source in [
        "../outside.pickle.zst",
        "../allowed-not/run.pickle.zst",
        "inner/../../outside.pickle.zst",
        "link.pickle.zst",
        "up/outside.pickle.zst",
        "/etc/passwd",
        "/etc/missing",
        "../missing",
        "/dev/zero",
        "/proc/self/environ",
        "",
        &outside,
    ] {
        let error = connection.error("info", json!({"source": source}));
        let is_refused = error.contains("may be read") || error.contains("is a directory");
        assert!(is_refused && error.contains("--allow") | source.is_empty(), "{source}: {error}");
    }
    let both = json!({"a": "run.pickle.zst", "b": "../outside.pickle.zst"});
    assert!(connection.error("diff", both).contains("may be read"));
    assert!(connection.error("info", json!({"source": "missing.vram"})).contains("check the path"));
    assert!(connection.error("info", json!({"source": "loop"})).contains("loop"));
    assert!(connection.error("info", json!({"source": "run\0"})).contains("run"));
    assert!(connection.error("info", json!({"source": "x/".repeat(1 << 16)})).len() < 3000);
}

#[cfg(unix)]
#[test]
fn file_that_is_not_a_recording_is_an_error() {
    let folder = TempDir::new().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("folder")).expect("a folder");
    fs::write(path("empty.vram"), "").expect("a file");
    fs::write(path("image.vram"), b"\x89PNG\r\n\x1a\n").expect("a file");
    let recording = fs::read(data().join("data/hook_graphs.vram")).expect("a recording");
    fs::write(path("cut.vram"), &recording[..recording.len() / 2]).expect("a file");
    let huge = fs::File::create(path("huge.json")).expect("a file");
    huge.set_len(1 << 40).expect("a sparse file");
    let pipe = std::process::Command::new("mkfifo").arg(path("pipe.vram")).status().expect("mkfifo runs");
    assert!(pipe.success());
    let _socket = std::os::unix::net::UnixListener::bind(path("socket.vram")).expect("a socket");
    let connection = Connection::new(folder.path());
    let check = |source: &str, expected: &str| {
        let error = connection.error("table", json!({"source": source, "by": "line"}));
        assert!(error.contains(expected), "{source}: {error}");
    };
    check("folder", "is a directory; name a file");
    check("empty.vram", "the file is empty");
    check("image.vram", "this is a picture (PNG)");
    check("huge.json", "this server reads at most 1 GiB");
    check("pipe.vram", "is not a file");
    check("socket.vram", "is not a file");
    // The intact part is read; the note names the missing part.
    let info = connection.call("info", json!({"source": "cut.vram"})).expect("a summary");
    assert!(info["damage"].is_string() && !info["messages"].as_array().expect("a list").is_empty(), "{info}");
}

#[test]
fn damaged_recordings_never_end_the_server() {
    let folder = TempDir::new().expect("a temporary folder");
    let intact = fs::read(data().join("data/ring_small.pickle.gz")).expect("a snapshot");
    let recording = fs::read(data().join("data/hook_graphs.vram")).expect("a recording");
    let connection = Connection::new(folder.path());
    for (name, bytes) in [("damaged.pickle.gz", &intact), ("damaged.vram", &recording)] {
        for part in 1..6 {
            let mut bytes = bytes.clone();
            let at = bytes.len() * part / 6;
            bytes[at..at + 16].fill(0xff);
            fs::write(folder.path().join(name), &bytes).expect("a file");
            for tool in ["info", "autopsy", "advise"] {
                // A result and an error are both valid answers.
                let _ = connection.call(tool, json!({"source": name}));
            }
        }
    }
    fs::write(folder.path().join("run.pickle.gz"), &intact).expect("a file");
    connection.call("info", json!({"source": "run.pickle.gz"})).expect("the server still answers");
}

#[test]
fn only_local_programs_and_allowed_addresses_are_read() {
    let sources = Sources::new(&[data()], &["https://gpu.example/jobs".to_owned()]).expect("valid");
    for url in [
        "http://192.0.2.1/",
        "http://gpu.example/jobs/",
        "https://gpu.example/",
        "https://gpu.example.evil/jobs/",
        "http://127.0.0.1.example/?token=secret",
        "http://localhost@192.0.2.1/",
    ] {
        let error = sources.resolve(url).expect_err(url).to_string();
        assert!(error.contains("--allow-url") && !error.contains("secret"), "{url}: {error}");
    }
    for url in ["ftp://127.0.0.1/", "file:///etc/passwd", "http://"] {
        let error = sources.resolve(url).expect_err(url).to_string();
        assert!(error.starts_with("not an address"), "{url}: {error}");
    }
    for url in ["http://127.0.0.1:7791/?token=secret", "http://[::1]:9/", "https://gpu.example/jobs/1/"] {
        let source = sources.resolve(url).unwrap_or_else(|error| panic!("{url}: {error}"));
        assert!(!source.name().to_string_lossy().contains("secret"), "{}", source.name().display());
    }
}

#[test]
fn unreachable_program_is_an_error() {
    let connection = Connection::new(&data());
    // Nothing listens on port 1.
    let error = connection.error("info", json!({"source": "http://127.0.0.1:1/?token=secret"}));
    assert_eq!(error, "http://127.0.0.1:1/: Connection refused: is the program running?");
}

#[test]
fn progress_is_reported_in_rising_steps() {
    let connection = Connection::new(&data());
    // rmcp's client asks for progress with every call.
    connection.call("advise", json!({"source": "data/mlp_train.pickle.zst"})).expect("advice");
    // The client handles notifications on another task, so they may arrive later.
    while connection.progress.0.lock().expect("no test panics meanwhile").is_empty() {
        connection.runtime.block_on(tokio::time::sleep(Duration::from_millis(10)));
    }
    let reported = connection.progress.0.lock().expect("no test panics meanwhile");
    assert!(reported.windows(2).all(|pair| pair[0].progress < pair[1].progress), "{reported:?}");
    assert!(reported.iter().all(|one| one.message.as_ref().is_some_and(|label| !label.is_empty())), "{reported:?}");
}

#[test]
fn cancelled_call_frees_the_server() {
    let connection = Connection::new(&data());
    let arguments = json!({"source": "data/frag_a_expandable.pickle.zst"});
    let params = CallToolRequestParams::new("advise").with_arguments(arguments.as_object().expect("an object").clone());
    let request = ClientRequest::CallToolRequest(Request::new(params));
    connection.runtime.block_on(async {
        let client = connection.client();
        let call = client.send_cancellable_request(request, PeerRequestOptions::no_options()).await.expect("sent");
        let id = call.id.clone();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let cancelled = CancelledNotificationParam::new(Some(id), Some("not needed".to_owned()));
        client.notify_cancelled(cancelled).await.expect("sent");
    });
    connection.call("info", json!({"source": "data/ring_small.pickle.gz"})).expect("the server is free");
}

#[test]
fn analysis_stops_at_its_time_limit() {
    let sources = Sources::new(&[data()], &[]).expect("the folder exists");
    let connection = Connection::of(AnalysisServer::new(sources).with_time_limit(Duration::from_millis(1)));
    let error = connection.error("advise", json!({"source": "data/mlp_train.pickle.zst"}));
    assert!(error.contains("stopped after 0 s: use vramscope advise"), "{error}");
}

#[test]
fn directories_that_do_not_exist_are_refused() {
    let error = Sources::new(&[PathBuf::from("/missing")], &[]).expect_err("refused").to_string();
    assert!(error.starts_with("--allow /missing: "), "{error}");
    let error = Sources::new(&[data().join("data/README.md")], &[]).expect_err("refused").to_string();
    assert!(error.ends_with("is not a directory"), "{error}");
}
