//! What the tests that cross rooms share, and the programs that measure and picture the page.
//!
//! This crate tests no room from inside: it holds the real binary by its command line and its sockets, and the real page by a real
//! browser, the way a user does. A helper here panics with the reason when the world is not as a test needs it.
//!
//! - [`Program`] is a running `vramscope`, known by the URL that it printed.
//! - [`Browser`] is a headless Chromium; [`Page`] is the viewer in it, reached through `window.vramscope`.
//! - [`Load`] is a program that makes any number of events a second and says what its pool holds; [`Watcher`] is a native viewer of it,
//!   [`Proxy`] a network between them that fails, and [`live`] what is measured and shown with them.
//! - [`fixtures`] are the recordings with their ground truth; [`verify`] runs the pool against one. [`made`] are recordings of any length.
#![forbid(unsafe_code)]

mod browser;
pub mod fixtures;
pub mod http;
pub mod live;
mod load;
pub mod made;
mod page;
mod process;
mod program;
mod proxy;
mod random;
mod verified;
mod watcher;

pub use browser::{Browser, ColorScheme, Window};
pub use load::{Load, Moment};
pub use page::{Page, PageState};
pub use process::Taken;
pub use program::{Program, vramscope};
pub use proxy::{Fault, Proxy};
pub use random::Random;
pub use verified::{TABLE_HEAD, verify};
pub use watcher::{Manner, Seen, Watcher, stream_url};
