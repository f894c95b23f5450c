//! Statements that try more than to read the archive, and archives that are damaged or hostile.

use std::fs;

use serde_json::json;
use vramscope_query::{MAX_STATEMENT_BYTES, OutputFormat, SqlError};

use crate::harness::Archive;

const ALL_ROWS: &str = "SELECT * FROM rollups";

/// Checks that a statement is refused with an error that contains `expected`.
#[track_caller]
fn check_refused(archive: &Archive, statement: &str, expected: &str) {
    match archive.run(statement, OutputFormat::Json) {
        Err(error @ SqlError::Statement(_)) => {
            assert!(error.to_string().contains(expected), "{statement}: {error}");
            assert!(!error.to_string().contains('\u{1b}'), "{statement}: {error}");
        }
        other => panic!("{statement}: {other:?}"),
    }
}

#[test]
fn statements_that_read_other_files_are_refused() {
    let archive = Archive::with_rows(1);
    for statement in [
        "SELECT * FROM 'file:///etc/passwd'",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM \"/etc/passwd\"",
        "SELECT * FROM 's3://bucket/x.parquet'",
        "SELECT * FROM 'archive://run/rollups/part-000001.parquet'",
    ] {
        check_refused(&archive, statement, "not found");
    }
    for function in ["read_parquet", "read_csv", "parquet_metadata", "glob", "read_text"] {
        check_refused(&archive, &format!("SELECT * FROM {function}('/etc/passwd')"), function);
    }
}

#[test]
fn statements_that_change_something_are_refused() {
    let archive = Archive::with_rows(1);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("out");
    let manifest = archive.manifest();
    for statement in [
        "CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '/etc/passwd'",
        "CREATE EXTERNAL TABLE x STORED AS PARQUET LOCATION 's3://bucket/x'",
        "CREATE TABLE x AS SELECT * FROM rollups",
        "CREATE VIEW x AS SELECT * FROM rollups",
        "CREATE SCHEMA x",
        "CREATE FUNCTION f(BIGINT) RETURNS BIGINT RETURN $1",
        "DROP TABLE rollups",
        "INSERT INTO ranks VALUES (1, 'h', 'i', 'p', 1, 1, 1, NULL, NULL)",
        "UPDATE ranks SET rank = 1",
        "DELETE FROM ranks",
        "TRUNCATE TABLE ranks",
        "SET datafusion.execution.batch_size = 1",
        "SET datafusion.runtime.memory_limit = '1000G'",
        "RESET datafusion.runtime.memory_limit",
        "PREPARE p AS SELECT 1",
        "EXECUTE p",
        "BEGIN",
        "EXPLAIN ANALYZE INSERT INTO ranks VALUES (1, 'h', 'i', 'p', 1, 1, 1, NULL, NULL)",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE rollups",
    ] {
        check_refused(&archive, statement, "");
    }
    for format in ["CSV", "PARQUET", "JSON", "ARROW"] {
        let copy = format!("COPY rollups TO '{}' STORED AS {format}", out.display());
        check_refused(&archive, &copy, "");
        check_refused(&archive, &format!("EXPLAIN {copy}"), "");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("the folder exists").count(), 0);
    assert_eq!(archive.manifest(), manifest);
    assert_eq!(archive.rows("SELECT count(*) FROM rollups"), ["8"]);
}

#[test]
fn errors_in_statements_have_a_position() {
    let archive = Archive::with_rows(1);
    check_refused(&archive, "SELEC 1", "Line: 1, Column: 1");
    check_refused(&archive, "SELECT rank\nFROM rollups WHERE", "found: EOF");
    check_refused(&archive, "SELECT rank,\n       nonsense FROM rollups", "at Line: 2, Column: 8");
    check_refused(&archive, "SELECT * FROM nonsense", "nonsense");
    check_refused(&archive, "SELECT '\u{1b}[2J' FROM", "");
    check_refused(&archive, "", "");
}

#[test]
fn long_and_deep_statements_are_refused_or_answered() {
    let archive = Archive::with_rows(1);
    let long = format!("SELECT '{}'", "x".repeat(MAX_STATEMENT_BYTES));
    check_refused(&archive, &long, "65536 are allowed");
    check_refused(&archive, &format!("SELECT {}1", "1+".repeat(1100)), "2048 are allowed");
    // The deepest statements that are accepted do not exhaust a stack.
    for deep in [
        format!("SELECT {}1", "1+".repeat(1020)),
        format!("SELECT {}rank FROM rollups", "rank+".repeat(1020)),
        format!("SELECT {}1", "-".repeat(2000)),
        format!("SELECT {}true", "NOT ".repeat(2000)),
        format!("SELECT {}1{}", "(".repeat(1000), ")".repeat(1000)),
        format!("SELECT {}1{}", "abs(".repeat(650), ")".repeat(650)),
        format!("SELECT * FROM rollups WHERE {}", vec!["rank=1"; 500].join(" OR ")),
        format!("SELECT {} FROM rollups", vec!["CASE WHEN rank=1 THEN 1 ELSE 0 END"; 180].join("+")),
        vec!["SELECT rank FROM rollups"; 400].join(" UNION ALL "),
        format!("SELECT * FROM {}rollups{}", "(SELECT * FROM ".repeat(400), ")".repeat(400)),
    ] {
        let result = archive.run(&deep, OutputFormat::Csv);
        let is_expected = matches!(result, Ok(_) | Err(SqlError::Statement(_) | SqlError::Execution(_)));
        assert!(is_expected, "{}: {result:?}", &deep[..40]);
    }
}

#[test]
fn queries_that_need_too_much_memory_fail() {
    let archive = Archive::with_rows(200);
    let statement = "SELECT * FROM (SELECT a.*, b.*, row_number() OVER (ORDER BY a.step + b.step) AS number \
                     FROM rollups a CROSS JOIN rollups b) ORDER BY number";
    let result = archive.run(statement, OutputFormat::Csv);
    assert!(matches!(result, Err(SqlError::Memory { .. })), "{:?}", result.map(|(summary, _)| summary));
}

/// Returns the name of the table's first part.
fn first_part(archive: &Archive, table: &str) -> String {
    archive.manifest()[table][0]["name"].as_str().expect("a name").to_owned()
}

/// Checks that a statement fails with one line about an object that contains `expected`.
#[track_caller]
fn check_damaged(archive: &Archive, statement: &str, expected: &[&str]) {
    match archive.run(statement, OutputFormat::Json) {
        Err(SqlError::Object(text)) => {
            assert_eq!(text.lines().count(), 1, "{text}");
            for part in expected {
                assert!(text.contains(part), "no {part:?} in {text}");
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn truncated_extended_and_missing_objects_are_named() {
    let archive = Archive::new();
    let name = first_part(&archive, "rollups");
    let bytes = fs::read(archive.path(&name)).expect("the part exists");
    for changed in [&bytes[..bytes.len() / 2], &bytes[..0], &[&bytes[..], b"x"].concat()] {
        fs::write(archive.path(&name), changed).expect("the folder is writable");
        check_damaged(&archive, ALL_ROWS, &[&name, "is not what the manifest lists"]);
    }
    fs::remove_file(archive.path(&name)).expect("the folder is writable");
    check_damaged(&archive, ALL_ROWS, &[&name]);
    // Other parts and tables can be read.
    assert_eq!(archive.rows("SELECT count(*) FROM rollups WHERE time > TIMESTAMP '2027-01-15 09:00:00'"), ["4312"]);
    assert_eq!(archive.rows("SELECT count(*) FROM sites"), ["14400"]);
}

/// Makes the manifest list the bytes `bytes` as a part, as a user who can write to the bucket
/// could.
fn replace_part(archive: &Archive, table: &str, bytes: &[u8]) -> String {
    let name = first_part(archive, table);
    fs::write(archive.path(&name), bytes).expect("the folder is writable");
    archive.edit_manifest(|manifest| {
        manifest[table].as_array_mut().expect("a list").truncate(1);
        manifest[table][0]["bytes"] = json!(bytes.len());
        manifest[table][0]["sha256"] = json!(sha256(bytes));
    });
    name
}

/// Returns the SHA-256 digest of bytes in hexadecimal.
fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn objects_with_other_columns_are_named() {
    let archive = Archive::with_rows(20);
    let sites = fs::read(archive.path(&first_part(&archive, "sites"))).expect("the part exists");
    let name = replace_part(&archive, "rollups", &sites);
    check_damaged(&archive, ALL_ROWS, &[&name, "its columns are not those of the table"]);
    check_damaged(&archive, "SELECT count(*) FROM rollups", &[&name, "its columns are not those of the table"]);
    replace_part(&archive, "rollups", b"no Parquet file at all");
    check_damaged(&archive, ALL_ROWS, &[&name, "it is not a Parquet file"]);
    replace_part(&archive, "rollups", b"PAR1\xff\xff\xff\x7fPAR1");
    check_damaged(&archive, ALL_ROWS, &[&name, "its footer has an impossible length"]);
    replace_part(&archive, "rollups", b"PAR1");
    check_damaged(&archive, ALL_ROWS, &[&name, "it is not a Parquet file"]);
}

#[test]
fn manifest_without_parts_is_an_error() {
    let archive = Archive::with_rows(1);
    archive.edit_manifest(|manifest| {
        for list in ["ranks", "rollups", "sites"] {
            manifest[list] = json!([]);
        }
    });
    check_damaged(&archive, ALL_ROWS, &["no parts of the table rollups"]);
    check_damaged(&archive, "SELECT count(*) FROM sites", &["no parts of the table sites"]);
    assert!(archive.rows("SELECT * FROM ranks").is_empty());
}

/// Returns a number below `len`; consecutive values of `index` give numbers that look random.
fn scatter(index: usize, len: usize) -> usize {
    ((index as u64).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407) >> 33) as usize
        % len
}

#[test]
fn damaged_bytes_are_errors_and_never_panics() {
    let archive = Archive::with_rows(200);
    let bytes = fs::read(archive.path(&first_part(&archive, "rollups"))).expect("the part exists");
    let footer_bytes = u32::from_le_bytes(bytes[bytes.len() - 8..bytes.len() - 4].try_into().expect("four bytes"));
    let footer = bytes.len() - 8 - footer_bytes as usize..bytes.len();
    let mut errors = 0;
    for index in 0..300 {
        let mut changed = bytes.clone();
        // Half of the changes are in the footer, which has the positions and sizes.
        let at = if index % 2 == 0 { footer.start + scatter(index, footer.len()) } else { scatter(index, bytes.len()) };
        changed[at] = scatter(index + 1000, 256) as u8;
        let name = replace_part(&archive, "rollups", &changed);
        match archive.run(ALL_ROWS, OutputFormat::Csv) {
            Ok(_) => (),
            Err(SqlError::Object(text)) => {
                assert!(text.contains(&name) && text.lines().count() == 1, "byte {at}: {text}");
                errors += 1;
            }
            Err(other) => panic!("byte {at}: {other:?}"),
        }
    }
    assert!(errors > 50, "only {errors} of the changes were noticed");
}
