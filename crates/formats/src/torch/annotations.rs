//! Named moments that a snapshot keeps beside the history.

use std::collections::HashMap;

use vramscope_trace::{Stage, StringId};

use super::snapshot::AnnotationRow;

/// The annotations by time, without those that were over before `begin_us`. Unlike the history they are never overwritten, so many may
/// be older than it. Gives also how many were left out.
pub(crate) fn since(rows: &[AnnotationRow], begin_us: i64) -> (Vec<AnnotationRow>, usize) {
    let mut sorted = rows.to_vec();
    sorted.sort_by_key(|row| row.time_us);
    let later_at = sorted.partition_point(|row| row.time_us < begin_us);
    // What began before and has not ended before is open when the history begins.
    let mut open: HashMap<(u16, StringId), Vec<usize>> = HashMap::new();
    for (index, row) in sorted[..later_at].iter().enumerate() {
        match row.stage {
            Stage::Begin => open.entry((row.device, row.name)).or_default().push(index),
            Stage::End => {
                open.get_mut(&(row.device, row.name)).and_then(Vec::pop);
            }
            Stage::Instant => {}
        }
    }
    let mut kept: Vec<usize> = open.into_values().flatten().collect();
    kept.sort_unstable();
    let left_out = later_at - kept.len();
    let rows = kept.into_iter().chain(later_at..sorted.len()).map(|index| sorted[index]).collect();
    (rows, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(time_us: i64, stage: Stage, name: u32) -> AnnotationRow {
        AnnotationRow { device: 0, time_us, stage, name: StringId(name) }
    }

    #[test]
    fn what_was_over_before_the_history_is_left_out() {
        let over = [row(1, Stage::Begin, 1), row(2, Stage::End, 1), row(3, Stage::End, 9), row(4, Stage::Instant, 2)];
        let open = [row(5, Stage::Begin, 1), row(6, Stage::Begin, 2)];
        let later = [row(10, Stage::Begin, 3), row(11, Stage::End, 2)];
        let all = [later, open].concat().into_iter().chain(over).collect::<Vec<_>>();
        assert_eq!(since(&all, 10), ([open, later].concat(), 4));
    }
}
