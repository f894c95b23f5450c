//! The user's template for links that open a file in an editor.

use vramscope_insight::frames::editor_url;

/// Maximum size in bytes of a template.
const MAX_BYTES: usize = 300;

/// URL schemes that templates must not have: their URLs run code, contain the opened page, or open
/// pages of the browser itself.
const UNSAFE_SCHEMES: [&str; 9] =
    ["javascript", "vbscript", "data", "blob", "filesystem", "about", "view-source", "chrome", "resource"];

/// A template for links that open a file in an editor: `vscode://file/{file}:{line}`.
///
/// Only templates of the form `scheme://…` with `{file}` are valid. A path from a recording is
/// percent-encoded, so that it cannot change the rest of the URL, and never names the host of an
/// `http` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditorTemplate(String);

impl EditorTemplate {
    /// Parses a template that the user has typed.
    ///
    /// # Errors
    /// If it is not valid: a message for the user.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.len() > MAX_BYTES {
            return Err(format!("the template is too long: at most {MAX_BYTES} characters"));
        }
        let (scheme, rest) = split(text)?;
        if !rest.contains("{file}") {
            return Err("the template must contain {file}, and may contain {line}".to_owned());
        }
        if scheme.starts_with("http") && rest.split(['/', '?', '#']).next().is_none_or(|host| host.contains('{')) {
            return Err("an http address must name its host: https://example.org/{file}#L{line}".to_owned());
        }
        // Paths begin with a slash, except on Windows: `file:///C:/…`.
        let rest = if scheme == "file" && rest.starts_with('{') { format!("/{rest}") } else { rest.to_owned() };
        Ok(Self(format!("{scheme}://{rest}")))
    }

    /// Returns the template as text.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Returns the URL that opens `file` at `line` (0 if unknown); `None` if the file is unknown:
    /// empty or `??`.
    pub fn link(&self, file: &str, line: u32) -> Option<String> {
        (!file.is_empty() && file != "??").then(|| editor_url(&self.0, file, line))
    }
}

/// Splits a URL or a template into its scheme, in lower case, and the part after `://`.
///
/// # Errors
/// If the text has another form, or a link to it would not be safe: a message for the user.
fn split(address: &str) -> Result<(String, &str), String> {
    let is_invalid = |letter: char| letter.is_whitespace() || letter.is_control() || "\"'<>\\`".contains(letter);
    if address.contains(is_invalid) {
        return Err("the template must not contain spaces, quotes or brackets".to_owned());
    }
    let form = || "the template must begin with a scheme: vscode://file/{file}:{line}".to_owned();
    let (scheme, rest) = address.split_once("://").ok_or_else(form)?;
    let is_scheme = scheme.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && scheme.chars().all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter));
    if !is_scheme {
        return Err(form());
    }
    let scheme = scheme.to_ascii_lowercase();
    if UNSAFE_SCHEMES.contains(&scheme.as_str()) {
        return Err(format!("links with {scheme}: are not allowed: use the scheme of an editor, http or file"));
    }
    Ok((scheme, rest))
}

/// Returns true if a link to the URL `address` is safe on the page: it is well-formed, and its
/// scheme does not run code.
pub fn is_safe(address: &str) -> bool {
    split(address).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_contains_the_encoded_path_and_the_line() {
        let check = |template: &str, expected: &str| {
            let template = EditorTemplate::parse(template).expect("a valid template");
            let link = template.link("/home/me/my \"net\".py", 12).expect("a known file");
            assert_eq!(link, expected);
            assert!(is_safe(&link), "{link}");
        };
        check("vscode://file/{file}:{line}", "vscode://file/home/me/my%20%22net%22.py:12");
        check("idea://open?file={file}&line={line}", "idea://open?file=/home/me/my%20%22net%22.py&line=12");
        check("file://{file}", "file:///home/me/my%20%22net%22.py");
        check("file:///{file}", "file:///home/me/my%20%22net%22.py");
        check(" HTTPS://git.example/x{file}#L{line} ", "https://git.example/x/home/me/my%20%22net%22.py#L12");
        let template = EditorTemplate::parse("vscode://file/{file}:{line}").expect("a valid template");
        assert_eq!((template.link("", 3), template.link("??", 3)), (None, None));
    }

    #[test]
    fn paths_cannot_change_the_rest_of_the_address() {
        let template = EditorTemplate::parse("https://git.example/{file}#L{line}").expect("a valid template");
        for path in ["//evil.example/x", "javascript:alert(1)", "/a?b#c&d", "/{line}\n\t<script>", "..\\..\\x@evil"] {
            let link = template.link(path, 1).expect("a known file");
            assert!(link.starts_with("https://git.example/") && link.ends_with("#L1"), "{link}");
            let path = &link["https://git.example/".len()..link.len() - "#L1".len()];
            assert!(path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~/%".contains(&byte)), "{link}");
        }
    }

    #[test]
    fn unsafe_templates_are_refused() {
        for template in [
            "",
            "{file}",
            "vscode:{file}",
            "vscode://file/",
            "javascript:alert(1)//{file}",
            "javascript://%0aalert(1)//{file}",
            "JavaScript://{file}",
            "java\nscript://{file}",
            " \u{1}javascript://{file}",
            "data:text/html,{file}",
            "data://text/html,{file}",
            "vbscript://{file}",
            "1x://{file}",
            "x y://{file}",
            "x://{file}\" onclick=\"alert(1)",
            "https://{file}",
            "https://{file}.evil.example/",
            &format!("x://{{file}}{}", "x".repeat(MAX_BYTES)),
        ] {
            assert!(EditorTemplate::parse(template).is_err(), "{template}");
        }
        assert!(!is_safe("javascript:alert(1)") && !is_safe("data:text/html,x") && !is_safe("x"));
    }
}
