//! Finds the client configuration.

use std::path::{Path, PathBuf};

/// Where a service account's configuration is mounted: the last place to look.
const MOUNTED: &str = "/var/run/secrets/talos.dev/config";

/// The settings that decide about the path.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigLookup {
    /// The path that the program was given.
    pub(crate) argument: Option<PathBuf>,
    /// `$TALOSCONFIG`.
    pub(crate) talosconfig: Option<PathBuf>,
    /// `$TALOS_HOME`.
    pub(crate) talos_home: Option<PathBuf>,
    /// `$HOME`.
    pub(crate) home: Option<PathBuf>,
}

impl ConfigLookup {
    /// Takes this process's environment; `argument` takes precedence.
    pub(crate) fn by_environment(argument: Option<PathBuf>) -> Self {
        let path = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Self {
            argument,
            talosconfig: path("TALOSCONFIG"),
            talos_home: path("TALOS_HOME"),
            home: path("HOME"),
        }
    }

    /// The paths to try, in order. A path that was named is the only one.
    pub(crate) fn places(&self) -> Vec<PathBuf> {
        if let Some(named) = self.argument.as_ref().or(self.talosconfig.as_ref()) {
            return vec![named.clone()];
        }
        let own = match &self.talos_home {
            Some(directory) if directory.is_absolute() => Some(directory.join("config")),
            _ => self.home.as_ref().map(|home| home.join(".talos/config")),
        };
        own.into_iter().chain([PathBuf::from(MOUNTED)]).collect()
    }

    /// The first path for which `exists` returns true.
    pub(crate) fn find(&self, exists: impl Fn(&Path) -> bool) -> Option<PathBuf> {
        self.places().into_iter().find(|place| exists(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_order() {
        let everywhere = ConfigLookup {
            argument: Some("/arg".into()),
            talosconfig: Some("/env".into()),
            talos_home: Some("/home".into()),
            home: Some("/root".into()),
        };
        assert_eq!(everywhere.places(), [PathBuf::from("/arg")]);
        let by_environment = ConfigLookup {
            argument: None,
            ..everywhere.clone()
        };
        assert_eq!(by_environment.places(), [PathBuf::from("/env")]);
        let by_home = ConfigLookup {
            talosconfig: None,
            ..by_environment
        };
        let mounted = Path::new("/var/run/secrets/talos.dev/config");
        assert_eq!(by_home.places(), [Path::new("/home/config"), mounted]);
        let relative = ConfigLookup {
            talos_home: Some("relative".into()),
            ..by_home
        };
        assert_eq!(
            relative.places(),
            [Path::new("/root/.talos/config"), mounted]
        );
        assert_eq!(
            relative.find(|place| place == mounted),
            Some(mounted.into())
        );
        assert_eq!(ConfigLookup::default().find(|_| false), None);
    }
}
