//! GPUs with their memory as the driver reports it.

/// Memory of a process beside what PyTorch's allocator reserves, in bytes: the CUDA context, loaded
/// kernels and cuBLAS. Measured on an H200 with PyTorch 2.11 (total − free − reserved): 527 to 599
/// MiB with PyTorch's own kernels, 751 to 755 MiB for training with cuBLAS.
pub const CONTEXT_BYTES: u64 = 768 << 20;

/// A GPU model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// The name, without the manufacturer.
    pub name: &'static str,
    /// Total memory in bytes as the driver reports it, the smallest value of several reports.
    pub total_bytes: u64,
}

impl Card {
    /// Returns the bytes that PyTorch's allocator can reserve in a process that has the card alone.
    #[must_use]
    pub const fn usable_bytes(&self) -> u64 {
        self.total_bytes - CONTEXT_BYTES
    }
}

/// Returns a card from its name and memory in hundredths of a GiB, as PyTorch's messages show it.
const fn card(name: &'static str, total_gib_hundredths: u64) -> Card {
    // Messages round to the nearest hundredth; half of one less never exceeds the real size.
    Card { name, total_bytes: ((total_gib_hundredths * 2 - 1) << 30) / 200 }
}

/// GPUs in ascending order of their memory. `docs/advise.md` names the source of each size.
pub const CARDS: [Card; 18] = [
    card("RTX 3060 12GB", 1163),
    card("T4", 1456),
    card("RTX 4060 Ti 16GB", 1556),
    card("V100 16GB", 1575),
    card("A10G", 2203),
    card("L4", 2203),
    card("RTX 4090", 2352),
    card("RTX 3090", 2358),
    card("RTX 5090", 3136),
    card("V100 32GB", 3173),
    card("A100 40GB", 3939),
    card("A40", 4434),
    card("L40S", 4439),
    card("RTX A6000", 4740),
    card("H100 80GB", 7910),
    card("A100 80GB", 7914),
    Card { name: "H200", total_bytes: 150_109_880_320 },
    card("B200", 17835),
];

/// Returns the card with the least memory whose usable bytes hold `capacity_bytes`; `None` if no
/// card of [`CARDS`] does.
#[must_use]
pub fn smallest_card(capacity_bytes: u64) -> Option<&'static Card> {
    CARDS.iter().find(|card| card.usable_bytes() >= capacity_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_sorted_by_memory() {
        assert!(CARDS.is_sorted_by_key(|card| card.total_bytes));
    }

    #[test]
    fn smallest_card_holds_the_capacity_and_the_context() {
        let check = |capacity_bytes, name| {
            assert_eq!(smallest_card(capacity_bytes).map(|card| card.name), name, "{capacity_bytes}");
        };
        check(0, Some("RTX 3060 12GB"));
        check(CARDS[0].usable_bytes(), Some("RTX 3060 12GB"));
        check(CARDS[0].usable_bytes() + 1, Some("T4"));
        check(139 << 30, Some("H200"));
        check(140 << 30, Some("B200"));
        check(178 << 30, None);
        check(u64::MAX, None);
    }
}
