//! Settings from environment variables. Only functions whose names end in `from_env`
//! read the environment.

use std::env;
use std::ffi::{OsStr, OsString};

use vramscope_pool::{CONF_VARIABLES, ConfError, Settings};

#[cfg(feature = "push")]
use crate::push::PushVariableError;

/// Environment variable that removes names from recordings: any value but `0`.
pub const REDACT_VARIABLE: &str = "VRAMSCOPE_REDACT";

/// Returns true if [`REDACT_VARIABLE`] asks for recordings without names.
#[must_use]
pub fn redact_from_env() -> bool {
    is_redaction_set(env::var_os(REDACT_VARIABLE).as_deref())
}

/// Returns true if this value of [`REDACT_VARIABLE`] asks for recordings without names. An
/// unexpected value does, so that a typing mistake reveals no names.
pub(crate) fn is_redaction_set(value: Option<&OsStr>) -> bool {
    value.is_some_and(|value| !value.is_empty() && value != "0")
}

/// Reads the allocator's settings from the environment, as PyTorch does.
///
/// The first of `PYTORCH_CUDA_ALLOC_CONF` and `PYTORCH_ALLOC_CONF` that is set counts; if neither
/// is, the result is PyTorch's defaults.
///
/// # Errors
/// If the variable holds no valid settings.
pub fn settings_from_env() -> Result<Settings, EnvError> {
    settings_from(|variable| env::var_os(variable))
}

/// Reads the allocator's settings as [`settings_from_env`] does; `get` returns a variable's value.
fn settings_from(get: impl Fn(&str) -> Option<OsString>) -> Result<Settings, EnvError> {
    let Some((variable, text)) = CONF_VARIABLES.into_iter().find_map(|variable| Some((variable, get(variable)?)))
    else {
        return Ok(Settings::default());
    };
    let text = text.into_string().map_err(|_| EnvError::NotUnicode { variable })?;
    Settings::parse(&text).map_err(|source| EnvError::Settings { variable, source })
}

/// An environment variable whose value cannot be used: it is not Unicode, not valid allocator
/// settings, or not a server's address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvError {
    /// The value is not Unicode.
    #[error("{variable} is not Unicode text")]
    NotUnicode {
        /// Name of the variable.
        variable: &'static str,
    },
    /// The value does not parse as allocator settings.
    #[error("{variable}: {source}")]
    Settings {
        /// Name of the variable.
        variable: &'static str,
        /// The setting that is wrong, and why.
        source: ConfError,
    },
    /// `VRAMSCOPE_PUSH` does not hold a server's address. The message never contains the value,
    /// which may include a token.
    #[cfg(feature = "push")]
    #[error(transparent)]
    PushAddress(#[from] PushVariableError),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let get = |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into());
        settings_from(get).map_err(|error| error.to_string())
    }

    #[test]
    fn first_variable_that_is_set_counts() {
        let [first, second] = CONF_VARIABLES;
        assert_eq!(check(&[]), Ok(Settings::default()));
        let expandable = Settings { expandable_segments: true, ..Settings::default() };
        assert_eq!(check(&[(second, "expandable_segments:True")]), Ok(expandable.clone()));
        assert_eq!(check(&[(second, "max_split_size_mb:64"), (first, "expandable_segments:True")]), Ok(expandable));
        assert_eq!(check(&[(first, ""), (second, "expandable_segments:True")]), Ok(Settings::default()));
    }

    #[test]
    fn unclear_values_redact() {
        let check = |value: Option<&str>, expected| assert_eq!(is_redaction_set(value.map(OsStr::new)), expected);
        check(None, false);
        check(Some(""), false);
        check(Some("0"), false);
        check(Some("1"), true);
        check(Some("no"), true);
    }

    #[test]
    fn errors_name_the_variable() {
        let error = check(&[(CONF_VARIABLES[0], "max_split_size_mb:many")]).unwrap_err();
        assert!(error.starts_with(CONF_VARIABLES[0]) && error.contains("many"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn value_that_is_not_unicode_is_an_error() {
        use std::os::unix::ffi::OsStringExt;
        let error = settings_from(|_| Some(OsString::from_vec(vec![0xff]))).unwrap_err();
        assert_eq!(error.to_string(), format!("{} is not Unicode text", CONF_VARIABLES[0]));
    }
}
