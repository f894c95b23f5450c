//! Everything breaks, and what is shown is right.

use vramscope_tests::fleet::{FaultPlan, break_everything};

/// The long run is `cargo xtask fleet faults=500`.
#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn few_faults_of_all_kinds_lose_nothing() {
    // Each kind at least once.
    let figures = break_everything(&FaultPlan {
        program: env!("CARGO_BIN_EXE_fleet").into(),
        faults: 13,
        ranks: 4,
        seed: 3,
        kinds: 0,
    });
    assert!(figures.failures.is_empty() && figures.checks > 0, "{figures}");
}
