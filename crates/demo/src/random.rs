//! Random numbers that are the same on every run.

/// A xorshift generator.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // The state must not be 0, and close seeds should not give close numbers.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From 0 up to and without 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Between -`most` and `most`.
    pub(crate) fn around_zero(&mut self, most: f32) -> f32 {
        (self.unit() * 2.0 - 1.0) * most
    }

    /// From 0 up to and without `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// From a normal distribution around 0.
    pub(crate) fn normal(&mut self, deviation: f32) -> f32 {
        // 1 - unit is never 0.
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f32::consts::TAU * self.unit()).cos() * deviation
    }
}
