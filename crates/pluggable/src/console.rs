//! What is said to the person at the terminal.

use std::io::{self, Write};
use std::sync::Arc;

/// Where messages go. An argument of what has some, so that tests hear them.
pub(crate) type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// Says it on stderr, in a line of its own, with the name of who says it.
pub(crate) fn tell(text: &str) {
    // In one write, so that lines of several threads and processes do not mix. There is nobody to tell that nobody listens.
    let _ = io::stderr().write_all(format!("vramscope: {text}\n").as_bytes());
}
