//! A pane in a link: its view, and how the view is shown.

use vramscope_insight::group::GroupBy;

/// Maximum size in bytes of a text in a link, such as a filter or the name of a group.
pub(crate) const MAX_TEXT_BYTES: usize = 1_000;

/// A pane of the page as text in a link (the URL fragment), such as
/// `sites;by:line;at:peak;sort:-bytes;n:3;find:train.py`: the view and its options. Omitted options
/// have their defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PaneLink {
    /// Name of the view.
    pub view: String,
    /// Grouping of the view's rows.
    pub by: Option<GroupBy>,
    /// The view's variant, such as the layout of a picture.
    pub mode: Option<String>,
    /// Name of the column to sort by, and whether the largest comes first.
    pub sort: Option<(String, bool)>,
    /// The filter as typed.
    pub filter: String,
    /// A number that the view's controls set.
    pub number: Option<u64>,
}

impl PaneLink {
    /// Creates a pane that shows a view with its defaults.
    pub fn new(view: impl Into<String>) -> Self {
        Self { view: view.into(), ..Self::default() }
    }

    /// Returns true if all options of the view have their defaults.
    pub fn has_defaults(&self) -> bool {
        *self == Self::new(self.view.as_str())
    }

    /// Parses a pane of a link. Unknown or invalid options are ignored.
    pub(crate) fn parse(text: &str) -> Self {
        let mut parts = text.split(';');
        let mut pane = Self::new(decoded(parts.next().unwrap_or_default()).unwrap_or_default());
        for (name, value) in parts.filter_map(|part| part.split_once(':')) {
            let Some(value) = decoded(value).filter(|value| !value.is_empty()) else { continue };
            match name {
                "by" => pane.by = GroupBy::from_name(&value),
                "at" => pane.mode = Some(value),
                "sort" => {
                    let column = value.strip_prefix('-');
                    pane.sort = Some((column.unwrap_or(&value).to_owned(), column.is_some()));
                }
                "n" => pane.number = value.parse().ok(),
                "find" => pane.filter = value,
                _ => {}
            }
        }
        pane.sort = pane.sort.filter(|(column, _)| !column.is_empty());
        pane
    }

    /// Formats the pane as text for a link: the inverse of [`parse`](Self::parse).
    pub(crate) fn text(&self) -> String {
        let mut text = encoded_part(&self.view);
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                text += &format!(";{name}:{}", encoded_part(&value));
            }
        };
        add("by", self.by.map(|by| by.name().to_owned()));
        add("at", self.mode.clone());
        let sort = self.sort.as_ref();
        add("sort", sort.map(|(column, is_descending)| format!("{}{column}", if *is_descending { "-" } else { "" })));
        add("n", self.number.map(|number| number.to_string()));
        add("find", Some(self.filter.clone()));
        text
    }
}

/// Percent-encodes a text for a link: every byte except letters, digits and `-._~:/,()` becomes `%`
/// and two hexadecimal digits.
pub(crate) fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => encoded.push(char::from(byte)),
            b'-' | b'.' | b'_' | b'~' | b':' | b'/' | b',' | b'(' | b')' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Percent-encodes a text like [`encoded`], and its commas too, because commas separate the panes
/// of a link.
fn encoded_part(text: &str) -> String {
    encoded(text).replace(',', "%2C")
}

/// Decodes a percent-encoded text of a link; `None` if it is invalid or longer than
/// [`MAX_TEXT_BYTES`].
pub(crate) fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_TEXT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panes_are_restored_from_their_text() {
        let pane = PaneLink {
            by: Some(GroupBy::Line),
            mode: Some("peak".to_owned()),
            sort: Some(("bytes".to_owned(), true)),
            filter: "net, \"a;b:c=d&e\" >1MiB ü".to_owned(),
            number: Some(7),
            ..PaneLink::new("sites")
        };
        let text = pane.text();
        assert!(text.starts_with("sites;by:line;at:peak;sort:-bytes;n:7;find:net%2C%20"), "{text}");
        assert!(!text.contains(['&', '=', ',', '#', '"', ' ']), "{text}");
        assert_eq!(PaneLink::parse(&text), pane);
        assert_eq!(PaneLink::new("device").text(), "device");
        assert!(PaneLink::parse("device").has_defaults());
    }

    #[test]
    fn invalid_options_are_ignored() {
        let long = format!("sites;find:{}", "x".repeat(MAX_TEXT_BYTES + 1));
        for text in ["sites;by:nothing;n:-1;sort:-;at:;find:%f;x:1;;", &long] {
            assert_eq!(PaneLink::parse(text), PaneLink::new("sites"), "{text}");
        }
    }
}
