//! Our own documents in the text of a config, for clients that know only Talos's: removed from the config that is shown to them, and kept
//! when they send one.
//!
//! talosctl decodes a whole config before it shows or changes any part of it, and fails on an unknown kind.

use super::documents::{OF_A_CONTAINER, OWN};
use super::yaml::{self, Node};

/// The marks that begin and end a document.
const MARKS: (&str, &str) = ("---", "...");

/// A config from a client that does not see our documents.
#[derive(Debug, PartialEq, Eq)]
pub struct Kept {
    /// The client's text, followed by our documents of the config in force.
    pub text: String,
    /// Messages for the client about the documents.
    pub warnings: Vec<String>,
}

/// A document as text, its mark included.
struct Piece {
    text: String,
    /// Its content; `None` if there are only comments.
    root: Option<Node>,
}

/// The text without our own documents.
pub fn without_own(text: &str) -> String {
    let pieces = pieces(text).into_iter();
    pieces
        .filter(|piece| !piece.is_own())
        .map(|piece| piece.text)
        .collect()
}

/// The config of a client that does not see our documents, together with ours of the config in force. `None` if there is nothing to keep:
/// that config has none, or the client sent some itself and so knows of them.
pub fn keep_own(in_force: &str, brought: &str) -> Option<Kept> {
    let own: Vec<Piece> = pieces(in_force).into_iter().filter(Piece::is_own).collect();
    let brought_pieces = pieces(brought);
    if own.is_empty() || brought_pieces.iter().any(Piece::is_own) {
        return None;
    }
    let runs = |name: Option<&str>| {
        let mut containers = brought_pieces
            .iter()
            .filter(|piece| piece.kind() == "ContainerConfig");
        name.is_none() || containers.any(|container| container.name() == name)
    };
    // A document for a container that is gone would make the whole config invalid.
    let (kept, gone): (Vec<Piece>, Vec<Piece>) = own
        .into_iter()
        .partition(|piece| !OF_A_CONTAINER.contains(&piece.kind()) || runs(piece.name()));
    let mut text = brought.to_owned();
    for piece in &kept {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        if !piece.text.starts_with(MARKS.0) {
            text.push_str("---\n");
        }
        text.push_str(&piece.text);
    }
    let warning = |pieces: &[Piece], what: &str| {
        let names: Vec<String> = pieces.iter().map(Piece::describe).collect();
        (!names.is_empty()).then(|| format!("{}: {what}", names.join(", ")))
    };
    let stays = warning(
        &kept,
        "not shown to clients of Talos, and so left as in the config in force; instarctl shows and changes it",
    );
    let goes = warning(&gone, "removed with the container that it was for");
    Some(Kept {
        text,
        warnings: stays.into_iter().chain(goes).collect(),
    })
}

impl Piece {
    fn field(&self, name: &str) -> Option<&str> {
        self.root.as_ref()?.get(name)?.text()
    }

    fn is_own(&self) -> bool {
        self.field("apiVersion") == Some(OWN)
    }

    fn kind(&self) -> &str {
        self.field("kind").unwrap_or_default()
    }

    fn name(&self) -> Option<&str> {
        self.field("name")
    }

    fn describe(&self) -> String {
        match self.name() {
            Some(name) => format!("{} {name}", self.kind()),
            None => self.kind().to_owned(),
        }
    }
}

/// Splits a text at the borders of its documents. Nothing is lost, but the mark at a document's end becomes the one at the next one's
/// begin.
fn pieces(text: &str) -> Vec<Piece> {
    let mut texts = vec![String::new()];
    for line in text.split_inclusive('\n') {
        // Within a document every line that could look like a mark is indented (YAML 1.2.2, 9.1.2).
        let after = |mark| {
            line.strip_prefix(mark)
                .filter(|after| after.is_empty() || after.starts_with(char::is_whitespace))
        };
        let begins = after(MARKS.0).or(after(MARKS.1));
        match (begins, texts.last_mut()) {
            (Some(after), _) => texts.push(format!("{}{after}", MARKS.0)),
            (None, Some(last)) => last.push_str(line),
            (None, None) => {}
        }
    }
    let texts = texts.into_iter().filter(|text| !text.is_empty());
    texts
        .map(|text| {
            // The whole text was parsed before, so its parts can be.
            let read = yaml::documents(text.as_bytes(), super::MAX_CONFIG_BYTES);
            let document = read.ok().and_then(|mut documents| documents.pop());
            Piece {
                root: document.map(|document| document.root),
                text,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MAIN: &str = "version: v1alpha1\nmachine:\n  type: worker # of the cellar\n";
    const WEB: &str = "---\napiVersion: v1alpha1\nkind: ContainerConfig\nname: web\nimage: nginx\n";
    const HEALTH: &str = "---\n# every minute\napiVersion: instar.dev/v1alpha1\nkind: ContainerHealthConfig\nname: web\nexec:\n  command: [\"---\"]\n";
    const GATE: &str =
        "---\napiVersion: instar.dev/v1alpha1\nkind: UpgradeGateConfig\ntimeout: 90s\n";

    #[test]
    fn ours_are_taken_out_and_the_rest_is_as_it_was_written() {
        let text = format!("{MAIN}{HEALTH}{WEB}{GATE}");
        assert_eq!(without_own(&text), format!("{MAIN}{WEB}"));
        let plain = format!("{MAIN}{WEB}");
        assert_eq!(without_own(&plain), plain);
        // Both ways of separating documents.
        for text in [
            format!(
                "{MAIN}--- {{apiVersion: instar.dev/v1alpha1, kind: UpgradeGateConfig}}\n{WEB}"
            ),
            format!("{MAIN}...\n{}{WEB}", GATE.trim_start_matches("---\n")),
            format!("{}{WEB}", format!("{MAIN}{GATE}").trim_end()).replace("90s---", "90s\n---"),
        ] {
            assert_eq!(without_own(&text), plain, "{text}");
        }
        let first = format!("{}---\n{MAIN}", GATE.trim_start_matches("---\n"));
        assert_eq!(without_own(&first), format!("---\n{MAIN}"));
    }

    #[test]
    fn ours_stay_behind_what_is_brought() {
        let in_force = format!("{HEALTH}---\n{MAIN}{WEB}{GATE}");
        let brought = format!("{MAIN}{WEB}").replace("worker", "controlplane");
        let kept = keep_own(&in_force, brought.trim_end()).unwrap();
        assert_eq!(kept.text, format!("{brought}{HEALTH}{GATE}"));
        let [warning] = kept.warnings.as_slice() else {
            unreachable!("{:?}", kept.warnings)
        };
        assert!(
            warning.starts_with("ContainerHealthConfig web, UpgradeGateConfig: "),
            "{warning}"
        );
        // A config that is shown and sent back unchanged changes nothing.
        let again = keep_own(&kept.text, &without_own(&kept.text)).unwrap();
        assert_eq!(again.text, kept.text);
    }

    #[test]
    fn a_check_goes_with_its_container() {
        let kept = keep_own(&format!("{MAIN}{WEB}{HEALTH}{GATE}"), MAIN).unwrap();
        assert_eq!(kept.text, format!("{MAIN}{GATE}"));
        assert_eq!(kept.warnings.len(), 2);
        assert!(kept.warnings[1].starts_with("ContainerHealthConfig web: removed"));
        let strategy = HEALTH.replace("ContainerHealth", "ContainerUpgrade");
        let kept = keep_own(&format!("{MAIN}{WEB}{strategy}"), MAIN).unwrap();
        assert_eq!(kept.text, MAIN);
    }

    #[test]
    fn who_brings_ours_knows_of_them() {
        let in_force = format!("{MAIN}{WEB}{HEALTH}{GATE}");
        assert_eq!(keep_own(&in_force, &format!("{MAIN}{GATE}")), None);
        assert_eq!(keep_own(&format!("{MAIN}{WEB}"), MAIN), None);
    }
}
