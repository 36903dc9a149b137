//! Paths inside an image: names in a hostile archive are reduced to paths that can exist below the root.

use std::fmt;

/// Limits of Linux on paths and names, and a depth that no real image reaches (each level takes a descriptor and stack).
const LONGEST_PATH: usize = 4095;
const LONGEST_NAME: usize = 255;
pub(super) const DEEPEST: usize = 256;

/// A path relative to the image's root, without `.`, `..`, double or outer slashes. Empty is the root itself.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct ImagePath(Vec<u8>);

/// Why a name in an archive is not a path below the root.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PathRefusal {
    /// The name contains `..`, which no packing tool writes.
    #[error("the path goes upwards (..)")]
    Upwards,
    /// The name contains a zero byte, at which C strings end.
    #[error("the path contains a zero byte")]
    ZeroByte,
    /// The path is longer than the kernel allows.
    #[error(
        "the path is longer than {LONGEST_PATH} bytes, has a name longer than {LONGEST_NAME} or more than {DEEPEST} levels"
    )]
    TooLong,
}

impl ImagePath {
    /// Parses a name from an archive. A leading slash means the image's root: several image builders write names with one, and every
    /// runtime reads them like this.
    pub(super) fn parse(name: &[u8]) -> Result<Self, PathRefusal> {
        if name.contains(&0) {
            return Err(PathRefusal::ZeroByte);
        }
        let mut path = Vec::with_capacity(name.len());
        let mut depth = 0;
        for component in name.split(|&byte| byte == b'/') {
            match component {
                b"" | b"." => continue,
                b".." => return Err(PathRefusal::Upwards),
                _ => {}
            }
            depth += 1;
            if component.len() > LONGEST_NAME || depth > DEEPEST {
                return Err(PathRefusal::TooLong);
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(component);
        }
        if path.len() > LONGEST_PATH {
            Err(PathRefusal::TooLong)
        } else {
            Ok(ImagePath(path))
        }
    }

    /// The bytes, without a slash at either end.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The parent directory and the name; `None` for the root.
    pub(super) fn split(&self) -> Option<(ImagePath, &[u8])> {
        if self.0.is_empty() {
            return None;
        }
        match self.0.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => Some((ImagePath(self.0[..slash].to_vec()), &self.0[slash + 1..])),
            None => Some((ImagePath::default(), &self.0)),
        }
    }
}

impl fmt::Display for ImagePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for ImagePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_become_plain_paths() {
        for (name, path) in [
            ("", ""),
            ("./", ""),
            ("/", ""),
            ("./usr/bin/", "usr/bin"),
            ("//ko-app//x", "ko-app/x"),
            ("a/./b", "a/b"),
            ("..a/b..", "..a/b.."),
        ] {
            assert_eq!(
                ImagePath::parse(name.as_bytes()).unwrap().as_bytes(),
                path.as_bytes()
            );
        }
        let path = ImagePath::parse(b"a/b/c").unwrap();
        assert_eq!(path.split().unwrap().0.as_bytes(), b"a/b");
        assert!(ImagePath::default().split().is_none());
        assert_eq!(
            ImagePath::parse(b"a\nb\xff").unwrap().to_string(),
            "/a\\nb\\xff"
        );
    }

    #[test]
    fn hostile_names_are_refused() {
        for name in ["..", "../x", "a/../b", "/../../etc/passwd", "a/.."] {
            assert_eq!(
                ImagePath::parse(name.as_bytes()),
                Err(PathRefusal::Upwards),
                "{name}"
            );
        }
        assert_eq!(ImagePath::parse(b"a\0b"), Err(PathRefusal::ZeroByte));
        for name in [
            "x".repeat(256),
            "a/".repeat(257),
            "abcdefghijklmnopqrstuvwxyz/".repeat(200),
        ] {
            assert_eq!(ImagePath::parse(name.as_bytes()), Err(PathRefusal::TooLong));
        }
    }
}
