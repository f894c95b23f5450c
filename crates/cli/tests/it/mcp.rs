//! Tests of `mcp` as a process that a client starts.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::process::{Server, fixture, run, vramscope, wait};

/// A running server, and a client that sends messages to it line by line.
struct Connection {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    next_id: u64,
}

impl Connection {
    /// Starts a server that may read the repository's test files, and introduces the client.
    fn start() -> Self {
        let mut command = vramscope(["mcp".as_ref(), "--allow".as_ref(), fixture("").as_os_str()]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut connection = Self { child, stdin, stdout, next_id: 0 };
        let client = json!({"name": "test", "version": "1"});
        let result = connection
            .request("initialize", json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}));
        assert_eq!(result["serverInfo"]["name"], "vramscope", "{result}");
        connection.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        connection
    }

    /// Sends a message as one line.
    fn send(&mut self, message: &Value) {
        writeln!(self.stdin.as_mut().expect("connected"), "{message}").expect("the server reads");
    }

    /// Sends a request and returns its result.
    fn request(&mut self, method: &str, params: Value) -> Value {
        self.next_id += 1;
        let id = self.next_id;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        loop {
            let mut line = String::new();
            self.stdout.read_line(&mut line).expect("stdout is text");
            let message: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
            assert_eq!(message["jsonrpc"], "2.0", "stdout has nothing but the protocol: {message}");
            if message["id"] == id {
                return message["result"].clone();
            }
        }
    }

    /// Calls a tool. Returns its result.
    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.request("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Closes standard input and waits for the end. Returns the rest of stdout, and stderr.
    fn close(mut self) -> (String, String) {
        self.stdin = None;
        let status = wait(&mut self.child);
        assert!(status.success(), "{status}");
        let (mut rest, mut stderr) = (String::new(), String::new());
        self.stdout.read_to_string(&mut rest).expect("stdout is text");
        let pipe = self.child.stderr.as_mut().expect("stderr is piped");
        pipe.read_to_string(&mut stderr).expect("stderr is text");
        (rest, stderr)
    }
}

#[test]
fn server_answers_on_stdout_and_ends_with_stdin() {
    let mut connection = Connection::start();
    let result = connection.call("info", json!({"source": "late.pickle.gz"}));
    let expected = run(["info".as_ref(), fixture("late.pickle.gz").as_os_str(), "--json".as_ref()]).stdout;
    let expected: Value = serde_json::from_str(&expected).expect("JSON");
    assert_eq!(result["structuredContent"]["devices"], expected["devices"], "{result}");
    let result = connection.call("info", json!({"source": "README.md"}));
    assert_eq!(result["isError"], true, "{result}");
    assert!(result["content"][0]["text"].as_str().is_some_and(|text| text.contains("not a vramscope recording")));
    let (rest, stderr) = connection.close();
    assert_eq!((rest.as_str(), stderr.as_str()), ("", ""));
}

#[test]
fn invalid_messages_do_not_end_the_server() {
    let mut connection = Connection::start();
    for line in ["", "hello", "{", "[]", "{}", "{\"jsonrpc\":\"2.0\",\"id\":7}", "null", "\u{0}"] {
        writeln!(connection.stdin.as_mut().expect("connected"), "{line}").expect("the server reads");
    }
    let long = "x".repeat(20 << 20);
    writeln!(connection.stdin.as_mut().expect("connected"), "{long}").expect("the server reads");
    assert!(connection.call("info", json!({"source": "ring.pickle.zst"}))["structuredContent"].is_object());
}

#[test]
fn end_of_input_ends_a_running_analysis() {
    let mut connection = Connection::start();
    let arguments = json!({"source": "frag_a_expandable.pickle.zst"});
    connection.send(&json!({
        "jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": {"name": "advise", "arguments": arguments},
    }));
    // Waits for the process.
    connection.close();
}

#[test]
fn client_that_disconnects_at_once_is_not_an_error() {
    let finished = run(["mcp"]);
    assert_eq!((finished.code, finished.stdout.as_str(), finished.stderr.as_str()), (Some(0), "", ""));
}

#[test]
fn live_program_sends_its_recording_so_far() {
    let mut demo = Server::start(["demo"]);
    let mut connection = Connection::start();
    let events = |connection: &mut Connection| {
        let result = connection.call("info", json!({"source": demo.url}));
        let summary = &result["structuredContent"];
        assert!(!result.to_string().contains(demo.token().unwrap_or("no token")), "{result}");
        assert_eq!(summary["format"]["name"], "vramscope", "{result}");
        summary["events"].as_u64().expect("a number")
    };
    let first = events(&mut connection);
    while events(&mut connection) == first {}
    let table = connection.call("table", json!({"source": demo.url, "by": "category", "at": "end"}));
    assert!(table["structuredContent"]["devices"][0]["total_bytes"].as_u64() > Some(0), "{table}");
    assert!(demo.interrupt().0.success());
}

#[test]
fn unusable_directories_and_addresses_are_errors() {
    let check = |arguments: &[&str], expected: &str| {
        let finished = run([&["mcp"], arguments].concat());
        assert_eq!(finished.code, Some(2), "{}", finished.stderr);
        assert!(finished.stderr.starts_with(&format!("vramscope: {expected}")), "{}", finished.stderr);
    };
    check(&["--allow", "/missing"], "--allow /missing: No such file or directory");
    check(&["--allow-url", "ftp://a/"], "--allow-url ftp://a/: not an address");
    let mut at_root = vramscope(["mcp"]);
    let finished = at_root.current_dir("/").output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&finished.stderr);
    assert_eq!(finished.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("name directories with --allow DIR"), "{stderr}");
}
