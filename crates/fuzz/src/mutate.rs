//! Mutates inputs, for tests without a coverage-guided fuzzer.

use crate::random::Random;

/// Values at the limits of integer types.
const BOUNDARY_VALUES: [u64; 8] = [0, 1, 0x7f, 0x80, 0xff, 0xffff, 1 << 31, u64::MAX];
/// Maximum length of a mutated input, in bytes.
const MAX_LEN: usize = 64 << 10;

/// Changes `input` at up to six positions. Some changes copy parts of `other`, another input, or
/// one of `words`.
pub fn mutate(input: &mut Vec<u8>, other: &[u8], words: &[&[u8]], random: &mut Random) {
    for _ in 0..=random.below(6) {
        let at = random.index(input.len() + 1);
        let end = (at + 1 + random.index(16)).min(input.len());
        match random.below(10) {
            0 | 1 if at < input.len() => input[at] ^= 1 << random.below(8),
            2 if at < input.len() => input[at] = random.next() as u8,
            3 => insert(input, at, &random.next().to_le_bytes()[..1 + random.index(8)]),
            4 => drop(input.drain(at.min(end)..end)),
            5 => {
                let boundary = &random.pick(&BOUNDARY_VALUES).to_le_bytes()[..1 << random.below(4)];
                input.iter_mut().skip(at).zip(boundary).for_each(|(byte, boundary)| *byte = *boundary);
            }
            6 => {
                let again = input[at.min(end)..end].repeat(1 + random.index(4));
                insert(input, at, &again);
            }
            7 if !words.is_empty() => insert(input, at, words[random.index(words.len())]),
            8 if !other.is_empty() => {
                let from = random.index(other.len());
                let to = (from + 1 + random.index(64)).min(other.len());
                insert(input, at, &other[from..to]);
            }
            _ if random.below(8) == 0 => input.truncate(at),
            _ => {}
        }
    }
    input.truncate(MAX_LEN);
}

/// Inserts bytes at index `at`.
fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    input.splice(at..at, bytes.iter().copied());
}
