//! Links that open a file in an editor.

use std::fmt::Write;

/// Returns the address that opens a file in an editor: `template` with `{file}` replaced by the
/// path and `{line}` by the line, for example `vscode://file/{file}:{line}`.
///
/// The path is percent-encoded, except for letters, digits and `- . _ ~ /`, so that no path can
/// change the rest of the address. Slashes at its beginning are left out where the template already
/// has one before `{file}`. A line of 0 (unknown) becomes 1.
///
/// ```
/// use vramscope_insight::frames::editor_url;
///
/// let url = editor_url("vscode://file/{file}:{line}", "/home/me/my net.py", 12);
/// assert_eq!(url, "vscode://file/home/me/my%20net.py:12");
/// ```
#[must_use]
pub fn editor_url(template: &str, file: &str, line: u32) -> String {
    let mut url = String::with_capacity(template.len() + file.len());
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        let (before, placeholder) = rest.split_at(at);
        url.push_str(before);
        rest = if let Some(after) = placeholder.strip_prefix("{file}") {
            let path = if url.ends_with('/') { file.trim_start_matches('/') } else { file };
            push_percent_encoded(&mut url, path);
            after
        } else if let Some(after) = placeholder.strip_prefix("{line}") {
            // Writing to a string cannot fail.
            let _ = write!(url, "{}", line.max(1));
            after
        } else {
            url.push('{');
            &placeholder[1..]
        };
    }
    url.push_str(rest);
    url
}

/// Appends a path to a URL, percent-encoding every byte that is not unreserved (RFC 3986) or `/`.
fn push_percent_encoded(url: &mut String, path: &str) {
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            url.push(char::from(byte));
        } else {
            let _ = write!(url, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced_and_paths_encoded() {
        assert_eq!(editor_url("idea://open?file={file}&line={line}", "/a/b.py", 3), "idea://open?file=/a/b.py&line=3");
        assert_eq!(editor_url("x://{file}&{line}", "/a&b?{line}#%.py", 0), "x://a%26b%3F%7Bline%7D%23%25.py&1");
        assert_eq!(editor_url("vscode://file/{file}:{line}", "C:\\net.py", 9), "vscode://file/C%3A%5Cnet.py:9");
        assert_eq!(editor_url("{unknown}{", "a.py", 1), "{unknown}{");
        assert_eq!(editor_url("e:{file}", "ä.py", 1), "e:%C3%A4.py");
    }
}
