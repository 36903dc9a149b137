//! `modules.alias`: the modules that drive a device with a given modalias.

use super::ModuleName;

/// The patterns of `modules.alias`, in file order.
#[derive(Debug, Default)]
pub struct AliasTable {
    rules: Vec<(String, ModuleName)>,
}

impl AliasTable {
    /// Parses lines of the form `alias PATTERN MODULE`. Other lines (comments, blank lines) are skipped.
    pub fn parse(text: &str) -> Self {
        let rules = text
            .lines()
            .filter_map(|line| {
                let mut words = line.split_ascii_whitespace();
                match (words.next(), words.next(), words.next()) {
                    (Some("alias"), Some(pattern), Some(module)) => {
                        Some((pattern.to_owned(), ModuleName::new(module)))
                    }
                    _ => None,
                }
            })
            .collect();
        Self { rules }
    }

    /// Returns every module whose pattern matches. More than one driver may claim a device; the kernel chooses between them.
    pub fn modules_for<'a>(&'a self, modalias: &'a str) -> impl Iterator<Item = &'a ModuleName> {
        self.rules
            .iter()
            .filter(|(pattern, _)| matches(pattern.as_bytes(), modalias.as_bytes()))
            .map(|(_, name)| name)
    }
}

/// Returns whether `text` fits a pattern of `*`, `?` and `[sets]`.
pub fn glob(pattern: &str, text: &str) -> bool {
    matches(pattern.as_bytes(), text.as_bytes())
}

/// fnmatch(3) without flags, as depmod's patterns need it: `*`, `?` and `[set]`.
///
/// Runs in O(pattern × text): on a mismatch only the last `*` is tried again, because an earlier one could not do
/// better. Patterns come from our image, modaliases from devices (USB descriptors): neither can make it slow.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        let step = match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some(b'?') => Some(1),
            Some(b'[') => match_set(&pattern[p..], text[t]),
            Some(&literal) => (literal == text[t]).then_some(1),
            None => None,
        };
        match (step, retry) {
            (Some(consumed), _) => {
                p += consumed;
                t += 1;
            }
            (None, Some((after_star, from))) => {
                retry = Some((after_star, from + 1));
                p = after_star;
                t = from + 1;
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

/// Returns the length of the set at the start of `pattern` if `c` is in it. An unclosed bracket is a literal.
fn match_set(pattern: &[u8], c: u8) -> Option<usize> {
    let Some(close) = pattern
        .iter()
        .skip(2)
        .position(|&b| b == b']')
        .map(|at| at + 2)
    else {
        return (c == b'[').then_some(1);
    };
    let (negated, set) = match &pattern[1..close] {
        [b'!' | b'^', rest @ ..] if !rest.is_empty() => (true, rest),
        set => (false, set),
    };
    let mut found = false;
    let mut i = 0;
    while i < set.len() {
        match set[i..] {
            [low, b'-', high, ..] => {
                found |= (low..=high).contains(&c);
                i += 3;
            }
            _ => {
                found |= set[i] == c;
                i += 1;
            }
        }
    }
    (found != negated).then_some(close + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
# Aliases extracted from modules themselves.
alias virtio:d00000001v* virtio_net
alias pci:v00008086d000010D3sv*sd*bc*sc*i* e1000e
alias usb:v0B95p1790d*dc*dsc*dp*ic*isc*ip*in* ax88179_178a
alias usb:v0BDAp815[0-6]d* r8152-cfg
alias fs-overlay overlay

alias broken
";

    fn found(modalias: &str) -> Vec<String> {
        AliasTable::parse(TABLE)
            .modules_for(modalias)
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn devices_find_their_drivers() {
        assert_eq!(found("virtio:d00000001v00001AF4"), ["virtio_net"]);
        assert_eq!(
            found("pci:v00008086d000010D3sv00008086sd00000000bc02sc00i00"),
            ["e1000e"]
        );
        assert_eq!(
            found("usb:v0BDAp8153d3000"),
            ["r8152_cfg"],
            "names are written with underscores"
        );
        assert_eq!(found("usb:v0BDAp8157d3000"), Vec::<String>::new());
        assert_eq!(found("virtio:d00000010v00001AF4"), Vec::<String>::new());
        assert_eq!(found(""), Vec::<String>::new());
    }

    #[test]
    fn patterns_match_as_fnmatch_does() {
        for (pattern, text, expected) in [
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "acx", false),
            ("*a*b", "xaxxb", true),
            ("*ab", "aab", true),
            ("?", "", false),
            ("[!a]b", "cb", true),
            ("[!a]b", "ab", false),
            ("[]]", "]", true),
            ("[a-", "[a-", true),
            ("x[", "x[", true),
            ("", "", true),
            ("", "x", false),
            ("**", "", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                expected,
                "{pattern} on {text}"
            );
        }
    }

    #[test]
    fn many_stars_stay_fast() {
        let pattern = "*a".repeat(40) + "b";
        let text = "a".repeat(4000);
        let start = std::time::Instant::now();
        assert!(!matches(pattern.as_bytes(), text.as_bytes()));
        assert!(start.elapsed().as_secs() < 2);
    }
}
