//! Random numbers of several distributions from a seeded generator, equal in every run.

use fastrand::Rng;

/// Returns a uniformly distributed random number between -`limit` and `limit`.
pub(crate) fn symmetric(rng: &mut Rng, limit: f32) -> f32 {
    (rng.f32() * 2.0 - 1.0) * limit
}

/// Returns a normally distributed random number with mean 0 and standard deviation `deviation`.
pub(crate) fn normal(rng: &mut Rng, deviation: f32) -> f32 {
    // The Box-Muller transform; 1 - f32() is never 0.
    let radius = (-2.0 * (1.0 - rng.f32()).ln()).sqrt();
    radius * (std::f32::consts::TAU * rng.f32()).cos() * deviation
}
