//! Writes texts as Python source code.

/// Returns a Python string literal whose value is `text`.
pub(crate) fn python_literal(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => literal.extend(['\\', c]),
            '\n' => literal.push_str("\\n"),
            ' '..='~' => literal.push(c),
            c => literal.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    literal.push('"');
    literal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_python_literals() {
        let check = |text: &str, literal: &str| assert_eq!(python_literal(text), literal);
        check("/tmp/a b", r#""/tmp/a b""#);
        check("\"\\\n\u{e4}\0", r#""\"\\\n\U000000e4\U00000000""#);
    }
}
