//! Recognizes repeated, late and missing numbers of a sequence.

/// Maximum distance behind the newest number at which a late number is recognized.
const WINDOW: u64 = 64;

/// The position of a number relative to the numbers received before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is the newest; `missing` numbers before it have not arrived.
    Newest {
        /// How many numbers lie between it and the one that was the newest before.
        missing: u64,
    },
    /// It was counted as missing, and has arrived after a newer one.
    Late,
    /// It has arrived before, is too old to tell, or lies before the first number. The largest
    /// number counts as repeated, too.
    Repeated,
}

/// The numbers of a sequence that have arrived, of which the newest 64 are known one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceWindow {
    /// The number after the newest.
    next: u64,
    /// The missing numbers: bit 0 stands for `next - 1`, bit 1 for the number before, and so on.
    missing: u64,
}

impl SequenceWindow {
    /// Creates the window of a sequence that begins with `first`. Earlier numbers count as
    /// repeated.
    #[must_use]
    pub fn new(first: u64) -> Self {
        Self { next: first, missing: 0 }
    }

    /// Adds a number that has arrived, and returns its position relative to the earlier ones.
    pub fn add(&mut self, number: u64) -> Arrival {
        if let Some(missing) = number.checked_sub(self.next) {
            let Some(next) = number.checked_add(1) else { return Arrival::Repeated };
            self.next = next;
            // The new number takes bit 0, the missing numbers before it take the bits above.
            let ones = 1_u64.checked_shl(missing.min(WINDOW) as u32).map_or(u64::MAX, |bit| bit - 1);
            let earlier = u32::try_from(missing + 1).ok().and_then(|shift| self.missing.checked_shl(shift));
            self.missing = earlier.unwrap_or(0) | ones << 1;
            return Arrival::Newest { missing };
        }
        let age = self.next - 1 - number;
        if age >= WINDOW || self.missing & (1 << age) == 0 {
            return Arrival::Repeated;
        }
        self.missing &= !(1 << age);
        Arrival::Late
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn late_numbers_are_told_from_repeated_ones() {
        let mut window = SequenceWindow::new(0);
        let newest = |missing| Arrival::Newest { missing };
        let numbers = [
            (2, newest(2)),
            (2, Arrival::Repeated),
            (0, Arrival::Late),
            (0, Arrival::Repeated),
            (3, newest(0)),
            (1, Arrival::Late),
            (100, newest(96)),
            (36, Arrival::Repeated),
            (37, Arrival::Late),
            (99, Arrival::Late),
            (u64::MAX - 1, newest(u64::MAX - 102)),
            (u64::MAX, Arrival::Repeated),
        ];
        for (number, expected) in numbers {
            assert_eq!(window.add(number), expected, "{number}");
        }
        assert_eq!(SequenceWindow::new(7).add(6), Arrival::Repeated);
    }

    proptest! {
        #[test]
        fn window_agrees_with_a_set(numbers in prop::collection::vec(0_u64..200, 0..300)) {
            let (mut window, mut arrived, mut newest) = (SequenceWindow::new(0), BTreeSet::new(), None);
            for number in numbers {
                let expected = match newest {
                    Some(newest) if number > newest => Arrival::Newest { missing: number - newest - 1 },
                    None => Arrival::Newest { missing: number },
                    Some(newest) if newest - number >= WINDOW || arrived.contains(&number) => Arrival::Repeated,
                    Some(_) => Arrival::Late,
                };
                newest = newest.max(Some(number));
                arrived.insert(number);
                prop_assert_eq!(window.add(number), expected);
            }
        }
    }
}
