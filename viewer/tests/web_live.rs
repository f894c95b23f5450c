//! The page and a fake server; run by `wasm-pack test --headless --chrome viewer`.
#![cfg(target_arch = "wasm32")]

#[allow(dead_code, reason = "each test program uses a part")]
mod page;

use js_sys::{Array, Function, Reflect, Uint8Array};
use page::{Api, document, element, pass, start, text};
use vramscope_trace::{
    Chunk, DeviceId, Encoder, Event, EventKind, PoolKey, PoolKind, RecordingInfo, Sink, SiteId, StreamId,
};
use wasm_bindgen::prelude::*;
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_browser);

/// Replaces the browser's WebSocket by fakes that open at once and count their listeners.
const FAKE_WEBSOCKET: &str = "
    window.sockets = [];
    window.WebSocket = class extends EventTarget {
        constructor(url) {
            super();
            this.url = url;
            this.listeners = 0;
            window.sockets.push(this);
            setTimeout(() => this.dispatchEvent(new Event('open')));
        }
        addEventListener(...args) { this.listeners += 1; super.addEventListener(...args); }
        removeEventListener(...args) { this.listeners -= 1; super.removeEventListener(...args); }
        close() {}
    };";

fn script(body: &str, arguments: &[JsValue]) -> JsValue {
    let names: Vec<String> = (0..arguments.len()).map(|index| format!("a{index}")).collect();
    let function = Function::new_with_args(&names.join(","), body);
    function.apply(&JsValue::UNDEFINED, &arguments.iter().collect::<Array>()).expect(body)
}

/// A socket that the page has opened, numbered from the first.
#[derive(Clone, Copy)]
struct Socket(usize);

impl Socket {
    /// Waits until the page has opened the socket.
    async fn opened(index: usize) -> Self {
        for _ in 0..400 {
            if script("return window.sockets.length", &[]).as_f64() > Some(index as f64) {
                pass(20).await;
                return Self(index);
            }
            pass(10).await;
        }
        panic!("socket {index} was never opened");
    }

    fn send_note(self, text: &str) {
        let body = "window.sockets[a0].dispatchEvent(new MessageEvent('message', { data: a1 }))";
        script(body, &[(self.0 as u32).into(), text.into()]);
    }

    fn send_bytes(self, bytes: &[u8]) {
        let body = "window.sockets[a0].dispatchEvent(new MessageEvent('message', { data: a1.slice().buffer }))";
        script(body, &[(self.0 as u32).into(), Uint8Array::from(bytes).into()]);
    }

    /// Sends chunks, each after its note; the first is number `from`.
    fn send_chunks(self, from: usize, chunks: &[Chunk]) {
        for (index, chunk) in chunks.iter().enumerate() {
            self.send_note(&format!(r#"{{"next": {}, "anything": ["else"]}}"#, from + index + 1));
            self.send_bytes(&chunk.bytes);
        }
    }

    fn close(self, code: u16) {
        let body = "window.sockets[a0].dispatchEvent(new CloseEvent('close', { code: a1 }))";
        script(body, &[(self.0 as u32).into(), code.into()]);
    }

    fn listeners(self) -> u32 {
        script("return window.sockets[a0].listeners", &[(self.0 as u32).into()]).as_f64().expect("a count") as u32
    }

    fn url(self) -> String {
        script("return window.sockets[a0].url", &[(self.0 as u32).into()]).as_string().unwrap_or_default()
    }
}

fn chunks(source: &str) -> Vec<Chunk> {
    let mut encoder =
        Encoder::new(&RecordingInfo { source: source.to_owned(), epoch_unix_ns: 1, ..RecordingInfo::default() });
    let (stream, pool, site) = (StreamId(0), PoolKey::default_of(PoolKind::Large), SiteId(0));
    for number in 0..40 {
        let address = 0x7000_0000_0000 + number * (1 << 20);
        let kind = match number {
            0 => EventKind::SegmentAllocated { address, size: 64 << 20, stream, pool, site },
            _ => EventKind::BlockAllocated { address, size: 1 << 20, requested: 1 << 20, stream, pool, site },
        };
        encoder.event(&Event { device: DeviceId(0), time_ns: number * 1000, kind });
        encoder.flush();
    }
    encoder.take_output()
}

fn connection(api: &Api) -> String {
    let state = api.call("state", &[]);
    Reflect::get(&state, &"connection".into()).expect("the field exists").as_string().expect("the field is a string")
}

/// Returns a page that follows a program after its first twenty chunks, with notes or without.
async fn following(notes: bool) -> (Api, Vec<Chunk>) {
    script(FAKE_WEBSOCKET, &[]);
    let api = start().await;
    let (socket, chunks) = (Socket::opened(0).await, chunks("program"));
    if notes {
        socket.send_note(r#"{"recording": "00ff", "resumed": false}"#);
        socket.send_chunks(0, &chunks[..20]);
    } else {
        chunks[..20].iter().for_each(|chunk| socket.send_bytes(&chunk.bytes));
    }
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("events")), ("live", 19.0));
    (api, chunks)
}

#[wasm_bindgen_test]
async fn lost_connection_resumes_at_its_position() {
    let (api, chunks) = following(true).await;
    let url = Socket(0).url();
    assert!(url.starts_with("ws://") && url.contains("/ws?history=recent&notes=1"), "{url}");
    // A note without bytes does not advance the position.
    Socket(0).send_note(r#"{"next": 21}"#);
    Socket(0).close(1006);
    pass(100).await;
    assert_eq!((connection(&api).as_str(), text("badge").as_str()), ("reconnecting", "Reconnecting…"));
    let socket = Socket::opened(1).await;
    assert!(socket.url().ends_with("/ws?history=recent&notes=1&resume=00ff:20"), "{}", socket.url());
    socket.send_note(r#"{"recording": "00ff", "resumed": true}"#);
    socket.send_chunks(20, &chunks[20..]);
    pass(100).await;
    assert_eq!((connection(&api).as_str(), text("badge").as_str()), ("live", "Live"));
    assert_eq!((api.number("events"), api.number("event"), api.number("first_event")), (40.0, 40.0, 0.0));
    socket.close(1000);
    pass(100).await;
    assert_eq!((connection(&api).as_str(), text("badge").as_str()), ("ended", "Ended"));
    let socket = Socket::opened(2).await;
    socket.send_note(r#"{"recording": "00ff", "resumed": true}"#);
    socket.close(1000);
    pass(100).await;
    assert_eq!(text("badge"), "Ended", "an ended recording never appears live");
    Socket::opened(3).await.close(4401);
}

#[wasm_bindgen_test]
async fn restart_replaces_only_a_followed_recording() {
    let (api, chunks) = following(true).await;
    Socket(0).close(1001);
    let socket = Socket::opened(1).await;
    socket.send_note(r#"{"recording": "00ff", "resumed": false}"#);
    socket.send_chunks(0, &chunks);
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("events"), api.number("event")), ("live", 40.0, 40.0));
    // A user who looks at an earlier moment keeps it.
    api.seek(7).await;
    socket.close(1006);
    let socket = Socket::opened(2).await;
    socket.send_note(r#"{"recording": "00ff", "resumed": false}"#);
    socket.send_chunks(0, &chunks);
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("event")), ("disconnected", 7.0));
    assert!(text("message-text").contains("cannot resume"), "{}", text("message-text"));
    element("live").click();
    let socket = Socket::opened(3).await;
    assert!(socket.url().ends_with("/ws?history=recent&notes=1"), "{}", socket.url());
    socket.send_note(r#"{"recording": "00ff", "resumed": false}"#);
    socket.send_chunks(0, &chunks);
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("event")), ("live", 40.0));
    socket.close(4401);
}

#[wasm_bindgen_test]
async fn another_recording_is_shown_if_the_page_follows() {
    let (api, _) = following(true).await;
    Socket(0).close(1006);
    let socket = Socket::opened(1).await;
    socket.send_note(r#"{"recording": "77", "resumed": false}"#);
    socket.send_chunks(0, &chunks("other"));
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("events")), ("live", 40.0));
    assert!(text("message-text").contains("This page now follows it"), "{}", text("message-text"));
    assert_eq!(text("source"), "other");
    socket.close(4401);
}

#[wasm_bindgen_test]
async fn another_recording_is_refused_at_an_earlier_moment() {
    let (api, _) = following(true).await;
    Socket(0).close(1006);
    api.seek(7).await;
    let socket = Socket::opened(1).await;
    socket.send_note(r#"{"recording": "77", "resumed": false}"#);
    socket.send_chunks(0, &chunks("other"));
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("events")), ("disconnected", 19.0));
    assert!(text("message-text").contains("A new run has started here"), "{}", text("message-text"));
    assert_eq!(text("source"), "program");
}

#[wasm_bindgen_test]
async fn server_without_notes_is_identified_by_its_bytes() {
    let (api, all) = following(false).await;
    Socket(0).close(1006);
    let socket = Socket::opened(1).await;
    all.iter().for_each(|chunk| socket.send_bytes(&chunk.bytes));
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("events"), api.number("event")), ("live", 40.0, 40.0));
    socket.close(1006);
    api.seek(7).await;
    let socket = Socket::opened(2).await;
    chunks("other").iter().for_each(|chunk| socket.send_bytes(&chunk.bytes));
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("events")), ("disconnected", 40.0));
    assert!(text("message-text").contains("A new run has started here"), "{}", text("message-text"));
}

#[wasm_bindgen_test]
async fn invalid_notes_are_ignored() {
    let (api, chunks) = following(true).await;
    for note in [
        "",
        "no JSON",
        "[]",
        "7",
        "null",
        r#""text""#,
        r#"{"next": -1}"#,
        r#"{"next": "9"}"#,
        r#"{"next": 1e300}"#,
        r#"{"recording": 7}"#,
        r#"{"missed": {}, "resumed": []}"#,
    ] {
        Socket(0).send_note(note);
    }
    Socket(0).send_chunks(20, &chunks[20..30]);
    Socket(0).send_note(r#"{"recording": "<img src=x onerror=alert(1)>&resume=1"}"#);
    Socket(0).send_chunks(30, &chunks[30..]);
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("events")), ("live", 40.0));
    assert!(element("message").hidden(), "{}", text("message-text"));
    Socket(0).close(4401);
    pass(100).await;
    assert!(text("message-text").contains("token"), "{}", text("message-text"));
    assert_eq!(connection(&api), "disconnected");
    assert!(document().query_selector("img[src=x]").expect("the selector is valid").is_none());
}

#[wasm_bindgen_test]
async fn damaged_bytes_disconnect_and_keep_the_recording() {
    let (api, chunks) = following(true).await;
    let mut damaged = chunks[20].bytes.clone();
    *damaged.last_mut().expect("the response has bytes") ^= 1;
    Socket(0).send_bytes(&damaged);
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("events")), ("disconnected", 19.0));
    assert!(text("message-text").contains("checksum"), "{}", text("message-text"));
    api.seek(3).await;
    assert_eq!(api.number("event"), 3.0);
}

#[wasm_bindgen_test]
async fn replaced_sockets_have_no_listeners() {
    let (_, chunks) = following(true).await;
    assert_eq!(Socket(0).listeners(), 3);
    for index in 0..3 {
        Socket(index).close(1006);
        let socket = Socket::opened(index + 1).await;
        socket.send_note(r#"{"recording": "00ff", "resumed": true}"#);
        socket.send_chunks(20 + index, &chunks[20 + index..=20 + index]);
        pass(100).await;
        assert_eq!((Socket(index).listeners(), socket.listeners()), (0, 3), "after reconnection {index}");
    }
    Socket(3).close(4401);
}
