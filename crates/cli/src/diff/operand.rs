//! The arguments A and B of `diff`: a file, and optionally a moment.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use vramscope_insight::comparison::Moment;

use crate::error::{CommandError, Result};

/// A file and the moment of it that is compared.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Operand {
    pub(crate) path: PathBuf,
    pub(crate) moment: Moment,
    /// The operand as the user wrote it.
    pub(crate) text: String,
}

impl Operand {
    /// Parses `FILE` or `FILE@MOMENT`. If a file with the whole text as its name exists, the
    /// operand is that file. Of several `@`, the last one after an existing file's name begins the
    /// moment.
    pub(crate) fn parse(argument: &OsStr) -> Result<Self> {
        let text = argument.to_string_lossy().into_owned();
        let whole = |path: &OsStr| Self { path: path.into(), moment: Moment::default(), text: text.clone() };
        // A name that is not Unicode is a file.
        let Some(unicode) = argument.to_str().filter(|_| !Path::new(argument).exists()) else {
            return Ok(whole(argument));
        };
        let splits: Vec<(&str, &str)> =
            unicode.rmatch_indices('@').map(|(at, _)| (&unicode[..at], &unicode[at + 1..])).collect();
        let existing = splits.iter().find(|(path, _)| Path::new(path).exists());
        let Some((path, moment)) = existing.or(splits.first()).copied() else { return Ok(whole(argument)) };
        match moment.parse() {
            Ok(moment) => Ok(Self { path: path.into(), moment, text }),
            Err(error) if existing.is_some() => Err(CommandError::file(Path::new(path), error)),
            // No file has the whole text as its name either.
            Err(error) => Err(CommandError::new(format_args!("{text}: there is no such file, and {error}"))),
        }
    }

    /// Returns true if both operands name one file.
    pub(crate) fn has_path_of(&self, other: &Self) -> bool {
        let canonical = |operand: &Self| fs::canonicalize(&operand.path).ok();
        self.path == other.path || canonical(self).is_some_and(|path| canonical(other) == Some(path))
    }

    /// Returns the file's name as text.
    pub(crate) fn file(&self) -> String {
        OsString::from(&self.path).to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_a_file_and_a_moment() {
        let folder = tempfile::TempDir::new().expect("a temporary folder");
        let path = |name: &str| folder.path().join(name);
        for name in ["run.vram", "me@host.vram", "12@34"] {
            fs::write(path(name), "").expect("the file is writable");
        }
        let check = |text: &str, name: &str, moment: Moment| {
            let operand = Operand::parse(path(text).as_os_str()).expect(text);
            assert_eq!((operand.path, operand.moment), (path(name), moment), "{text}");
        };
        check("run.vram", "run.vram", Moment::Peak);
        check("run.vram@12", "run.vram", Moment::Event(12));
        check("run.vram@step:3", "run.vram", Moment::Step(3));
        check("run.vram@span:a@b", "run.vram", Moment::Span("a@b".to_owned()));
        check("me@host.vram", "me@host.vram", Moment::Peak);
        check("me@host.vram@end", "me@host.vram", Moment::End);
        check("12@34", "12@34", Moment::Peak);
        // Reading the file reports that it is missing.
        check("missing.vram@5", "missing.vram", Moment::Event(5));
        check("missing.vram", "missing.vram", Moment::Peak);
        let error = |text: &str| Operand::parse(path(text).as_os_str()).expect_err(text).to_string();
        let message = error("run.vram@noon");
        assert!(message.contains("run.vram: \"noon\" is not a moment: use an event number, peak"), "{message}");
        let message = error("you@host.vram");
        assert!(message.contains("you@host.vram: there is no such file, and \"host.vram\" is not"), "{message}");
    }
}
