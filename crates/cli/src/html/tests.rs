//! The page with a recording in it, of the real page's files and a viewer that is none.

use std::io::Read as _;

use flate2::read::GzDecoder;

use super::*;

const INDEX: &str = include_str!("../../../../www/index.html");
const STYLE: &str = include_str!("../../../../www/style.css");
const GLUE: &str = "let wasm;\nfunction start() {}\nexport { initSync, __wbg_init as default };\n";
const WASM: &[u8] = b"\0asm\x01\0\0\0 and more";
/// A name that would be markup, and a script, wherever it were not escaped.
const NAME: &str = "</script></title><script>alert('1')</script><img src=\"x\" onerror='&amp;'><!--.vram";

fn parts() -> Parts<'static> {
    Parts { index: INDEX, style: STYLE, icon: b"<svg/>", glue: GLUE, wasm: WASM }
}

#[track_caller]
fn page(name: &str, recording: &[u8]) -> String {
    parts().page(name, recording).expect("the page has all that is expected")
}

/// What stands between `before` and the next `behind`.
#[track_caller]
fn between<'t>(text: &'t str, before: &str, behind: &str) -> &'t str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no {before} in the page"));
    rest.split_once(behind).unwrap_or_else(|| panic!("no {behind} behind {before}")).0
}

#[test]
fn the_recording_and_the_viewer_come_back_as_they_were() {
    let recording: Vec<u8> = (0..100_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for recording in [&recording[..], &recording[..7], &[]] {
        let page = page("a.vram", recording);
        let held = between(&page, "id=\"recording\" data-name=\"a.vram\">", "</script>");
        assert!(BASE64.decode(held).expect("base64") == recording);
        let packed = BASE64.decode(between(&page, "id=\"viewer-wasm\">", "</script>")).expect("base64");
        let mut wasm = Vec::new();
        GzDecoder::new(packed.as_slice()).read_to_end(&mut wasm).expect("gzip");
        assert_eq!(wasm, WASM);
    }
}

#[test]
fn the_policy_allows_what_is_in_the_page_and_nothing_else() {
    let page = page("a.vram", b"recording");
    let policy = between(&page, "<meta http-equiv=\"Content-Security-Policy\" content=\"", "\"");
    let (style, script) =
        (between(&page, "<style>", "</style>"), between(&page, "<script type=\"module\">", "</script>"));
    assert_eq!(style, STYLE);
    assert!(script.starts_with(GLUE) && script.ends_with(LOADER));
    let rules: Vec<&str> = policy.split("; ").collect();
    assert_eq!(rules[0], "default-src 'none'");
    assert!(rules.contains(&format!("script-src '{}' 'wasm-unsafe-eval'", hash(script)).as_str()), "{policy}");
    assert!(rules.contains(&format!("style-src '{}'", hash(style)).as_str()), "{policy}");
    for word in ["unsafe-inline", "'unsafe-eval'", "http", "*", "connect-src", "'self'"] {
        assert!(!policy.contains(word), "{policy}");
    }
    // It stands before everything that it is about.
    let at = page.find("Content-Security-Policy").expect("it is there");
    assert!(["<style", "<script", "<link", "<img"].iter().all(|part| page.find(part).is_none_or(|part| at < part)));
}

#[test]
fn sha256_is_what_browsers_reckon() {
    // The example of the policy's specification.
    assert_eq!(hash("alert('Hello, world.');"), "sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng=");
}

#[test]
fn a_name_is_text_wherever_it_stands() {
    let (plain, page) = (page("a.vram", b"recording"), page(NAME, b"recording"));
    let markup = |page: &str| ["<script", "</script", "<img", "</title", "<!--"].map(|part| page.matches(part).count());
    assert_eq!(markup(&page), markup(&plain));
    assert_eq!(page.matches("alert(").count(), 2, "in the title and in the recording's name");
    let name = between(&page, "data-name=\"", "\"");
    let unescaped = name
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#39;", "'")
        .replace("&amp;", "&");
    assert_eq!(unescaped, NAME);
}

#[test]
fn the_page_asks_for_nothing_beside_it() {
    let page = page("a.vram", b"recording");
    for attribute in ["src=\"", "href=\""] {
        for target in page.split(attribute).skip(1) {
            assert!(target.starts_with("data:"), "{attribute}{}", &target[..target.len().min(40)]);
        }
    }
    let style = between(&page, "<style>", "</style>");
    assert!(!style.contains("url(") && !style.contains("@import"));
    assert!(!page.contains("main.js"));
}

#[track_caller]
fn check_refused(parts: &Parts<'_>, said: &str) {
    let failure = parts.page("a.vram", b"").expect_err("it cannot be made").to_string();
    assert!(failure.contains(said), "{failure}");
}

#[test]
fn what_would_end_early_is_refused() {
    for glue in ["const a = '</SCRIPT>';", "// <!-- <script>"] {
        check_refused(&Parts { glue, ..parts() }, "script");
    }
    check_refused(&Parts { style: "a { content: '</style>' }", ..parts() }, "style");
    let index = INDEX.replace("./style.css", "./other.css");
    check_refused(&Parts { index: &index, ..parts() }, "style.css");
}
