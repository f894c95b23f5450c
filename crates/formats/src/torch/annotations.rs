//! Annotations: named moments that a snapshot stores beside the history.

use std::collections::HashMap;

use vramscope_trace::{AnnotationStage, StringId};

use super::snapshot::AnnotationRow;

/// Returns the annotations from the time `begin_us` on (microseconds since 1970), sorted by time,
/// and the number of older annotations that were dropped. Keeps the begin of an interval that is
/// still open at `begin_us`.
pub(crate) fn since(rows: &[AnnotationRow], begin_us: i64) -> (Vec<AnnotationRow>, usize) {
    let mut sorted = rows.to_vec();
    sorted.sort_by_key(|row| row.time_us);
    let later_at = sorted.partition_point(|row| row.time_us < begin_us);
    // An annotation that begins before the history and does not end before it is still open.
    let mut open: HashMap<(u16, StringId), Vec<usize>> = HashMap::new();
    for (index, row) in sorted[..later_at].iter().enumerate() {
        match row.stage {
            AnnotationStage::Begin => open.entry((row.device, row.name)).or_default().push(index),
            AnnotationStage::End => {
                open.get_mut(&(row.device, row.name)).and_then(Vec::pop);
            }
            AnnotationStage::Instant => {}
        }
    }
    let mut kept: Vec<usize> = open.into_values().flatten().collect();
    kept.sort_unstable();
    let dropped = later_at - kept.len();
    let rows = kept.into_iter().chain(later_at..sorted.len()).map(|index| sorted[index]).collect();
    (rows, dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an annotation of device 0 with the name number `name`.
    fn row(time_us: i64, stage: AnnotationStage, name: u32) -> AnnotationRow {
        AnnotationRow { device: 0, time_us, stage, name: StringId(name) }
    }

    #[test]
    fn annotations_that_end_before_the_history_are_dropped() {
        let ended = [
            row(1, AnnotationStage::Begin, 1),
            row(2, AnnotationStage::End, 1),
            row(3, AnnotationStage::End, 9),
            row(4, AnnotationStage::Instant, 2),
        ];
        let open = [row(5, AnnotationStage::Begin, 1), row(6, AnnotationStage::Begin, 2)];
        let later = [row(10, AnnotationStage::Begin, 3), row(11, AnnotationStage::End, 2)];
        let all = [later, open].concat().into_iter().chain(ended).collect::<Vec<_>>();
        assert_eq!(since(&all, 10), ([open, later].concat(), 4));
    }
}
