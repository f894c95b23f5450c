//! Texts that no UTF-8 can hold: names from a disk with another encoding, and halves of characters, which Python writes as JSON.

/// What stands in the place of a byte that is not UTF-8.
const NO_CHARACTER: u8 = b'?';
/// The same for an escape that is half of a character.
const NO_ESCAPE: &[u8; 6] = br"\ufffd";

/// A copy of the text, of the same length, that a reader of JSON takes, and how many places differ; `None` where it would be the same.
pub(super) fn repaired(text: &[u8]) -> Option<(Vec<u8>, u64)> {
    let mut copy = text.to_vec();
    let count = replace_bytes(&mut copy) + replace_halves(&mut copy);
    (count > 0).then_some((copy, count))
}

/// Replaces bytes that are not UTF-8.
fn replace_bytes(text: &mut [u8]) -> u64 {
    let (mut from, mut count) = (0, 0);
    while let Err(error) = std::str::from_utf8(&text[from..]) {
        let begin = from + error.valid_up_to();
        from = error.error_len().map_or(text.len(), |len| begin + len);
        text[begin..from].fill(NO_CHARACTER);
        count += 1;
    }
    count
}

/// Replaces escapes of halves of characters that stand without the other half.
fn replace_halves(text: &mut [u8]) -> u64 {
    let (mut at, mut count) = (0, 0);
    while let Some(place) = text[at..].iter().position(|&byte| byte == b'\\') {
        at += place;
        match half(&text[at..]) {
            // Another character after a backslash, which may be a backslash itself.
            None => at = (at + 2).min(text.len()),
            Some(Half::First) if half(&text[at + 6..]) == Some(Half::Second) => at += 12,
            Some(_) => {
                text[at..at + 6].copy_from_slice(NO_ESCAPE);
                at += 6;
                count += 1;
            }
        }
    }
    count
}

/// Which half of a character an escape stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    First,
    Second,
}

fn half(text: &[u8]) -> Option<Half> {
    let &[b'\\', b'u', b'd' | b'D', digit, third, fourth, ..] = text else { return None };
    let is_escape = third.is_ascii_hexdigit() && fourth.is_ascii_hexdigit();
    match digit {
        b'8'..=b'9' | b'a'..=b'b' | b'A'..=b'B' if is_escape => Some(Half::First),
        b'c'..=b'f' | b'C'..=b'F' if is_escape => Some(Half::Second),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &[u8], becomes: Option<(&str, u64)>) {
        let repaired = repaired(text);
        let text = repaired.as_ref().map(|(copy, count)| (std::str::from_utf8(copy).expect("UTF-8"), *count));
        assert_eq!(text, becomes);
    }

    #[test]
    fn what_no_text_can_hold_is_replaced_in_its_place() {
        check("täx\\u00e4t \u{1f600} \\ud83d\\ude00 \\uD83D\\uDE00 \\\\ud800 \\\"".as_bytes(), None);
        check(b"", None);
        check(b"caf\xe9.py \xff\xfe, \xe2\x82", Some(("caf?.py ??, ??", 4)));
        check(br"\ud800", Some((r"\ufffd", 1)));
        check(br"\udcff\uD83D.\ude00", Some((r"\ufffd\ufffd.\ufffd", 3)));
        check(br"\ud83d\ud83d\ude00\\\udfff", Some((r"\ufffd\ud83d\ude00\\\ufffd", 2)));
        // Cut off, or no escapes.
        for text in [&br"\ud8"[..], br"\", br"\u", br"\ud8zz", br"\ud83d\"] {
            check(text, (text.len() > 6).then_some((r"\ufffd\", 1)));
        }
    }
}
