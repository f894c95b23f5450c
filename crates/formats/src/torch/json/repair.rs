//! Replaces text that is not valid Unicode: file names from a disk with another encoding, and
//! unpaired surrogates, which Python writes as JSON escapes.

/// The character that replaces each byte that is not part of valid UTF-8.
const REPLACEMENT_BYTE: u8 = b'?';
/// The JSON escape that replaces the escape of an unpaired UTF-16 surrogate.
const REPLACEMENT_ESCAPE: &[u8; 6] = br"\ufffd";

/// Returns a copy of a JSON text, of equal length, in which invalid Unicode is replaced, and the
/// number of replacements; `None` if the text is valid.
pub(super) fn repair(text: &[u8]) -> Option<(Vec<u8>, u64)> {
    let mut copy = text.to_vec();
    let count = replace_bytes(&mut copy) + replace_surrogates(&mut copy);
    (count > 0).then_some((copy, count))
}

/// Replaces each invalid UTF-8 sequence by as many question marks as it has bytes; returns the
/// number of sequences.
fn replace_bytes(text: &mut [u8]) -> u64 {
    let (mut from, mut count) = (0, 0);
    while let Err(error) = std::str::from_utf8(&text[from..]) {
        let begin = from + error.valid_up_to();
        from = error.error_len().map_or(text.len(), |len| begin + len);
        text[begin..from].fill(REPLACEMENT_BYTE);
        count += 1;
    }
    count
}

/// Replaces JSON escapes of UTF-16 surrogates without their other half; returns the number of
/// replacements.
fn replace_surrogates(text: &mut [u8]) -> u64 {
    let (mut at, mut count) = (0, 0);
    while let Some(distance) = text[at..].iter().position(|&byte| byte == b'\\') {
        at += distance;
        match surrogate_at(&text[at..]) {
            // Skip a backslash and the character after it, which may be another backslash.
            None => at = (at + 2).min(text.len()),
            Some(Surrogate::High) if surrogate_at(&text[at + 6..]) == Some(Surrogate::Low) => at += 12,
            Some(_) => {
                text[at..at + 6].copy_from_slice(REPLACEMENT_ESCAPE);
                at += 6;
                count += 1;
            }
        }
    }
    count
}

/// The half of a UTF-16 surrogate pair that a JSON escape encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Surrogate {
    High,
    Low,
}

/// Returns which half of a surrogate pair the JSON escape at the start of `text` encodes, `\ud800`
/// to `\udfff`; `None` for any other text.
fn surrogate_at(text: &[u8]) -> Option<Surrogate> {
    let &[b'\\', b'u', b'd' | b'D', digit, third, fourth, ..] = text else { return None };
    let is_escape = third.is_ascii_hexdigit() && fourth.is_ascii_hexdigit();
    match digit {
        b'8'..=b'9' | b'a'..=b'b' | b'A'..=b'B' if is_escape => Some(Surrogate::High),
        b'c'..=b'f' | b'C'..=b'F' if is_escape => Some(Surrogate::Low),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the repaired text and the number of replacements; `None` for valid text.
    #[track_caller]
    fn check(text: &[u8], expected: Option<(&str, u64)>) {
        let repaired = repair(text);
        let text =
            repaired.as_ref().map(|(copy, count)| (std::str::from_utf8(copy).expect("the copy is UTF-8"), *count));
        assert_eq!(text, expected);
    }

    #[test]
    fn invalid_unicode_is_replaced_in_place() {
        check("täx\\u00e4t \u{1f600} \\ud83d\\ude00 \\uD83D\\uDE00 \\\\ud800 \\\"".as_bytes(), None);
        check(b"", None);
        check(b"caf\xe9.py \xff\xfe, \xe2\x82", Some(("caf?.py ??, ??", 4)));
        check(br"\ud800", Some((r"\ufffd", 1)));
        check(br"\udcff\uD83D.\ude00", Some((r"\ufffd\ufffd.\ufffd", 3)));
        check(br"\ud83d\ud83d\ude00\\\udfff", Some((r"\ufffd\ud83d\ude00\\\ufffd", 2)));
        // Incomplete escapes, and other text after a backslash.
        for text in [&br"\ud8"[..], br"\", br"\u", br"\ud8zz", br"\ud83d\"] {
            check(text, (text.len() > 6).then_some((r"\ufffd\", 1)));
        }
    }
}
