//! Tests with the files of the real page, and with short texts in place of the compiled viewer.

use std::io::Read as _;

use flate2::read::GzDecoder;

use super::*;

const INDEX: &str = include_str!("index.html");
const STYLE: &str = include_str!("style.css");
const IMPORTER: &str = include_str!("importer.js");
const ANALYZER: &str = include_str!("analyzer.js");
const BINDINGS: &str = "let wasm;\nfunction start() {}\nexport { initSync, __wbg_init as default };\n";
const WASM: &[u8] = b"\0asm\x01\0\0\0 and more";
const LATER_WASM: &[u8] = b"\0asm\x01\0\0\0 for later";
const IMPORTER_WASM: &[u8] = b"\0asm\x01\0\0\0 of the importer";
const ANALYZER_WASM: &[u8] = b"\0asm\x01\0\0\0 of the analyzer";
/// A recording's name that becomes markup or a script where it is not escaped.
const NAME: &str = "</script></title><script>alert('1')</script><img src=\"x\" onerror='&amp;'><!--.vram";

fn files() -> PageFiles<'static> {
    let worker = |name: &'static str, script: &'static str, wasm: &'static [u8]| PageWorker {
        name,
        script: script.into(),
        bindings: BINDINGS.into(),
        wasm: wasm.into(),
    };
    PageFiles {
        index: INDEX.into(),
        style: STYLE.into(),
        icon: b"<svg/>".into(),
        bindings: BINDINGS.into(),
        wasm: WASM.into(),
        later_wasm: LATER_WASM.into(),
        workers: [worker("importer", IMPORTER, IMPORTER_WASM), worker("analyzer", ANALYZER, ANALYZER_WASM)],
    }
}

#[track_caller]
fn page(name: &str, recording: &[u8]) -> String {
    files().embed(name, recording, Compression::best()).expect("the page has every replaced part")
}

/// Returns the text between `start` and the next `end`.
#[track_caller]
fn between<'t>(text: &'t str, start: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("no {start} in the page"));
    rest.split_once(end).unwrap_or_else(|| panic!("no {end} after {start}")).0
}

#[test]
fn recording_and_viewer_are_embedded_unchanged() {
    let recording: Vec<u8> = (0..100_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for recording in [&recording[..], &recording[..7], &[]] {
        let page = page("a.vram", recording);
        let embedded = between(&page, "id=\"recording\" data-name=\"a.vram\">", "</script>");
        assert!(BASE64.decode(embedded).expect("the text is base64") == recording);
        for (id, expected) in [
            ("viewer-wasm", WASM),
            ("viewer-later-wasm", LATER_WASM),
            ("importer-wasm", IMPORTER_WASM),
            ("analyzer-wasm", ANALYZER_WASM),
        ] {
            let packed = between(&page, &format!("id=\"{id}\">"), "</script>");
            let packed = BASE64.decode(packed).expect("the text is base64");
            let mut wasm = Vec::new();
            GzDecoder::new(packed.as_slice()).read_to_end(&mut wasm).expect("the data is gzip");
            assert_eq!(wasm, expected);
        }
    }
}

#[test]
fn template_has_one_place_for_recording_and_title() {
    // `www/start.js` replaces these texts.
    let page = page("", b"");
    for text in ["data-name=\"\"></script>", "<title> ·"] {
        assert_eq!(page.matches(text).count(), 1, "{text}");
    }
}

#[test]
fn each_worker_is_one_module() {
    let page = page("a.vram", b"recording");
    for name in ["importer", "analyzer"] {
        let script = between(&page, &format!("id=\"{name}-script\">"), "</script>");
        assert!(script.contains(BINDINGS) && script.contains("onmessage = "));
        assert!(!script.contains("\nimport "), "a script in a blob cannot import files");
    }
}

#[test]
fn policy_allows_only_the_embedded_style_and_script() {
    let page = page("a.vram", b"recording");
    let policy = between(&page, "<meta http-equiv=\"Content-Security-Policy\" content=\"", "\"");
    let (style, script) =
        (between(&page, "<style>", "</style>"), between(&page, "<script type=\"module\">", "</script>"));
    assert_eq!(style, STYLE);
    assert!(script.starts_with(BINDINGS) && script.ends_with(LOADER));
    let rules: Vec<&str> = policy.split("; ").collect();
    assert_eq!(rules[0], "default-src 'none'");
    assert!(rules.contains(&format!("script-src '{}' 'wasm-unsafe-eval'", csp_hash(script)).as_str()), "{policy}");
    assert!(rules.contains(&format!("style-src '{}'", csp_hash(style)).as_str()), "{policy}");
    for word in ["unsafe-inline", "'unsafe-eval'", "http", "*", "connect-src", "'self'"] {
        assert!(!policy.contains(word), "{policy}");
    }
    // A policy applies only to the elements after it.
    let policy_at = page.find("Content-Security-Policy").expect("the page has a policy");
    let starts = ["<style", "<script", "<link", "<img"].map(|tag| page.find(tag));
    assert!(starts.iter().flatten().all(|&start| policy_at < start));
}

#[test]
fn hash_matches_the_specification() {
    // The example in the specification of content security policies.
    assert_eq!(csp_hash("alert('Hello, world.');"), "sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng=");
}

#[test]
fn names_are_escaped_everywhere() {
    let (plain, page) = (page("a.vram", b"recording"), page(NAME, b"recording"));
    let markup = |page: &str| ["<script", "</script", "<img", "</title", "<!--"].map(|part| page.matches(part).count());
    assert_eq!(markup(&page), markup(&plain));
    assert_eq!(page.matches("alert(").count(), 2, "once in the title and once in the recording's name");
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
fn page_refers_to_no_other_file() {
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
fn check_error(files: &PageFiles<'_>, expected: &str) {
    let error = files.embed("a.vram", b"", Compression::best()).expect_err("the files cannot be embedded").to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn unembeddable_page_files_are_errors() {
    for bindings in ["const a = '</SCRIPT>';", "// <!-- <script>"] {
        check_error(&PageFiles { bindings: bindings.into(), ..files() }, "script");
    }
    check_error(&PageFiles { style: "a { content: '</style>' }".into(), ..files() }, "style");
    let index = INDEX.replace("./panels.css", "./other.css");
    check_error(&PageFiles { index: index.into(), ..files() }, "panels.css");
}
