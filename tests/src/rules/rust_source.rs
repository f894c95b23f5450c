//! Reads Rust source as far as the repository's rules need it: tokens, items and paths.
//!
//! No dependency parses Rust in this workspace, and the rules only need names: which items a
//! file defines, what it imports, and which paths it mentions. Code behind `#[cfg(test)]` is
//! skipped.

use std::mem;

/// A token of Rust source. Numbers, lifetimes and character literals are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// An identifier or keyword.
    Word(String),
    /// `::`
    PathSeparator,
    /// Any other character.
    Symbol(char),
    /// A string literal's content, escapes as written.
    Text(String),
    /// A comment with its slashes.
    Comment(String),
}

/// A token and the number of the line it begins in, counted from 1.
pub(super) type Located = (usize, Token);

/// What a file says about one of its modules.
#[derive(Clone, Debug, Default)]
pub(super) struct ModuleSource {
    /// Names of the items that the module defines, methods and fields excluded.
    pub(super) items: Vec<String>,
    /// Names of the modules that stand in files of their own (`mod name;`).
    pub(super) file_modules: Vec<String>,
    /// Modules whose text is part of this file (`mod name { … }`).
    pub(super) inline_modules: Vec<(String, ModuleSource)>,
    /// The leaves of all `use` declarations.
    pub(super) imports: Vec<Import>,
    /// Paths of two or more segments outside of `use` declarations.
    pub(super) paths: Vec<Vec<String>>,
}

/// One leaf of a `use` declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Import {
    /// The imported path, without the `*` of a glob.
    pub(super) path: Vec<String>,
    /// The name under which it can be used here; none for a glob.
    pub(super) name: Option<String>,
    /// True for `pub use`, also with a restriction such as `pub(crate)`.
    pub(super) is_public: bool,
}

/// Returns the tokens of Rust source with their lines.
pub(super) fn tokens(text: &str) -> Vec<Located> {
    let chars: Vec<char> = text.chars().collect();
    let at = |index: usize| chars.get(index).copied().unwrap_or('\0');
    let slice = |from: usize, to: usize| -> String { chars[from..to.min(chars.len())].iter().collect() };
    let mut tokens = Vec::new();
    let (mut index, mut line) = (0, 1);
    while index < chars.len() {
        let (c, start) = (chars[index], index);
        let mut token = None;
        if c == '/' && at(index + 1) == '/' {
            index = skip_line(&chars, index);
            token = Some(Token::Comment(slice(start, index)));
        } else if c == '/' && at(index + 1) == '*' {
            index = skip_block_comment(&chars, index);
            token = Some(Token::Comment(slice(start, index)));
        } else if c.is_alphabetic() || c == '_' {
            while at(index).is_alphanumeric() || at(index) == '_' {
                index += 1;
            }
            let (word, quote) = (slice(start, index), index);
            let is_prefix = ["r", "b", "br", "c", "cr"].contains(&word.as_str());
            if is_prefix && word.contains('r') && is_raw_string(&chars, index) {
                index = skip_raw_string(&chars, index);
                let hashes = chars[quote..].iter().take_while(|c| **c == '#').count() + 1;
                token = Some(Token::Text(slice(quote + hashes, index - hashes)));
            } else if is_prefix && at(index) == '"' {
                index = skip_string(&chars, index);
                token = Some(Token::Text(slice(quote + 1, index - 1)));
            } else if word == "b" && at(index) == '\'' {
                index = skip_quoted(&chars, index);
            } else {
                token = Some(Token::Word(word));
            }
        } else if c == '"' {
            index = skip_string(&chars, index);
            token = Some(Token::Text(slice(start + 1, index - 1)));
        } else if c == '\'' {
            index = skip_quoted(&chars, index);
        } else if c.is_ascii_digit() {
            while at(index).is_alphanumeric() || at(index) == '_' {
                index += 1;
            }
        } else if c == ':' && at(index + 1) == ':' {
            token = Some(Token::PathSeparator);
            index += 2;
        } else {
            token = (!c.is_whitespace()).then_some(Token::Symbol(c));
            index += 1;
        }
        tokens.extend(token.map(|token| (line, token)));
        index = index.min(chars.len());
        line += chars[start..index].iter().filter(|c| **c == '\n').count();
    }
    tokens
}

fn skip_line(chars: &[char], from: usize) -> usize {
    chars[from..].iter().position(|c| *c == '\n').map_or(chars.len(), |line| from + line)
}

fn skip_block_comment(chars: &[char], from: usize) -> usize {
    let (mut depth, mut index) = (0, from);
    while index + 1 < chars.len() {
        match (chars[index], chars[index + 1]) {
            ('/', '*') => (depth, index) = (depth + 1, index + 2),
            ('*', '/') => (depth, index) = (depth - 1, index + 2),
            _ => index += 1,
        }
        if depth == 0 {
            return index;
        }
    }
    chars.len()
}

/// Returns the index behind a string whose opening quote is at `from`.
fn skip_string(chars: &[char], from: usize) -> usize {
    let mut index = from + 1;
    while index < chars.len() && chars[index] != '"' {
        index += if chars[index] == '\\' { 2 } else { 1 };
    }
    index + 1
}

fn is_raw_string(chars: &[char], from: usize) -> bool {
    chars[from..].iter().find(|c| **c != '#') == Some(&'"')
}

fn skip_raw_string(chars: &[char], from: usize) -> usize {
    let hashes = chars[from..].iter().take_while(|c| **c == '#').count();
    let mut index = from + hashes + 1;
    while index < chars.len() {
        let closes =
            chars[index] == '"' && chars[index + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
        if closes {
            return index + 1 + hashes;
        }
        index += 1;
    }
    chars.len()
}

/// Returns the index behind a character literal or a lifetime.
fn skip_quoted(chars: &[char], from: usize) -> usize {
    if chars.get(from + 1) == Some(&'\\') {
        let end = chars.iter().skip(from + 3).position(|c| *c == '\'');
        return end.map_or(chars.len(), |end| from + 4 + end);
    }
    if chars.get(from + 2) == Some(&'\'') {
        return from + 3;
    }
    let is_part = |c: &&char| c.is_alphanumeric() || **c == '_';
    from + 1 + chars[from + 1..].iter().take_while(is_part).count()
}

/// Reads a file's modules from its tokens.
pub(super) fn parse(text: &str) -> ModuleSource {
    let is_code = |token: &Token| !matches!(token, Token::Text(_) | Token::Comment(_));
    let tokens: Vec<Token> = tokens(text).into_iter().map(|(_, token)| token).filter(is_code).collect();
    Parser { tokens: &tokens, index: 0 }.module()
}

struct Parser<'a> {
    tokens: &'a [Token],
    index: usize,
}

const ITEM_KEYWORDS: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "const", "static", "union"];

impl Parser<'_> {
    fn word(&self, ahead: usize) -> Option<&str> {
        match self.tokens.get(self.index + ahead) {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    fn is_symbol(&self, ahead: usize, symbol: char) -> bool {
        self.tokens.get(self.index + ahead) == Some(&Token::Symbol(symbol))
    }

    /// Reads items up to the brace that closes the module, or to the end.
    fn module(&mut self) -> ModuleSource {
        let mut module = ModuleSource::default();
        let mut depth = 0_usize;
        let mut is_public = false;
        while self.index < self.tokens.len() {
            match &self.tokens[self.index] {
                Token::Symbol('#') if self.is_symbol(1, '[') || self.is_symbol(1, '!') => {
                    if self.attribute_is_cfg_test() {
                        self.skip_item();
                    }
                    continue;
                }
                Token::Symbol('{') => depth += 1,
                Token::Symbol('}') if depth == 0 => {
                    self.index += 1;
                    return module;
                }
                Token::Symbol('}') => depth -= 1,
                Token::Symbol(';') => is_public = false,
                Token::Word(word) if word == "pub" => is_public = true,
                Token::Word(word) if word == "use" && !self.is_symbol(1, '<') => {
                    self.index += 1;
                    self.use_tree(&mut Vec::new(), mem::take(&mut is_public), &mut module.imports);
                    continue;
                }
                Token::Word(word) if word == "mod" && self.word(1).is_some() => {
                    let name = self.word(1).unwrap_or_default().to_owned();
                    self.index += 2;
                    is_public = false;
                    if self.is_symbol(0, '{') {
                        self.index += 1;
                        let inline = self.module();
                        module.inline_modules.push((name, inline));
                    } else {
                        module.file_modules.push(name);
                    }
                    continue;
                }
                Token::Word(word) if word == "macro_rules" && self.is_symbol(1, '!') => {
                    module.items.extend(self.word(2).map(str::to_owned));
                }
                Token::Word(word) if depth == 0 && ITEM_KEYWORDS.contains(&word.as_str()) => {
                    is_public = false;
                    let name = self.word(1).filter(|name| !["fn", "unsafe", "mut"].contains(name));
                    module.items.extend(name.map(str::to_owned));
                }
                Token::Word(_) => {
                    if let Some(path) = self.path() {
                        module.paths.push(path);
                        continue;
                    }
                }
                _ => {}
            }
            self.index += 1;
        }
        module
    }

    /// Steps over an attribute and returns true if it is `#[cfg(test)]`.
    fn attribute_is_cfg_test(&mut self) -> bool {
        let is_test = self.word(2) == Some("cfg") && self.word(4) == Some("test") && self.is_symbol(5, ')');
        self.index += if self.is_symbol(1, '!') { 2 } else { 1 };
        self.skip_group('[', ']');
        is_test
    }

    /// Steps over the group that opens at the current token.
    fn skip_group(&mut self, open: char, close: char) {
        let mut depth = 0_usize;
        while let Some(token) = self.tokens.get(self.index) {
            self.index += 1;
            if *token == Token::Symbol(open) {
                depth += 1;
            } else if *token == Token::Symbol(close) {
                depth -= 1;
                if depth == 0 {
                    return;
                }
            }
        }
    }

    /// Steps over an item: up to its `;` or over its braces.
    fn skip_item(&mut self) {
        while self.index < self.tokens.len() {
            if self.is_symbol(0, '{') {
                return self.skip_group('{', '}');
            }
            for (open, close) in [('(', ')'), ('[', ']')] {
                if self.is_symbol(0, open) {
                    self.skip_group(open, close);
                }
            }
            if self.is_symbol(0, ';') {
                self.index += 1;
                return;
            }
            if !self.is_symbol(0, '{') {
                self.index += 1;
            }
        }
    }

    /// Reads a path of two or more segments, as in `crate::a::b`; type arguments end it.
    fn path(&mut self) -> Option<Vec<String>> {
        let is_inside =
            self.index > 0 && matches!(self.tokens[self.index - 1], Token::PathSeparator | Token::Symbol('.'));
        if is_inside || self.tokens.get(self.index + 1) != Some(&Token::PathSeparator) {
            return None;
        }
        let mut path = vec![self.word(0)?.to_owned()];
        self.index += 1;
        while self.tokens.get(self.index) == Some(&Token::PathSeparator) {
            let Some(word) = self.word(1) else { break };
            path.push(word.to_owned());
            self.index += 2;
        }
        Some(path)
    }

    /// Reads one branch of a `use` declaration, up to the `,`, `}` or `;` behind it.
    fn use_tree(&mut self, prefix: &mut Vec<String>, is_public: bool, imports: &mut Vec<Import>) {
        let depth = prefix.len();
        loop {
            match self.tokens.get(self.index) {
                Some(Token::Word(word)) if word == "as" => {
                    let name = self.word(1).map(str::to_owned);
                    imports.push(Import { path: import_path(prefix), name, is_public });
                    self.index += 2;
                    break;
                }
                Some(Token::Word(word)) => {
                    prefix.push(word.clone());
                    self.index += 1;
                    let ends = !matches!(self.tokens.get(self.index), Some(Token::PathSeparator))
                        && self.word(0) != Some("as");
                    if ends {
                        let path = import_path(prefix);
                        let name = path.last().cloned();
                        imports.push(Import { path, name, is_public });
                        break;
                    }
                }
                Some(Token::Symbol('*')) => {
                    imports.push(Import { path: prefix.clone(), name: None, is_public });
                    self.index += 1;
                    break;
                }
                Some(Token::Symbol('{')) => {
                    self.index += 1;
                    while self.index < self.tokens.len() && !self.is_symbol(0, '}') {
                        if self.is_symbol(0, ',') {
                            self.index += 1;
                        } else {
                            self.use_tree(prefix, is_public, imports);
                        }
                    }
                    self.index += 1;
                    break;
                }
                Some(Token::PathSeparator) => self.index += 1,
                _ => {
                    self.index += 1;
                    break;
                }
            }
        }
        prefix.truncate(depth);
    }
}

/// Returns the path of `a::{self}`, which is `a`.
fn import_path(segments: &[String]) -> Vec<String> {
    match segments {
        [path @ .., last] if last == "self" && !path.is_empty() => path.to_vec(),
        path => path.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_lifetimes_hold_no_items_or_paths() {
        let text = "fn f<'a>(x: &'a str) { let _ = (\"use a::b;\", r#\"\"c::d\"\"#, '\"', '\\'', b'x'); } // e::f";
        let parsed = parse(text);
        assert_eq!((parsed.items.as_slice(), parsed.paths.len()), (&["f".to_owned()][..], 0));
    }

    #[test]
    fn strings_and_comments_keep_their_line() {
        let found = tokens("a\n// b\nr#\"c\"d\"# \"e\nf\" 'g' h");
        let text = |text: &str| Token::Text(text.to_owned());
        let expected = [
            (1, Token::Word("a".to_owned())),
            (2, Token::Comment("// b".to_owned())),
            (3, text("c\"d")),
            (3, text("e\nf")),
            (4, Token::Word("h".to_owned())),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn imports_name_what_they_bring_in() {
        let parsed = parse("pub(crate) use a::{self, b as c, d::{e, *}};\nuse super::f;");
        let leaf = |path: &[&str], name: Option<&str>, is_public| Import {
            path: path.iter().map(|&segment| segment.to_owned()).collect(),
            name: name.map(str::to_owned),
            is_public,
        };
        let expected = [
            leaf(&["a"], Some("a"), true),
            leaf(&["a", "b"], Some("c"), true),
            leaf(&["a", "d", "e"], Some("e"), true),
            leaf(&["a", "d"], None, true),
            leaf(&["super", "f"], Some("f"), false),
        ];
        assert_eq!(parsed.imports, expected);
    }

    #[test]
    fn code_for_tests_is_skipped() {
        let parsed = parse("#[cfg(test)]\nmod tests { use super::a; }\n#[cfg(test)] use b::c;\nmod d;\nfn e() {}");
        assert!(parsed.imports.is_empty() && parsed.inline_modules.is_empty(), "{parsed:?}");
        assert_eq!((parsed.file_modules, parsed.items), (vec!["d".to_owned()], vec!["e".to_owned()]));
    }
}
