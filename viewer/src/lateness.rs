//! How far behind a running program a page is that cannot keep up with it.

/// What is less is not worth a word.
const WORTH_SAYING_MS: f64 = 2000.0;

/// How late the newest events came on the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lateness {
    /// The age of the one that was on the screen soonest: clocks of two machines differ, and by no more than this.
    least_ms: Option<f64>,
    behind_ms: f64,
}

impl Lateness {
    /// The newest event came on the screen at this age, by the clocks of two machines.
    pub fn drawn(&mut self, age_ms: f64) {
        let least_ms = self.least_ms.map_or(age_ms, |least_ms| least_ms.min(age_ms));
        *self = Self { least_ms: Some(least_ms), behind_ms: age_ms - least_ms };
    }

    /// Seconds that the page is behind; 0 where it keeps up.
    #[must_use]
    pub fn behind_s(&self) -> u64 {
        if self.behind_ms < WORTH_SAYING_MS { 0 } else { (self.behind_ms / 1000.0) as u64 }
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_keeps_up_is_not_behind_whatever_the_clocks_say() {
        for skew_ms in [-3_600_000.0, 0.0, 7_000.0] {
            let mut lateness = Lateness::default();
            assert_eq!(lateness.behind_s(), 0);
            let check = |lateness: &mut Lateness, age_ms: f64, expected: u64| {
                lateness.drawn(skew_ms + age_ms);
                assert_eq!(lateness.behind_s(), expected, "at {age_ms} ms with clocks {skew_ms} ms apart");
            };
            check(&mut lateness, 60.0, 0);
            check(&mut lateness, 1500.0, 0);
            check(&mut lateness, 7400.0, 7);
            check(&mut lateness, 30.0, 0);
        }
    }
}
