//! The version of a systemd-boot program, from its section `.sdmagic`.

/// The text before the version in that section.
const MARK: &[u8] = b"#### LoaderInfo: systemd-boot ";

/// A version of systemd-boot: the numbers before the distribution's own, for example 257.13.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoaderVersion(Vec<u32>);

impl LoaderVersion {
    /// The version of this program; `None` if it is not systemd-boot.
    #[must_use]
    pub fn of(program: &[u8]) -> Option<Self> {
        let at = program
            .windows(MARK.len())
            .position(|window| window == MARK)?;
        let text = program.get(at + MARK.len()..)?;
        let end = text
            .iter()
            .position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
        let numbers = std::str::from_utf8(&text[..end]).ok()?.split('.');
        numbers
            .map(|number| number.parse().ok())
            .collect::<Option<_>>()
            .map(Self)
    }
}

/// Whether an upgrade's loader is to replace the present one: it is another one, and not older.
#[must_use]
pub fn is_to_be_tried(new: &[u8], present: &[u8]) -> bool {
    let Some(version) = LoaderVersion::of(new) else {
        return false;
    };
    new != present && LoaderVersion::of(present).is_none_or(|present| version >= present)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loader(version: &str) -> Vec<u8> {
        format!("MZ code #### LoaderInfo: systemd-boot {version} #### data").into_bytes()
    }

    #[test]
    fn another_loader_is_tried_unless_it_is_older() {
        let present = loader("257.13-1~deb13u1");
        for newer in ["257.13-2", "257.14-1", "257.100", "258~rc1-1", "1000"] {
            assert!(is_to_be_tried(&loader(newer), &present), "{newer}");
        }
        for older in ["257.9-1", "252.39-1~deb12u1", "257"] {
            assert!(!is_to_be_tried(&loader(older), &present), "{older}");
        }
        assert!(!is_to_be_tried(&present, &present));
        assert!(!is_to_be_tried(b"MZ shim", &present));
        assert!(is_to_be_tried(&present, b"MZ another loader"));
    }
}
