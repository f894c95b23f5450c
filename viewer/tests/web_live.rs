//! The page and a server that says whatever a test wants: `wasm-pack test --headless --chrome viewer`.
#![cfg(target_arch = "wasm32")]

#[allow(dead_code, reason = "each file of tests uses a part")]
mod paged;

use js_sys::{Array, Function, Reflect, Uint8Array};
use paged::{Api, document, element, pass, start, text};
use vramscope_trace::{Chunk, DeviceId, Encoder, Event, EventKind, Info, Pool, PoolKind, Sink, SiteId, StreamId};
use wasm_bindgen::prelude::*;
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_browser);

/// Puts sockets in the place of the browser's that are open at once, and keeps them.
const FAKE: &str = "
    window.sockets = [];
    window.WebSocket = class extends EventTarget {
        constructor(url) {
            super();
            this.url = url;
            window.sockets.push(this);
            setTimeout(() => this.dispatchEvent(new Event('open')));
        }
        close() {}
    };";

fn script(body: &str, arguments: &[JsValue]) -> JsValue {
    let names: Vec<String> = (0..arguments.len()).map(|index| format!("a{index}")).collect();
    let function = Function::new_with_args(&names.join(","), body);
    function.apply(&JsValue::UNDEFINED, &arguments.iter().collect::<Array>()).expect(body)
}

/// One of the connections that the page has made, counted from the first.
#[derive(Clone, Copy)]
struct Socket(usize);

impl Socket {
    /// Waits until the page has made it.
    async fn made(index: usize) -> Self {
        for _ in 0..400 {
            if script("return window.sockets.length", &[]).as_f64() > Some(index as f64) {
                pass(20).await;
                return Self(index);
            }
            pass(10).await;
        }
        panic!("connection {index} was never made");
    }

    fn says(self, text: &str) {
        let body = "window.sockets[a0].dispatchEvent(new MessageEvent('message', { data: a1 }))";
        script(body, &[(self.0 as u32).into(), text.into()]);
    }

    fn sends(self, bytes: &[u8]) {
        let body = "window.sockets[a0].dispatchEvent(new MessageEvent('message', { data: a1.slice().buffer }))";
        script(body, &[(self.0 as u32).into(), Uint8Array::from(bytes).into()]);
    }

    /// Sends chunks the way a server does that is asked for notes; the first of them is number `from`.
    fn tells(self, from: usize, chunks: &[Chunk]) {
        for (index, chunk) in chunks.iter().enumerate() {
            self.says(&format!(r#"{{"next": {}, "anything": ["else"]}}"#, from + index + 1));
            self.sends(&chunk.bytes);
        }
    }

    fn ends(self, code: u16) {
        let body = "window.sockets[a0].dispatchEvent(new CloseEvent('close', { code: a1 }))";
        script(body, &[(self.0 as u32).into(), code.into()]);
    }

    fn url(self) -> String {
        script("return window.sockets[a0].url", &[(self.0 as u32).into()]).as_string().unwrap_or_default()
    }
}

fn chunks(source: &str) -> Vec<Chunk> {
    let mut encoder = Encoder::new(&Info { source: source.to_owned(), epoch_unix_ns: 1, ..Info::default() });
    let (stream, pool, site) = (StreamId(0), Pool::default_of(PoolKind::Large), SiteId(0));
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
    Reflect::get(&state, &"connection".into()).expect("a field").as_string().expect("a word")
}

/// The page, following a program that has sent its first twenty chunks, with notes or without.
async fn following(notes: bool) -> (Api, Vec<Chunk>) {
    script(FAKE, &[]);
    let api = start().await;
    let (socket, chunks) = (Socket::made(0).await, chunks("program"));
    if notes {
        socket.says(r#"{"recording": "00ff", "resumed": false}"#);
        socket.tells(0, &chunks[..20]);
    } else {
        chunks[..20].iter().for_each(|chunk| socket.sends(&chunk.bytes));
    }
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("events")), ("live", 19.0));
    (api, chunks)
}

#[wasm_bindgen_test]
async fn a_lost_connection_is_resumed_where_it_ended() {
    let (api, chunks) = following(true).await;
    let url = Socket(0).url();
    assert!(url.starts_with("ws://") && url.contains("/ws?history=recent&notes=1"), "{url}");
    // A note whose bytes never came counts for nothing.
    Socket(0).says(r#"{"next": 21}"#);
    Socket(0).ends(1006);
    pass(100).await;
    assert_eq!((connection(&api).as_str(), text("badge").as_str()), ("reconnecting", "Reconnecting…"));
    let socket = Socket::made(1).await;
    assert!(socket.url().ends_with("/ws?history=recent&notes=1&resume=00ff:20"), "{}", socket.url());
    socket.says(r#"{"recording": "00ff", "resumed": true}"#);
    socket.tells(20, &chunks[20..]);
    pass(100).await;
    assert_eq!((connection(&api).as_str(), text("badge").as_str()), ("live", "Live"));
    assert_eq!((api.number("events"), api.number("event"), api.number("first_event")), (40.0, 40.0, 0.0));
    socket.ends(1000);
    pass(100).await;
    assert_eq!((connection(&api).as_str(), text("badge").as_str()), ("ended", "Ended"));
    let socket = Socket::made(2).await;
    socket.says(r#"{"recording": "00ff", "resumed": true}"#);
    socket.ends(1000);
    pass(100).await;
    assert_eq!(text("badge"), "Ended", "what has ended is not live again");
    Socket::made(3).await.ends(4401);
}

#[wasm_bindgen_test]
async fn where_it_cannot_go_on_it_begins_again_for_whoever_follows() {
    let (api, chunks) = following(true).await;
    Socket(0).ends(1001);
    let socket = Socket::made(1).await;
    socket.says(r#"{"recording": "00ff", "resumed": false}"#);
    socket.tells(0, &chunks);
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("events"), api.number("event")), ("live", 40.0, 40.0));
    // And not for whoever looks at something else.
    api.seek(7).await;
    socket.ends(1006);
    let socket = Socket::made(2).await;
    socket.says(r#"{"recording": "00ff", "resumed": false}"#);
    socket.tells(0, &chunks);
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("event")), ("disconnected", 7.0));
    assert!(text("message-text").contains("cannot go on"), "{}", text("message-text"));
    element("live").click();
    let socket = Socket::made(3).await;
    assert!(socket.url().ends_with("/ws?history=recent&notes=1"), "{}", socket.url());
    socket.says(r#"{"recording": "00ff", "resumed": false}"#);
    socket.tells(0, &chunks);
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("event")), ("live", 40.0));
    socket.ends(4401);
}

#[wasm_bindgen_test]
async fn another_recording_is_not_mixed_in() {
    let (api, _) = following(true).await;
    Socket(0).ends(1006);
    let socket = Socket::made(1).await;
    socket.says(r#"{"recording": "77", "resumed": false}"#);
    socket.tells(0, &chunks("other"));
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("events")), ("disconnected", 19.0));
    assert!(text("message-text").contains("Another one runs here now"), "{}", text("message-text"));
    assert_eq!(text("source"), "program");
}

#[wasm_bindgen_test]
async fn a_server_that_says_nothing_is_known_by_what_it_sends() {
    let (api, all) = following(false).await;
    Socket(0).ends(1006);
    let socket = Socket::made(1).await;
    all.iter().for_each(|chunk| socket.sends(&chunk.bytes));
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("events"), api.number("event")), ("live", 40.0, 40.0));
    socket.ends(1006);
    let socket = Socket::made(2).await;
    chunks("other").iter().for_each(|chunk| socket.sends(&chunk.bytes));
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("events")), ("disconnected", 40.0));
    assert!(text("message-text").contains("Another one runs here now"), "{}", text("message-text"));
}

#[wasm_bindgen_test]
async fn what_a_server_should_not_say_does_nothing() {
    let (api, chunks) = following(true).await;
    for said in [
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
        Socket(0).says(said);
    }
    Socket(0).tells(20, &chunks[20..30]);
    Socket(0).says(r#"{"recording": "<img src=x onerror=alert(1)>&resume=1"}"#);
    Socket(0).tells(30, &chunks[30..]);
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("events")), ("live", 40.0));
    assert!(element("message").hidden(), "{}", text("message-text"));
    Socket(0).ends(4401);
    pass(100).await;
    assert!(text("message-text").contains("token"), "{}", text("message-text"));
    assert_eq!(connection(&api), "disconnected");
    assert!(document().query_selector("img[src=x]").expect("a selector").is_none());
}

#[wasm_bindgen_test]
async fn damaged_bytes_end_the_connection_and_leave_what_was_there() {
    let (api, chunks) = following(true).await;
    let mut damaged = chunks[20].bytes.clone();
    *damaged.last_mut().expect("bytes") ^= 1;
    Socket(0).sends(&damaged);
    pass(100).await;
    assert_eq!((connection(&api).as_str(), api.number("events")), ("disconnected", 19.0));
    assert!(text("message-text").contains("checksum"), "{}", text("message-text"));
    api.seek(3).await;
    assert_eq!(api.number("event"), 3.0);
}
