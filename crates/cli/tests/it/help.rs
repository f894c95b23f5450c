//! Tests of help texts, completions, manual pages and colors.

use std::fs;

use tempfile::TempDir;

use crate::process::{run, vramscope};

/// The names of all commands.
const COMMANDS: [&str; 24] = [
    "demo",
    "view",
    "record",
    "serve",
    "fleet",
    "query",
    "run",
    "attach",
    "detach",
    "import",
    "info",
    "verify",
    "simulate",
    "advise",
    "autopsy",
    "diagnose",
    "export",
    "report",
    "diff",
    "mcp",
    "pack",
    "table",
    "completions",
    "man",
];

#[test]
fn every_help_has_an_example() {
    for command in COMMANDS {
        let help = run([command, "--help"]);
        assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""), "{command}");
        let (_, examples) = help.stdout.split_once("\nExample").unwrap_or_else(|| panic!("{}", help.stdout));
        assert!(examples.contains(&format!("  vramscope {command}")), "{}", help.stdout);
        assert!(help.stdout.lines().all(|line| line.chars().count() <= 100), "{}", help.stdout);
    }
}

#[test]
fn help_lists_the_extensions_of_input_files() {
    for command in ["view", "import", "info", "verify", "simulate", "advise", "export", "report", "diff"] {
        let help = run([command, "--help"]).stdout;
        for extension in [".vram", ".html", ".pickle", ".json", ".csv", ".gz", ".zst"] {
            assert!(help.contains(extension), "{command}: no {extension} in {help}");
        }
    }
}

#[test]
fn help_documents_exit_codes() {
    let help = run(["--help"]).stdout;
    for text in ["Exit codes:", "  0    Success", "  1    Negative answer", "  2    Bad usage", "NO_COLOR"] {
        assert!(help.contains(text), "no {text:?} in {help}");
    }
}

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = run(["completions", shell]);
        assert_eq!((script.code, script.stderr.as_str()), (Some(0), ""), "{shell}");
        for command in COMMANDS {
            assert!(script.stdout.contains(command), "{shell}: no {command}");
        }
    }
    assert_eq!(run(["completions", "abacus"]).code, Some(2));
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = TempDir::new().expect("a temporary folder");
    let pages = folder.path().join("man1");
    let finished = run(["man".as_ref(), "-o".as_ref(), pages.as_os_str()]);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), ""), "{}", finished.stderr);
    assert_eq!(fs::read_dir(&pages).expect("the folder exists").count(), COMMANDS.len() + 1);
    let read = |name: &str| fs::read_to_string(pages.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    for command in COMMANDS {
        assert!(read(&format!("vramscope-{command}.1")).contains("Example"), "{command}");
    }
    let main = read("vramscope.1");
    assert!(main.starts_with(".ie") && main.contains("Exit codes") && main.contains("simulate"), "{main}");
}

/// Runs the command on a pseudoterminal; `None` without the program `script`.
fn run_on_terminal(arguments: &str, no_color: &str) -> Option<(Option<i32>, String)> {
    let mut command = std::process::Command::new("script");
    command.args(["-qec", &format!("{} {arguments}", env!("CARGO_BIN_EXE_vramscope")), "/dev/null"]);
    let output = command.env("TERM", "xterm").env("NO_COLOR", no_color).output().ok()?;
    Some((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[test]
fn colors_are_for_terminals_and_can_be_disabled() {
    let escape = '\u{1b}';
    assert!(!vramscope(["--help"]).output().expect("the binary runs").stdout.contains(&(escape as u8)));
    let (Some((_, plain)), Some((_, colored))) = (run_on_terminal("--help", "1"), run_on_terminal("--help", "")) else {
        eprintln!("SKIPPED: the program script is not installed");
        return;
    };
    assert!(colored.contains(escape), "{colored}");
    assert!(plain.contains("Usage") && !plain.contains(escape), "{plain}");
}

#[test]
fn binary_output_is_refused_on_a_terminal() {
    let snapshot = crate::process::fixture("tiny_inference.pickle.zst");
    let Some((code, output)) = run_on_terminal(&format!("import {} -o -", snapshot.display()), "1") else {
        eprintln!("SKIPPED: the program script is not installed");
        return;
    };
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains("standard output is a terminal"), "{output}");
}
