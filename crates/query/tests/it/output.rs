//! Tables, JSON and CSV.

use vramscope_query::OutputFormat;

use crate::harness::{Archive, run};

#[test]
fn table_aligns_numbers_and_escapes_texts() {
    let archive = Archive::with_rows(2);
    let statement = "SELECT rank, site, bytes FROM sites WHERE rank < 2 ORDER BY time, rank, site LIMIT 3";
    let (summary, table) = archive.run(statement, OutputFormat::Table).expect("it runs");
    assert_eq!(summary.rows, 3);
    assert_eq!(
        table,
        "rank  site                      bytes\n\
         \u{20}  0  attention            1073741824\n\
         \u{20}  0  mlp, \"fc1\"\\u{1b}[2J   536870912\n\
         \u{20}  1  attention            1073741824\n"
    );
}

#[test]
fn json_is_one_object_with_typed_values() {
    let archive = Archive::with_rows(2);
    let statement = "SELECT rank, site, time, 0.5 AS half, 1.0 / CAST(0 AS DOUBLE) AS infinite, NULL AS missing, \
                     true AS yes, time - time AS nothing FROM sites ORDER BY time, rank, site DESC LIMIT 1";
    let (_, json) = archive.run(statement, OutputFormat::Json).expect("it runs");
    assert_eq!(json.lines().count(), 1);
    let object: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let types: Vec<_> = object["columns"].as_array().expect("a list").iter().map(|column| &column["type"]).collect();
    assert_eq!(types[..5], ["integer", "text", "time", "number", "number"]);
    assert_eq!(
        object["rows"],
        serde_json::json!([[0, "mlp, \"fc1\"\u{1b}[2J", "2027-01-15T08:00:00Z", 0.5, null, null, true, "P0D"]])
    );
    assert_eq!(object["has_more"], false);
    let (_, empty) = archive.run("SELECT rank FROM sites WHERE rank > 100", OutputFormat::Json).expect("it runs");
    assert_eq!(empty, "{\"columns\":[{\"name\":\"rank\",\"type\":\"integer\"}],\"rows\":[],\"has_more\":false}\n");
}

#[test]
fn csv_quotes_commas() {
    let archive = Archive::with_rows(1);
    let statement = "SELECT site, rank AS \"a, b\" FROM sites WHERE rank = 0 ORDER BY site DESC";
    let (_, csv) = archive.run(statement, OutputFormat::Csv).expect("it runs");
    assert_eq!(csv, "site,\"a, b\"\r\n\"mlp, \"\"fc1\"\"\\u{1b}[2J\",0\r\nattention,0\r\n");
}

#[test]
fn rows_beyond_the_limit_are_left_out() {
    let archive = Archive::with_rows(4);
    let session = archive.session();
    let limited = |statement: &str, limit| {
        let mut out = Vec::new();
        let summary = session.run(statement, limit, OutputFormat::Csv, &mut out).expect("it runs");
        let lines = out.iter().filter(|byte| **byte == b'\n').count() as u64 - 1;
        assert_eq!(lines, summary.rows);
        (summary.rows, summary.has_more)
    };
    assert_eq!(limited("SELECT * FROM rollups", 31), (31, true));
    assert_eq!(limited("SELECT * FROM rollups", 32), (32, false));
    assert_eq!(limited("SELECT * FROM rollups ORDER BY time DESC LIMIT 5", 10), (5, false));
    assert_eq!(limited("SELECT * FROM rollups LIMIT 5", 3), (3, true));
    assert_eq!(limited("SELECT * FROM generate_series(1, 1000000000)", 20_000), (20_000, true));
}

#[test]
fn long_tables_repeat_the_header() {
    let archive = Archive::with_rows(1);
    let session = archive.session();
    let mut out = Vec::new();
    session.run("SELECT value FROM generate_series(1, 20001)", 30_000, OutputFormat::Table, &mut out).expect("it runs");
    let table = String::from_utf8(out).expect("UTF-8");
    assert_eq!(table.lines().count(), 20_004);
    assert_eq!(table.lines().filter(|line| line.trim() == "value").count(), 3);
    let (_, empty) = run(&session, "SELECT rank FROM ranks WHERE rank > 100", OutputFormat::Table).expect("it runs");
    assert_eq!(empty, "rank\n");
}
