//! Places buffers one after another as low as possible, in several orders.

use std::cmp::Reverse;

use super::budget::Budget;
use super::layout::{Layout, UNPLACED};

/// The order in which buffers are placed. Which one is best differs from program to program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The largest first.
    Size,
    /// The largest product of size and lifetime first.
    Area,
    /// The longest-lived first.
    Length,
}

/// All orders, in the order in which they are tried.
const ORDERS: [Order; 3] = [Order::Size, Order::Area, Order::Length];

/// The greedy placement of all buffers, in one order after another.
#[derive(Clone, Debug)]
pub(super) struct Greedy {
    order: Vec<u32>,
    /// How many of `order` have been placed.
    placed: usize,
    orders_left: std::slice::Iter<'static, Order>,
}

impl Greedy {
    /// Creates a placement before its first order.
    pub(super) fn new() -> Self {
        Self { order: Vec::new(), placed: 0, orders_left: ORDERS.iter() }
    }

    /// Continues the placement. Returns true each time a placement is complete, and false if the
    /// budget is spent or [all orders](Self::is_done) have been tried.
    pub(super) fn run(&mut self, layout: &mut Layout, budget: &mut Budget) -> bool {
        if self.placed == self.order.len() {
            let Some(order) = self.orders_left.next() else { return false };
            self.order = order.of(layout);
            self.placed = 0;
            layout.offsets.fill(UNPLACED);
            budget.spend((self.order.len()) as u64);
        }
        while self.placed < self.order.len() {
            if budget.is_spent() {
                return false;
            }
            let number = self.order[self.placed];
            budget.spend((layout.find_neighbors(number)) as u64);
            layout.offsets[number as usize] = layout.first_fit(number);
            self.placed += 1;
        }
        true
    }

    /// Returns true if all orders have been tried.
    pub(super) fn is_done(&self) -> bool {
        self.placed == self.order.len() && self.orders_left.len() == 0
    }
}

impl Order {
    /// Returns the layout's buffers in this order.
    fn of(self, layout: &Layout) -> Vec<u32> {
        let mut order: Vec<u32> = (0..layout.spans.len() as u32).collect();
        order.sort_by_cached_key(|&number| {
            let span = layout.spans[number as usize];
            let length = u64::from(span.end - span.first);
            let area = u128::from(span.size) * u128::from(length);
            match self {
                Self::Size => (Reverse(u128::from(span.size)), Reverse(length), number),
                Self::Area => (Reverse(area), Reverse(length), number),
                Self::Length => (Reverse(u128::from(length)), Reverse(span.size), number),
            }
        });
        order
    }
}
