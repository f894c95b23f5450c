//! The menu of the button "Save": every entry makes what it says.

use std::fs;
use std::process::Stdio;

use serde_json::{Value, json};
use vramscope_tests::fixtures::Fixture;
use vramscope_tests::{Browser, Page, Program, Window, vramscope};

/// Clicks an entry of the menu and returns the name and the bytes, in base64, of the file that it
/// downloads.
const SAVE: &str = "
    // The page may not fetch blobs, so the file is kept when its URL is made.
    const create = URL.createObjectURL;
    let file;
    URL.createObjectURL = blob => create(file = blob);
    const saved = new Promise(done => {
        const click = HTMLElement.prototype.click;
        HTMLElement.prototype.click = function () {
            if (!this.download) return click.call(this);
            HTMLElement.prototype.click = click;
            URL.createObjectURL = create;
            done(this.download);
        };
    });
    document.querySelector(`#save-menu [data-command='${arguments[0]}']`).click();
    return saved.then(async name => {
        const reader = new FileReader();
        const read = new Promise(done => reader.onload = done);
        reader.readAsDataURL(file);
        await read;
        return [name, reader.result.slice(reader.result.indexOf(',') + 1)];
    });";

/// Returns a file that an entry of the menu saves: its name and its bytes in base64.
fn save(page: Page<'_>, entry: &str) -> (String, String) {
    page.json_of(SAVE, &[json!(entry)])
}

/// Decodes base64 in the page.
fn decoded(page: Page<'_>, base64: &str) -> Vec<u8> {
    page.json_of("return [...atob(arguments[0])].map(letter => letter.charCodeAt(0))", &[json!(base64)])
}

/// Returns the number of events of a file by `vramscope info`.
fn events(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> u64 {
    let path = folder.path().join(name);
    fs::write(&path, bytes).expect("the file can be written");
    let info = vramscope().arg("info").arg("--json").arg(&path).stderr(Stdio::inherit()).output();
    let info = info.expect("vramscope starts");
    assert!(info.status.success(), "{name}");
    let info: Value = serde_json::from_slice(&info.stdout).expect("valid JSON");
    info["events"].as_u64().expect("a number of events")
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn menu_saves_page_and_snapshot_and_copies_a_link() {
    let fixture = Fixture::small("mlp_train");
    let view = Program::start(["view".as_ref(), fixture.path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    let shown = page.wait_until("the recording is open", |state| state.events > 0);
    let folder = tempfile::tempdir().expect("a temporary folder can be created");

    let (name, page_html) = save(page, "save-html");
    assert!(name.ends_with(".html"), "{name}");
    assert_eq!(events(&folder, "page.html", &decoded(page, &page_html)), shown.events);
    let (name, snapshot) = save(page, "save-snapshot");
    assert!(name.ends_with(".pickle"), "{name}");
    // A snapshot begins with the first request.
    let saved = events(&folder, "snapshot.pickle", &decoded(page, &snapshot));
    assert!(saved > 0 && saved <= shown.events, "{saved} of {} events", shown.events);

    let copied = page.run(
        "let copied;
        navigator.clipboard.writeText = async text => { copied = text; };
        document.querySelector(`#save-menu [data-command='copy-link']`).click();
        return new Promise(done => setTimeout(() => done(copied), 100));",
    );
    assert_eq!(copied, page.run("return location.href"));
    let exported = folder.path().join("page.html");
    let address = format!("file://{}", exported.display());
    let page = Page::open(&browser, &address);
    let opened = page.wait_until("the saved page shows the recording", |state| state.events > 0);
    assert_eq!((opened.events, opened.allocated_bytes), (shown.events, shown.allocated_bytes));
}
