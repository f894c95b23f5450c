//! Line lengths, and words that mark unclear sentences.

use super::rust_source::{Token, tokens};

/// Longest line of prose, comments included.
pub const MAX_PROSE_COLUMNS: usize = 100;

/// Longest line of code.
pub const MAX_CODE_COLUMNS: usize = 120;

/// Words that hide who acts or what is meant; `docs/style.md` says what to write instead.
const RIDDLES: [&str; 7] = ["whoever", "somebody", "nobody", "those who", "made at home", "house", "guest"];

/// How a file marks comments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// `//` and `/* */`, also for C++ and JavaScript.
    Slashes,
    /// CSS: `/* */`.
    Css,
    /// HTML: `<!-- -->`.
    Html,
    /// Python: `#` and docstrings.
    Python,
    /// Shell: `#`.
    Shell,
    /// Markdown: everything is prose.
    Markdown,
}

impl Language {
    /// Returns the language of a file by its extension; none for data.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        match path.rsplit_once('.')?.1 {
            "rs" | "js" | "cpp" | "cu" => Some(Self::Slashes),
            "css" => Some(Self::Css),
            "html" => Some(Self::Html),
            "py" => Some(Self::Python),
            "sh" | "toml" | "yml" => Some(Self::Shell),
            "md" => Some(Self::Markdown),
            _ => None,
        }
    }
}

/// Returns the numbers of the lines that are too long. Tables, code samples in prose, and lines
/// whose excess is a link or another word without spaces are exempt, and images in documents.
#[must_use]
pub fn long_lines(text: &str, language: Language) -> Vec<usize> {
    let mut long = Vec::new();
    let mut in_sample = false;
    let mut block = Block::None;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let prose = prose_of(trimmed, language, &mut block);
        let content = prose.unwrap_or(trimmed);
        if prose.is_some() && content.starts_with("```") {
            in_sample = !in_sample;
            continue;
        }
        let limit = if prose.is_some() { MAX_PROSE_COLUMNS } else { MAX_CODE_COLUMNS };
        let is_exempt = prose.is_some() && (in_sample || content.starts_with('|') || content.starts_with("!["));
        if columns_that_could_wrap(line) > limit && !is_exempt {
            long.push(index + 1);
        }
    }
    long
}

/// Text over several lines that a line may be inside of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    None,
    /// A block comment or docstring.
    Prose,
    /// Another string literal of Python.
    Code,
}

/// Returns the text of a line of prose or a comment without its marker; none for code.
fn prose_of<'a>(trimmed: &'a str, language: Language, inside: &mut Block) -> Option<&'a str> {
    let delimiters = match language {
        Language::Slashes | Language::Css => Some(("/*", "*/")),
        Language::Html => Some(("<!--", "-->")),
        Language::Python => Some(("\"\"\"", "\"\"\"")),
        Language::Shell | Language::Markdown => None,
    };
    if let Some((open, close)) = delimiters {
        if *inside != Block::None {
            let is_prose = *inside == Block::Prose;
            if trimmed.contains(close) {
                *inside = Block::None;
            }
            return is_prose.then_some(trimmed);
        }
        // A docstring has text behind its quotes; a bare opening begins another string.
        if let Some(rest) = trimmed.strip_prefix(open).filter(|rest| language != Language::Python || !rest.is_empty()) {
            if !rest.contains(close) {
                *inside = Block::Prose;
            }
            return Some(rest.trim_start());
        }
    }
    if language == Language::Python && trimmed.matches("\"\"\"").count() % 2 == 1 {
        *inside = Block::Code;
        return None;
    }
    let marker = match language {
        Language::Slashes => "//",
        Language::Python | Language::Shell => "#",
        Language::Css | Language::Html => return None,
        Language::Markdown => return Some(trimmed),
    };
    trimmed.strip_prefix(marker).map(|rest| rest.trim_start_matches(['/', '!', '#']).trim_start())
}

/// Returns the columns of a line without what cannot be wrapped: the targets of links, URLs, and
/// a last word of more than 40 characters.
fn columns_that_could_wrap(line: &str) -> usize {
    let mut columns = line.chars().count();
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    columns -= targets.map(|(target, _)| target.chars().count()).sum::<usize>();
    let words = line.split_whitespace().filter(|word| !word.contains("]("));
    columns -= words.filter(|word| word.contains("://")).map(|word| word.chars().count()).sum::<usize>();
    let last = line
        .split_whitespace()
        .next_back()
        .filter(|word| !word.contains("://") && !word.contains("]("))
        .map_or(0, |word| word.chars().count());
    if last > 40 { columns - last } else { columns }
}

/// Returns `line: word` for every word of the riddle list in the comments, strings and documents.
#[must_use]
pub fn riddles(text: &str, language: Language) -> Vec<String> {
    let prose: Vec<(usize, String)> = match language {
        Language::Slashes => {
            let texts = tokens(text).into_iter().filter_map(|(line, token)| match token {
                Token::Text(text) | Token::Comment(text) => Some((line, text)),
                _ => None,
            });
            let lines = texts.flat_map(|(line, text)| {
                text.lines().enumerate().map(|(at, part)| (line + at, part.to_owned())).collect::<Vec<_>>()
            });
            lines.collect()
        }
        _ => text.lines().enumerate().map(|(index, line)| (index + 1, line.to_owned())).collect(),
    };
    let found = prose.into_iter().flat_map(|(line, text)| {
        let lower = text.to_lowercase();
        // Text that is nothing but the word is an entry of the list above.
        let words = RIDDLES.iter().filter(|word| lower != **word && contains_word(&lower, word));
        words.map(|word| format!("{line}: {word}")).collect::<Vec<_>>()
    });
    found.collect()
}

/// Returns true if `word` is in `text` with no letter, digit or underscore on either side.
#[must_use]
pub fn contains_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_shorter_than_code() {
        let line =
            |start: &str, columns: usize| format!("{start}{}", "ab ".repeat(columns)[start.len()..columns].to_owned());
        let check = |language, start: &str, columns, is_long| {
            let found = long_lines(&line(start, columns), language);
            assert_eq!(found, if is_long { vec![1] } else { vec![] }, "{language:?} {start:?} {columns}");
        };
        check(Language::Slashes, "// ", 100, false);
        check(Language::Slashes, "    /// ", 101, true);
        check(Language::Slashes, "let x = ", 120, false);
        check(Language::Slashes, "let x = ", 121, true);
        check(Language::Slashes, "/// | a table ", 150, false);
        check(Language::Shell, "# ", 101, true);
        check(Language::Shell, "echo ", 120, false);
        check(Language::Python, "\"\"\"", 101, true);
        check(Language::Python, "x = ", 101, false);
        check(Language::Html, "<!-- ", 101, true);
        check(Language::Css, "/* ", 101, true);
        check(Language::Markdown, "", 101, true);
        check(Language::Markdown, "| a ", 101, false);
        check(Language::Markdown, "[a](https://example.org/a/long/path/to/something) ", 130, false);
        check(Language::Markdown, "https://example.org/a/long/path/to/something ", 130, false);
    }

    #[test]
    fn docstrings_and_samples_are_followed_over_lines() {
        let long = "ab ".repeat(36);
        let docstring = format!("def f():\n    \"\"\"Does.\n\n    {long}\n    \"\"\"\n    {long}\n");
        assert_eq!(long_lines(&docstring, Language::Python), [4]);
        let string = format!("f(\n    \"\"\"\n    {long}\n    \"\"\"\n)\n\"\"\"{long}\"\"\"\n");
        assert_eq!(long_lines(&string, Language::Python), [6]);
        let sample = format!("```text\n{long}\n```\n{long}\n");
        assert_eq!(long_lines(&sample, Language::Markdown), [4]);
    }

    #[test]
    fn riddles_are_found_in_comments_and_strings_only() {
        // Assembled here, so that this file passes.
        let word = ["some", "body"].concat();
        let source = format!("let {word} = 1;\n// {word} asks\nf(\"a\nfor {word}\");\n");
        assert_eq!(riddles(&source, Language::Slashes), [format!("2: {word}"), format!("4: {word}")]);
        assert_eq!(riddles(&format!("not_{word} or\nThose, {word}"), Language::Markdown), [format!("2: {word}")]);
    }
}
