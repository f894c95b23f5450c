//! The visible text of the page, and the file with the text that a view should show.
//!
//! Text is compared exactly, so that a label, a button or a swatch cannot vanish unnoticed: in a
//! small picture of the page, they are no more than a few pixels.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::page::Page;

/// A script that returns the parts of the page with their visible text, in reading order, as pairs
/// of name and text. A part is a header, footer, section, aside or dialog; its name is its label.
///
/// Each block of text and each row of a table is a line. Buttons and fields are in brackets; a
/// square stands for a swatch or another element that only shows a color.
const READ: &str = r"
    const INLINE = new Set('A ABBR B BDI CODE DEL EM I INS KBD LABEL MARK OUTPUT S SMALL SPAN STRONG SUB SUP TIME VAR'
        .split(' '));
    const PARTS = new Set(['HEADER', 'FOOTER', 'SECTION', 'ASIDE', 'DIALOG']);
    const parts = [];
    const collapsed = text => text.replace(/\s+/g, ' ').trim();
    const isVisible = element => element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
    const showsColor = element => {
        const style = getComputedStyle(element), box = element.getBoundingClientRect();
        const hasColor = style.backgroundColor !== 'rgba(0, 0, 0, 0)' || style.backgroundImage !== 'none'
            || style.borderTopWidth !== '0px';
        return hasColor && box.width > 0 && box.height > 0;
    };
    const read = node => {
        if (node.nodeType === Node.TEXT_NODE) return node.data.replace(/\s+/g, ' ');
        if (node.nodeType !== Node.ELEMENT_NODE || !isVisible(node)) return '';
        const label = () => collapsed(node.getAttribute('aria-label') ?? node.title ?? '');
        const children = () => [...node.childNodes].map(read).join('');
        switch (node.tagName) {
            case 'SCRIPT': case 'STYLE': case 'svg': return '';
            case 'CANVAS': return `\n(picture: ${label()})\n`;
            case 'SELECT': return ` [${collapsed(node.selectedOptions[0]?.text ?? '')} ▾] `;
            case 'INPUT': case 'TEXTAREA': {
                if (node.type === 'checkbox' || node.type === 'radio') return node.checked ? ' [x] ' : ' [ ] ';
                return ` [${collapsed(node.value || node.placeholder)}] `;
            }
            case 'BUTTON': {
                const states = [node.disabled && 'disabled', node.ariaPressed === 'true' && 'pressed'].filter(Boolean);
                return ` [${[collapsed(children()) || label(), ...states].join(', ')}] `;
            }
            case 'TD': case 'TH': return children().replaceAll('\n', ' ') + (node.nextElementSibling ? ' | ' : '');
        }
        if (PARTS.has(node.tagName)) {
            const part = { name: label() || node.id || node.tagName.toLowerCase(), text: '' };
            parts.push(part);
            part.text = children();
            return '\n';
        }
        if (!node.hasChildNodes() && showsColor(node)) return '■ ';
        return INLINE.has(node.tagName) ? children() : `\n${children()}\n`;
    };
    const rest = { name: 'rest of the page', text: '' };
    rest.text = read(document.body);
    const lines = text => text.split('\n').map(collapsed).filter(line => line).join('\n');
    return [...parts, rest].map(part => [part.name, lines(part.text)]).filter(([, text]) => text);
";

/// The visible text of the page: names of its parts, and their lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageText(Vec<(String, String)>);

impl PageText {
    /// Reads the text of the page as it is now.
    ///
    /// # Panics
    /// Panics if the page's script fails.
    #[must_use]
    pub fn of(page: Page<'_>) -> Self {
        Self(page.json(READ))
    }

    /// Returns the first difference to the text that is expected, as a sentence; `None` if both are
    /// equal.
    #[must_use]
    pub fn difference(&self, expected: &Self) -> Option<String> {
        if self == expected {
            return None;
        }
        let (expected, actual) = (expected.to_string(), self.to_string());
        let mut lines = (expected.lines().map(Some).chain([None]))
            .zip(actual.lines().map(Some).chain([None]))
            .zip(1..)
            .filter(|((expected, actual), _)| expected != actual);
        let ((expected, actual), number) = lines.next()?;
        let shown = |line: Option<&str>| line.map_or("the end".to_owned(), |line| format!("{line:?}"));
        Some(format!("line {number} is {}, not {}", shown(actual), shown(expected)))
    }
}

impl std::fmt::Display for PageText {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|(name, text)| writeln!(formatter, "## {name}\n{text}\n"))
    }
}

/// The text of a view at every size of the page, as a file stores it.
///
/// A part that is equal at all sizes is in the file once, under the heading `## NAME`. Otherwise
/// the heading lists the sizes: `## NAME | 360x740 800x600`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageTexts {
    /// By index in `sizes`.
    texts: Vec<PageText>,
    sizes: Vec<String>,
}

impl PageTexts {
    /// Reads a file; `None` if it does not exist. `sizes` are the names of all sizes.
    #[must_use]
    pub fn load(path: &Path, sizes: &[String]) -> Option<Self> {
        fs::read_to_string(path).ok().map(|file| Self::parse(&file, sizes))
    }

    /// Creates texts that are the same at all sizes.
    #[must_use]
    pub fn equal(text: PageText, sizes: &[String]) -> Self {
        Self { texts: vec![text; sizes.len()], sizes: sizes.to_vec() }
    }

    /// Parses the content of a file.
    fn parse(file: &str, sizes: &[String]) -> Self {
        let mut texts = vec![PageText::default(); sizes.len()];
        let file = format!("\n{file}");
        for part in file.split("\n## ").skip(1) {
            let (heading, text) = part.split_once('\n').unwrap_or((part, ""));
            let (name, listed) = heading.split_once(" | ").map_or((heading, None), |(name, sizes)| (name, Some(sizes)));
            for (size, PageText(parts)) in sizes.iter().zip(&mut texts) {
                if listed.is_none_or(|listed| listed.split(' ').any(|one| one == size)) {
                    parts.push((name.to_owned(), text.trim_end().to_owned()));
                }
            }
        }
        Self { texts, sizes: sizes.to_vec() }
    }

    /// Returns the text at a size.
    ///
    /// # Panics
    /// Panics if it is none of the sizes.
    #[must_use]
    pub fn at(&self, size: &str) -> &PageText {
        &self.texts[self.index(size)]
    }

    /// Sets the text at a size.
    ///
    /// # Panics
    /// Panics if it is none of the sizes.
    pub fn set(&mut self, size: &str, text: PageText) {
        let index = self.index(size);
        self.texts[index] = text;
    }

    fn index(&self, size: &str) -> usize {
        self.sizes.iter().position(|one| one == size).unwrap_or_else(|| panic!("{size} is none of {:?}", self.sizes))
    }

    /// Writes the file.
    ///
    /// # Panics
    /// Panics if it cannot be written.
    pub fn save(&self, path: &Path) {
        fs::write(path, self.to_file()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Returns the content of the file.
    fn to_file(&self) -> String {
        // The parts in the order of the size that has most.
        let mut order: Vec<&str> = Vec::new();
        let mut by_length: Vec<&PageText> = self.texts.iter().collect();
        by_length.sort_by_key(|PageText(parts)| std::cmp::Reverse(parts.len()));
        for (name, _) in by_length.iter().flat_map(|PageText(parts)| parts) {
            if !order.contains(&name.as_str()) {
                order.push(name);
            }
        }
        let mut file = String::new();
        for name in order {
            let mut sizes_by_text: BTreeMap<usize, (&str, Vec<&str>)> = BTreeMap::new();
            for (size, PageText(parts)) in self.sizes.iter().zip(&self.texts) {
                let Some((_, text)) = parts.iter().find(|(one, _)| one == name) else { continue };
                let known = sizes_by_text.iter().find(|(_, (one, _))| one == text).map(|(index, _)| *index);
                let index = known.unwrap_or(sizes_by_text.len());
                sizes_by_text.entry(index).or_insert((text, Vec::new())).1.push(size);
            }
            for (text, sizes) in sizes_by_text.values() {
                let listed =
                    if sizes.len() == self.sizes.len() { String::new() } else { format!(" | {}", sizes.join(" ")) };
                let _ = writeln!(file, "## {name}{listed}\n{text}\n");
            }
        }
        file.truncate(file.trim_end().len());
        file + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a text of parts.
    fn text(parts: &[(&str, &str)]) -> PageText {
        PageText(parts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect())
    }

    #[test]
    fn texts_survive_saving_and_loading() {
        let sizes = ["1x1", "2x2", "3x3"].map(str::to_owned);
        let mut texts = PageTexts::equal(text(&[("header", "a\nb"), ("footer", "[c]")]), &sizes);
        assert_eq!(texts.to_file(), "## header\na\nb\n\n## footer\n[c]\n");
        texts.set("2x2", text(&[("header", "a"), ("pane", "| x | y"), ("footer", "[c]")]));
        let file = texts.to_file();
        assert_eq!(
            file,
            "## header | 1x1 3x3\na\nb\n\n## header | 2x2\na\n\n## pane | 2x2\n| x | y\n\n## footer\n[c]\n"
        );
        assert_eq!(PageTexts::parse(&file, &sizes), texts);
    }

    #[test]
    fn difference_names_the_first_line() {
        let expected = text(&[("header", "a\nb")]);
        assert_eq!(expected.difference(&expected), None);
        let shown = |parts| text(parts).difference(&expected);
        assert_eq!(shown(&[("header", "a\nc")]).as_deref(), Some(r#"line 3 is "c", not "b""#));
        assert_eq!(shown(&[("header", "a\nb\nc")]).as_deref(), Some(r#"line 4 is "c", not """#));
        assert_eq!(shown(&[]).as_deref(), Some("line 1 is the end, not \"## header\""));
    }
}
