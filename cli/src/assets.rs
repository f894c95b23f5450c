//! The page that this binary serves.

use vramscope_collector::{Asset, Assets};

/// Every file of the page, where it was built.
const BUILT: &[Asset] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// What is served in the page's place.
const NOT_BUILT: &[Asset] = &[Asset {
    path: "index.html",
    bytes: b"<!doctype html><meta charset=\"utf-8\"><title>vramscope</title>\
        <p>This vramscope was built without its page. Run <code>cargo xtask build</code> and start it again.</p>\n",
}];

/// The page.
pub(crate) fn page() -> Assets {
    Assets(if BUILT.is_empty() { NOT_BUILT } else { BUILT })
}
