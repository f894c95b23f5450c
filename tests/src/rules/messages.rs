//! Collects the sentences that programs of the workspace show to a person.

use super::rust_source::{Token, tokens};

/// A sentence in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The number of the line it begins in.
    pub line: usize,
    /// Where it is shown.
    pub kind: MessageKind,
    /// The text, placeholders and escapes as written, line continuations removed.
    pub text: String,
}

/// Where a message is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageKind {
    /// An error, a warning, progress or a label.
    Shown,
    /// Command-line help: the doc comment of an argument or a command.
    Help,
    /// Text of the page's HTML.
    Page,
    /// The reason of an assertion, `expect` or panic; shown only for a defect.
    Assertion,
}

/// Calls whose text is only shown for a defect.
const ASSERTIONS: [&str; 12] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "expect",
    "expect_err",
    "panic",
    "unreachable",
    "todo",
    "unimplemented",
];

/// Returns the messages of a Rust file: string literals of two words or more, and doc comments
/// where the file declares command-line arguments. Code behind `#[cfg(test)]` is left out.
#[must_use]
pub fn messages(source: &str) -> Vec<Message> {
    let source = without_tests(source);
    let declares_arguments = ["#[arg", "#[command", "clap::"].iter().any(|sign| source.contains(sign));
    let mut messages: Vec<Message> = Vec::new();
    let mut calls: Vec<String> = Vec::new();
    let mut last_word = String::new();
    for (line, token) in tokens(&source) {
        match token {
            Token::Word(word) => last_word = word,
            Token::Symbol('(' | '[' | '{') => calls.push(std::mem::take(&mut last_word)),
            Token::Symbol(')' | ']' | '}') => drop(calls.pop()),
            Token::Symbol('!') | Token::PathSeparator => {}
            Token::Symbol(_) => last_word.clear(),
            Token::Comment(comment) => {
                let help = comment.strip_prefix("///").filter(|_| declares_arguments);
                if let Some(text) = help.map(str::trim).filter(|text| !text.is_empty()) {
                    push_help(&mut messages, line, text);
                }
            }
            Token::Text(text) => {
                let is_assertion = calls.iter().rev().take(2).any(|call| ASSERTIONS.contains(&call.as_str()));
                let kind = if is_assertion { MessageKind::Assertion } else { MessageKind::Shown };
                let text = joined(&text);
                if is_sentence(&text) {
                    messages.push(Message { line, kind, text });
                }
            }
        }
    }
    messages
}

/// Adds a line of help, joined to the line above where the comment goes on.
fn push_help(messages: &mut Vec<Message>, line: usize, text: &str) {
    if let Some(last) = messages.last_mut() {
        let lines = last.text.matches('\n').count() + 1;
        if last.kind == MessageKind::Help && last.line + lines == line {
            last.text.push('\n');
            last.text.push_str(text);
            return;
        }
    }
    messages.push(Message { line, kind: MessageKind::Help, text: text.to_owned() });
}

/// Removes the line continuations of a string literal.
fn joined(text: &str) -> String {
    let mut parts = text.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |joined, part| joined + part.trim_start())
}

/// Returns true for text of two words or more.
fn is_sentence(text: &str) -> bool {
    let is_word = |word: &&str| word.chars().filter(|c| c.is_alphabetic()).count() > 1;
    text.split_whitespace().filter(is_word).count() > 1
}

/// Returns the source without test modules: up to the first that has its text in this file, which
/// the repository puts last, and without the declarations of those in files of their own.
fn without_tests(source: &str) -> String {
    let mut rest = String::new();
    let mut is_test = false;
    for line in source.lines() {
        let declares_module =
            line.split_once("mod ").is_some_and(|(before, _)| before.is_empty() || before == "pub(crate) ");
        if is_test && declares_module && line.contains('{') {
            break;
        }
        is_test = line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test");
        rest.push_str(line);
        rest.push('\n');
    }
    rest
}

/// Returns the messages of an HTML page: its text, and the attributes that a browser shows or
/// a screen reader reads.
#[must_use]
pub fn page_messages(html: &str) -> Vec<Message> {
    const SHOWN_ATTRIBUTES: [&str; 5] = ["title=\"", "aria-label=\"", "placeholder=\"", "content=\"", "alt=\""];
    let mut messages = Vec::new();
    for (number, line) in html.lines().enumerate() {
        let mut push = |text: &str| {
            if text.chars().any(char::is_alphabetic) {
                messages.push(Message { line: number + 1, kind: MessageKind::Page, text: text.trim().to_owned() });
            }
        };
        for attribute in SHOWN_ATTRIBUTES {
            for (start, _) in line.match_indices(attribute) {
                let value = &line[start + attribute.len()..];
                push(value.split('"').next().unwrap_or_default());
            }
        }
        let (mut text, mut is_tag) = (String::new(), false);
        for letter in line.chars() {
            match letter {
                '<' => is_tag = true,
                '>' => (is_tag, text) = (false, text + " "),
                _ if !is_tag => text.push(letter),
                _ => {}
            }
        }
        push(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart_by_where_they_are_shown() {
        let source = "/// The file to read.\n/// May be compressed.\n#[arg(long)]\nfile: PathBuf,\n\
                      #[error(\"cannot read \\\n    {0}\")]\nfn f() { x.expect(\"the file exists\"); g(\"id\"); }\n\
                      #[cfg(test)]\nmod tests { fn h() { k(\"not shown here\"); } }";
        let message = |line, kind, text: &str| Message { line, kind, text: text.to_owned() };
        let expected = [
            message(1, MessageKind::Help, "The file to read.\nMay be compressed."),
            message(5, MessageKind::Shown, "cannot read {0}"),
            message(7, MessageKind::Assertion, "the file exists"),
        ];
        assert_eq!(messages(source), expected);
    }

    #[test]
    fn code_after_a_declared_test_module_is_read() {
        let source = "#[cfg(test)]\nmod tests;\nfn f() { g(\"a shown text\"); }\n\
                      #[cfg(all(test, unix))]\nmod inline {\n fn h() { k(\"not shown here\"); }\n}\n";
        let texts: Vec<String> = messages(source).into_iter().map(|message| message.text).collect();
        assert_eq!(texts, ["a shown text"]);
    }

    #[test]
    fn text_and_shown_attributes_of_a_page_are_read() {
        let html = "<p id=\"a\" title=\"Go there\">play, <kbd>Space</kbd></p>\nplain text <em>here</em>\n<br>\n";
        let texts: Vec<String> = page_messages(html).into_iter().map(|message| message.text).collect();
        assert_eq!(texts, ["Go there", "play, Space", "plain text here"]);
    }
}
