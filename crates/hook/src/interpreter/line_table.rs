//! Converts an instruction offset to a line number.
//!
//! The bytes of a table come from the interpreter's memory, so any bytes are valid input: a
//! malformed table has wrong or no line numbers, and nothing else happens.

/// Format of `co_linetable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineTableFormat {
    /// CPython 3.10: pairs of a length in bytes and a line delta (PEP 626,
    /// `Objects/lnotab_notes.txt`).
    LineDeltas,
    /// CPython 3.11 and later: entries of 1 to 8 instructions with line and columns
    /// (`Objects/locations.md`).
    Locations,
}

/// The line numbers of a code object's instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineTable<'b> {
    format: LineTableFormat,
    /// Line of the function's definition, from which the table counts.
    first_line: i32,
    /// Content of `co_linetable`.
    bytes: &'b [u8],
}

/// A range of consecutive instructions of one source line.
struct LineRange {
    /// Offset behind the last instruction, in bytes.
    end: u64,
    /// Line number; `None` for instructions that the compiler added.
    line: Option<i64>,
}

impl<'b> LineTable<'b> {
    /// Creates a line table from the content of `co_linetable` and `co_firstlineno`.
    pub(crate) const fn new(format: LineTableFormat, first_line: i32, bytes: &'b [u8]) -> Self {
        Self { format, first_line, bytes }
    }

    /// Returns the number of bytes of the table.
    pub(super) const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the line number of the instruction at a byte offset.
    ///
    /// A negative offset, of a function that has not begun, gives the line of the definition.
    /// Returns `None` for an instruction that belongs to no line or that the table lacks.
    pub(crate) fn line_number(&self, instruction_offset: i32) -> Option<u32> {
        let Ok(offset) = u64::try_from(instruction_offset) else { return u32::try_from(self.first_line).ok() };
        let covers = |range: &LineRange| offset < range.end;
        let first_line = i64::from(self.first_line);
        let range = match self.format {
            LineTableFormat::LineDeltas => line_deltas(self.bytes, first_line).find(covers),
            LineTableFormat::Locations => locations(self.bytes, first_line).find(covers),
        };
        range?.line.and_then(|line| u32::try_from(line).ok())
    }
}

/// Returns the ranges of a table of CPython 3.10.
fn line_deltas(bytes: &[u8], first_line: i64) -> impl Iterator<Item = LineRange> {
    /// The line delta of instructions without a line.
    const NO_LINE: i8 = -128;
    let (mut end, mut line) = (0, first_line);
    bytes.as_chunks().0.iter().map(move |&[length, delta]| {
        end += u64::from(length);
        let delta = delta.cast_signed();
        if delta == NO_LINE {
            return LineRange { end, line: None };
        }
        line += i64::from(delta);
        LineRange { end, line: Some(line) }
    })
}

/// Returns the ranges of a table of CPython 3.11 or later.
///
/// The first byte of an entry has bit 7 set, its kind in the bits 3 to 6, and the number of
/// instructions less one in the bits 0 to 2. Other bytes have bit 7 clear.
fn locations(bytes: &[u8], first_line: i64) -> impl Iterator<Item = LineRange> {
    /// Size of an instruction, in bytes.
    const INSTRUCTION_BYTES: u64 = 2;
    let (mut end, mut line) = (0, first_line);
    bytes.chunk_by(|_, next| next & 0x80 == 0).map(move |entry| {
        let (head, arguments) = entry.split_first().unwrap_or((&0, &[]));
        end += (u64::from(head & 0b111) + 1) * INSTRUCTION_BYTES;
        let delta = match head >> 3 & 0b1111 {
            // Kind 0 to 9: columns on the line of the previous entry.
            0..=9 => 0,
            // Kind 10 to 12: columns on a line 0 to 2 lines further.
            kind @ 10..=12 => i64::from(kind - 10),
            // Kind 13: a line without columns; kind 14: a range of lines with columns.
            13 | 14 => signed_varint(arguments),
            _ => return LineRange { end, line: None },
        };
        line += delta;
        LineRange { end, line: Some(line) }
    })
}

/// Decodes the signed number at the start of an entry's arguments: 6 bits in each byte, the lowest
/// first; bit 6 is set in all but the last byte. The number's lowest bit is the sign.
fn signed_varint(bytes: &[u8]) -> i64 {
    let mut value = 0_u64;
    for (index, byte) in bytes.iter().take(6).enumerate() {
        value |= u64::from(byte & 0x3f) << (6 * index);
        if byte & 0x40 == 0 {
            break;
        }
    }
    let magnitude = (value >> 1).cast_signed();
    if value & 1 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The tables and their lines are those of this function, which is on line 42, as `co_linetable`
    // and `co_lines()` give them. 200 empty lines precede `return`, 140 the last parenthesis:
    //
    //     def sample(self, items):
    //         for item in items:
    //             if (
    //                 item
    //                 and self
    //             ):
    //                 continue
    //         try:
    //             with self:
    //                 call(
    //                     items,
    //                 )
    //         finally:
    //             print(items)
    //         return (
    //             items
    //         )

    /// Table of the sample function, compiled by CPython 3.10.13.
    #[rustfmt::skip]
    const TABLE_3_10: &[u8] = &[
        0x08, 0x01, 0x02, 0x02, 0x02, 0xff, 0x02, 0x02, 0x02, 0xfe, 0x02, 0x04, 0x02, 0x80, 0x02,
        0x01, 0x06, 0x01, 0x02, 0x01, 0x02, 0x01, 0x06, 0xff, 0x1e, 0xff, 0x08, 0x05, 0x00, 0x7f,
        0x02, 0x4c, 0x02, 0xff, 0x00, 0x81, 0x02, 0xb0, 0x08, 0x05, 0x00, 0x7f, 0x02, 0x4c, 0x02,
        0xff, 0x00, 0x81, 0x0a, 0xb5,
    ];
    /// End offset and line of each run of instructions in that table.
    #[rustfmt::skip]
    const LINES_3_10: &[(i32, Option<u32>)] = &[
        (8, Some(43)), (10, Some(45)), (12, Some(44)), (14, Some(46)), (16, Some(44)),
        (18, Some(48)), (20, None), (22, Some(49)), (28, Some(50)), (30, Some(51)),
        (32, Some(52)), (38, Some(51)), (68, Some(50)), (76, Some(55)), (78, Some(258)),
        (80, Some(257)), (82, Some(50)), (90, Some(55)), (92, Some(258)), (94, Some(257)),
        (104, Some(55)),
    ];

    /// Table of the sample function, compiled by CPython 3.11.7.
    #[rustfmt::skip]
    const TABLE_3_11: &[u8] = &[
        0x80, 0x00, 0xd8, 0x10, 0x15, 0xf0, 0x00, 0x05, 0x05, 0x15, 0xf0, 0x00, 0x05, 0x05, 0x15,
        0x88, 0x04, 0xe0, 0x0c, 0x10, 0xf0, 0x03, 0x04, 0x09, 0x15, 0xe0, 0x10, 0x14, 0xf0, 0x05,
        0x04, 0x09, 0x15, 0xf0, 0x08, 0x00, 0x0d, 0x15, 0xf8, 0xf0, 0x02, 0x06, 0x05, 0x15, 0xd8,
        0x0d, 0x11, 0xf0, 0x00, 0x03, 0x09, 0x0e, 0xf0, 0x00, 0x03, 0x09, 0x0e, 0xdd, 0x0c, 0x10,
        0xd8, 0x10, 0x15, 0xf1, 0x03, 0x02, 0x0d, 0x0e, 0xf4, 0x00, 0x02, 0x0d, 0x0e, 0xf0, 0x00,
        0x02, 0x0d, 0x0e, 0xf0, 0x03, 0x03, 0x09, 0x0e, 0xf0, 0x00, 0x03, 0x09, 0x0e, 0xf0, 0x00,
        0x03, 0x09, 0x0e, 0xf1, 0x00, 0x03, 0x09, 0x0e, 0xf4, 0x00, 0x03, 0x09, 0x0e, 0xf0, 0x00,
        0x03, 0x09, 0x0e, 0xf0, 0x00, 0x03, 0x09, 0x0e, 0xf0, 0x00, 0x03, 0x09, 0x0e, 0xf0, 0x00,
        0x03, 0x09, 0x0e, 0xf0, 0x00, 0x03, 0x09, 0x0e, 0xf0, 0x00, 0x03, 0x09, 0x0e, 0xf8, 0xf8,
        0xf8, 0xf0, 0x00, 0x03, 0x09, 0x0e, 0xf0, 0x00, 0x03, 0x09, 0x0e, 0xf0, 0x00, 0x03, 0x09,
        0x0e, 0xf0, 0x00, 0x03, 0x09, 0x0e, 0xf5, 0x0a, 0x00, 0x09, 0x0e, 0x88, 0x65, 0x89, 0x0c,
        0x8c, 0x0c, 0x88, 0x0c, 0x88, 0x0c, 0xf8, 0x8d, 0x05, 0x88, 0x65, 0x89, 0x0c, 0x8c, 0x0c,
        0x88, 0x0c, 0x88, 0x0c, 0xf8, 0xf8, 0xf8, 0xf0, 0x56, 0x06, 0x00, 0x09, 0x0e, 0xf0, 0x03,
        0x4f, 0x02, 0x05, 0x06,
    ];
    /// End offset and line of each run of instructions in that table.
    #[rustfmt::skip]
    const LINES_3_11: &[(i32, Option<u32>)] = &[
        (2, Some(42)), (10, Some(43)), (12, Some(45)), (14, Some(44)), (16, Some(46)),
        (18, Some(44)), (20, Some(48)), (22, None), (24, Some(49)), (30, Some(50)),
        (42, Some(51)), (44, Some(52)), (60, Some(51)), (92, Some(50)), (98, None),
        (106, Some(50)), (138, Some(55)), (140, None), (172, Some(55)), (178, None),
        (180, Some(258)), (182, Some(257)),
    ];

    /// Table of the sample function, compiled by CPython 3.12.1.
    #[rustfmt::skip]
    const TABLE_3_12: &[u8] = &[
        0x80, 0x00, 0xd8, 0x10, 0x15, 0xf2, 0x00, 0x05, 0x05, 0x15, 0x88, 0x04, 0xe2, 0x0c, 0x10,
        0xda, 0x10, 0x14, 0xe0, 0x0c, 0x14, 0xf0, 0x0b, 0x05, 0x05, 0x15, 0xf0, 0x0c, 0x06, 0x05,
        0x15, 0xd8, 0x0d, 0x11, 0xf1, 0x00, 0x03, 0x09, 0x0e, 0xdc, 0x0c, 0x10, 0xd8, 0x10, 0x15,
        0xf4, 0x03, 0x02, 0x0d, 0x0e, 0xf7, 0x03, 0x03, 0x09, 0x0e, 0xf4, 0x0a, 0x00, 0x09, 0x0e,
        0x88, 0x65, 0x8c, 0x0c, 0xf0, 0x56, 0x06, 0x00, 0x09, 0x0e, 0xf0, 0x03, 0x4f, 0x02, 0x05,
        0x06, 0xf7, 0x5f, 0x06, 0x03, 0x09, 0x0e, 0xf0, 0x00, 0x03, 0x09, 0x0e, 0xfb, 0xf4, 0x0a,
        0x00, 0x09, 0x0e, 0x88, 0x65, 0x8d, 0x0c, 0xfa,
    ];
    /// End offset and line of each run of instructions in that table.
    #[rustfmt::skip]
    const LINES_3_12: &[(i32, Option<u32>)] = &[
        (2, Some(42)), (12, Some(43)), (18, Some(45)), (24, Some(46)), (26, Some(48)),
        (28, Some(43)), (30, Some(49)), (36, Some(50)), (46, Some(51)), (48, Some(52)),
        (58, Some(51)), (74, Some(50)), (96, Some(55)), (98, Some(258)), (100, Some(257)),
        (118, Some(50)), (126, None), (150, Some(55)), (156, None),
    ];

    /// Table of the sample function, compiled by CPython 3.13.15.
    #[rustfmt::skip]
    const TABLE_3_13: &[u8] = &[
        0x80, 0x00, 0xdb, 0x10, 0x15, 0x88, 0x04, 0xe7, 0x0c, 0x10, 0x88, 0x44, 0xdf, 0x10, 0x14,
        0x90, 0x04, 0xe1, 0x0c, 0x14, 0xf1, 0x0b, 0x00, 0x11, 0x16, 0xf0, 0x0c, 0x06, 0x05, 0x15,
        0xda, 0x0d, 0x11, 0xdc, 0x0c, 0x10, 0xd8, 0x10, 0x15, 0xf4, 0x03, 0x02, 0x0d, 0x0e, 0xf7,
        0x03, 0x00, 0x0e, 0x12, 0xf4, 0x0a, 0x00, 0x09, 0x0e, 0x88, 0x65, 0x8c, 0x0c, 0xf0, 0x56,
        0x06, 0x00, 0x09, 0x0e, 0xf0, 0x03, 0x4f, 0x02, 0x05, 0x06, 0xf7, 0x5f, 0x06, 0x00, 0x0e,
        0x12, 0x8d, 0x54, 0xfb, 0xf4, 0x0a, 0x00, 0x09, 0x0e, 0x88, 0x65, 0x8d, 0x0c, 0xfa,
    ];
    /// End offset and line of each run of instructions in that table.
    #[rustfmt::skip]
    const LINES_3_13: &[(i32, Option<u32>)] = &[
        (2, Some(42)), (12, Some(43)), (30, Some(45)), (48, Some(46)), (52, Some(48)),
        (56, Some(43)), (58, Some(49)), (64, Some(50)), (74, Some(51)), (76, Some(52)),
        (86, Some(51)), (102, Some(50)), (124, Some(55)), (126, Some(258)), (128, Some(257)),
        (156, Some(50)), (164, None), (188, Some(55)), (194, None),
    ];

    /// Table of the sample function, compiled by CPython 3.14.8.
    #[rustfmt::skip]
    const TABLE_3_14: &[u8] = &[
        0x80, 0x00, 0xdb, 0x10, 0x15, 0x88, 0x04, 0xe7, 0x0c, 0x10, 0x89, 0x44, 0xdf, 0x10, 0x14,
        0x91, 0x04, 0xe1, 0x0c, 0x14, 0xf1, 0x0b, 0x00, 0x11, 0x16, 0xf0, 0x0c, 0x06, 0x05, 0x15,
        0xdf, 0x0d, 0x11, 0x8a, 0x54, 0xdc, 0x0c, 0x10, 0xd8, 0x10, 0x15, 0xf4, 0x03, 0x02, 0x0d,
        0x0e, 0xf7, 0x03, 0x00, 0x0e, 0x12, 0xf4, 0x0a, 0x00, 0x09, 0x0e, 0x88, 0x65, 0x8c, 0x0c,
        0xf0, 0x56, 0x06, 0x00, 0x09, 0x0e, 0xf0, 0x03, 0x4f, 0x02, 0x05, 0x06, 0xf7, 0x5f, 0x06,
        0x00, 0x0e, 0x12, 0x8f, 0x54, 0xfb, 0xf4, 0x0a, 0x00, 0x09, 0x0e, 0x88, 0x65, 0x8d, 0x0c,
        0xfa,
    ];
    /// End offset and line of each run of instructions in that table.
    #[rustfmt::skip]
    const LINES_3_14: &[(i32, Option<u32>)] = &[
        (2, Some(42)), (12, Some(43)), (32, Some(45)), (52, Some(46)), (56, Some(48)),
        (60, Some(43)), (62, Some(49)), (84, Some(50)), (94, Some(51)), (96, Some(52)),
        (106, Some(51)), (122, Some(50)), (144, Some(55)), (146, Some(258)), (148, Some(257)),
        (180, Some(50)), (188, None), (212, Some(55)), (218, None),
    ];

    /// Checks the line of every instruction of a table.
    fn assert_lines(format: LineTableFormat, bytes: &[u8], lines: &[(i32, Option<u32>)]) {
        let table = LineTable::new(format, 42, bytes);
        let mut offset = 0;
        for (end, line) in lines {
            while offset < *end {
                assert_eq!(table.line_number(offset), *line, "offset {offset}");
                offset += 2;
            }
        }
        assert_eq!(table.line_number(offset), None);
        assert_eq!(table.line_number(i32::MAX), None);
        assert_eq!(table.line_number(-2), Some(42));
    }

    #[test]
    fn lines_equal_those_of_each_version() {
        assert_lines(LineTableFormat::LineDeltas, TABLE_3_10, LINES_3_10);
        assert_lines(LineTableFormat::Locations, TABLE_3_11, LINES_3_11);
        assert_lines(LineTableFormat::Locations, TABLE_3_12, LINES_3_12);
        assert_lines(LineTableFormat::Locations, TABLE_3_13, LINES_3_13);
        assert_lines(LineTableFormat::Locations, TABLE_3_14, LINES_3_14);
    }

    #[test]
    fn empty_table_has_only_the_first_line() {
        for format in [LineTableFormat::LineDeltas, LineTableFormat::Locations] {
            let table = LineTable::new(format, 7, &[]);
            assert_eq!(table.line_number(-1), Some(7));
            assert_eq!(table.line_number(0), None);
            assert_eq!(LineTable::new(format, -3, &[]).line_number(-1), None);
        }
    }

    #[test]
    fn cut_tables_keep_the_lines_before_the_cut() {
        for (format, bytes) in [(LineTableFormat::LineDeltas, TABLE_3_10), (LineTableFormat::Locations, TABLE_3_14)] {
            let whole = LineTable::new(format, 42, bytes);
            for length in 0..bytes.len() {
                let cut = LineTable::new(format, 42, &bytes[..length]);
                assert!(cut.line_number(0).is_none() || cut.line_number(0) == whole.line_number(0));
                assert_eq!(cut.line_number(100_000), None);
            }
        }
    }

    #[test]
    fn any_bytes_are_a_table() {
        let mut state = 1_u32;
        let mut random_byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for length in 0..200 {
            let bytes: Vec<u8> = (0..length).map(|_| random_byte()).collect();
            for format in [LineTableFormat::LineDeltas, LineTableFormat::Locations] {
                for first_line in [i32::MIN, 0, i32::MAX] {
                    let table = LineTable::new(format, first_line, &bytes);
                    for offset in [i32::MIN, -1, 0, 50, 500, i32::MAX] {
                        let _ = table.line_number(offset);
                    }
                }
            }
        }
        // The largest possible numbers.
        let largest = [0xe8, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f].repeat(9000);
        assert_eq!(LineTable::new(LineTableFormat::Locations, i32::MAX, &largest).line_number(17_000), None);
    }
}
