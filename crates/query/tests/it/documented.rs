//! The statements of `docs/query.md`, and what conditions skip.

use vramscope_query::OutputFormat;

use crate::harness::{Archive, RANKS, run};
use crate::statements::documented_statements;

/// The heading of each documented statement and its rows on the archive of the harness.
const EXPECTED: [(&str, &[&str]); 10] = [
    ("Which ranks grew", &["3,10242.5,11136.5,360.0", "6,12288.0,12288.0,1.0"]),
    ("Which sites differ between ranks", &["attention,5,4294967296,1073741824.0"]),
    ("Peak of each pipeline stage", &["0,4,11680088064,10737418240.0", "1,4,42949672960,12884901888.0"]),
    ("When the run peaked", &["2027-01-15T09:15:00Z,6,machine-1,450,forward,42949672960,45097156608"]),
    ("Out-of-memory errors by host", &["machine-1,4"]),
    (
        "When memory ran out",
        &["2027-01-15T09:00:00Z,4,360,1", "2027-01-15T09:00:00Z,7,360,2", "2027-01-15T09:23:20Z,7,500,1"],
    ),
    ("Ranks with the most lag or lost summaries", &["2,machine-0,1500,10"]),
    ("Fragmentation", &["1,0.75"]),
    (
        "A rank over time",
        &[
            "2027-01-15T09:00:00Z,11176771584,419",
            "2027-01-15T09:10:00Z,11239686144,479",
            "2027-01-15T09:20:00Z,11302600704,539",
        ],
    ),
    ("What was recorded", &["0,machine-0,train.py,100", "1,machine-0,train.py,200"]),
];

#[test]
fn documented_statements_have_the_known_answers() {
    let statements = documented_statements();
    let headings: Vec<&str> = statements.iter().map(|(heading, _)| heading.as_str()).collect();
    assert_eq!(headings, EXPECTED.map(|(heading, _)| heading));
    let archive = Archive::new();
    for ((heading, statement), (_, expected)) in statements.iter().zip(EXPECTED) {
        let rows = archive.rows(statement);
        let is_expected =
            rows.len() >= expected.len() && rows.iter().zip(expected).all(|(row, start)| row.starts_with(start));
        assert!(is_expected, "{heading}: {rows:#?}");
    }
}

#[test]
fn every_row_of_the_archive_is_found() {
    let archive = Archive::new();
    assert_eq!(
        archive.rows("SELECT count(*), count(DISTINCT rank), min(time), max(time) FROM rollups"),
        [format!("{},{RANKS},2027-01-15T08:00:00Z,2027-01-15T10:29:50Z", 900 * RANKS)]
    );
    assert_eq!(archive.rows("SELECT count(*) FROM sites"), [format!("{}", 2 * 900 * RANKS)]);
    assert_eq!(archive.rows("SELECT count(*) FROM sites JOIN rollups USING (time, rank)"), ["14400"]);
    assert_eq!(
        archive.rows("SELECT rank, host, parts, start_time, end_time FROM ranks ORDER BY rank"),
        [
            "0,machine-0,1,2027-01-15T08:00:00Z,2027-01-15T08:01:39Z",
            "1,machine-0,1,2027-01-15T08:00:00Z,2027-01-15T08:03:19Z"
        ]
    );
}

/// Parts are ten minutes long: the run has 15 of each table.
#[test]
fn conditions_on_time_skip_other_parts() {
    let archive = Archive::new();
    let session = archive.session();
    let objects = |statement: &str| {
        let (summary, _) = run(&session, statement, OutputFormat::Csv).unwrap_or_else(|error| panic!("{error}"));
        summary.objects
    };
    let all = objects("SELECT max(allocated_max) FROM rollups");
    assert!(all >= 14, "{all} objects");
    for condition in [
        "time >= TIMESTAMP '2027-01-15 10:25:00'",
        "time > '2027-01-15T10:25:00Z' AND rank = 3",
        "time BETWEEN TIMESTAMP '2027-01-15 10:26:00' AND TIMESTAMP '2027-01-15 10:27:00'",
        "time < TIMESTAMP '2027-01-15 08:05:00'",
        "date_trunc('hour', time) = TIMESTAMP '2027-01-15 10:00:00' AND time >= TIMESTAMP '2027-01-15 10:25:00'",
    ] {
        let read = objects(&format!("SELECT max(allocated_max) FROM rollups WHERE {condition}"));
        assert!((1..=2).contains(&read), "{condition}: {read} of {all} objects");
    }
    assert_eq!(objects("SELECT * FROM rollups WHERE time > TIMESTAMP '2028-01-01 00:00:00'"), 0);
    assert_eq!(objects("SELECT * FROM ranks"), 0);
}

#[test]
fn tables_and_columns_are_described() {
    let archive = Archive::with_rows(1);
    let tables = archive.rows("SHOW TABLES");
    for table in ["rollups", "sites", "ranks"] {
        assert!(tables.iter().any(|row| row.contains(table)), "{tables:?}");
    }
    assert!(archive.rows("DESCRIBE rollups").contains(&"allocated_max,Int64,YES".to_owned()));
    assert!(!archive.rows("EXPLAIN SELECT * FROM sites WHERE bytes > 5").is_empty());
}
