//! The allocator's settings as PyTorch's users give them: in an environment variable.

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::fmt;

use vramscope_pool::{CONF_VARIABLES, ConfError, Settings};

/// The settings that the environment asks for: those in the first variable of [`CONF_VARIABLES`] that is set, as in PyTorch, and its defaults
/// where none is.
///
/// # Errors
/// When the variable holds no settings.
pub fn settings_from_env() -> Result<Settings, EnvError> {
    settings_from(|variable| env::var_os(variable))
}

fn settings_from(get: impl Fn(&str) -> Option<OsString>) -> Result<Settings, EnvError> {
    let Some((variable, text)) = CONF_VARIABLES.into_iter().find_map(|variable| Some((variable, get(variable)?)))
    else {
        return Ok(Settings::default());
    };
    let text = text.into_string().map_err(|_| EnvError { variable, reason: None })?;
    Settings::parse(&text).map_err(|error| EnvError { variable, reason: Some(error) })
}

/// An environment variable that holds no settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvError {
    /// Its name.
    pub variable: &'static str,
    /// What is wrong with its text; `None` where it is no text.
    pub reason: Option<ConfError>,
}

impl fmt::Display for EnvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Some(reason) => write!(f, "{}: {reason}", self.variable),
            None => write!(f, "{} is not Unicode text", self.variable),
        }
    }
}

impl Error for EnvError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let get = |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into());
        settings_from(get).map_err(|error| error.to_string())
    }

    #[test]
    fn the_first_variable_that_is_set_counts() {
        let [first, second] = CONF_VARIABLES;
        assert_eq!(check(&[]), Ok(Settings::default()));
        let expandable = Settings { expandable_segments: true, ..Settings::default() };
        assert_eq!(check(&[(second, "expandable_segments:True")]), Ok(expandable.clone()));
        assert_eq!(check(&[(second, "max_split_size_mb:64"), (first, "expandable_segments:True")]), Ok(expandable));
        assert_eq!(check(&[(first, ""), (second, "expandable_segments:True")]), Ok(Settings::default()));
    }

    #[test]
    fn an_error_names_the_variable() {
        let error = check(&[(CONF_VARIABLES[0], "max_split_size_mb:many")]).unwrap_err();
        assert!(error.starts_with(CONF_VARIABLES[0]) && error.contains("many"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_text_is_an_error() {
        use std::os::unix::ffi::OsStringExt;
        let error = settings_from(|_| Some(OsString::from_vec(vec![0xff]))).unwrap_err();
        assert_eq!(error.to_string(), format!("{} is not Unicode text", CONF_VARIABLES[0]));
    }
}
