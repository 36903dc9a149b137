//! The syntax of units: sections, assignments, comments, lines that go on (systemd.syntax(7)).

/// An assignment of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub(crate) section: String,
    pub(crate) key: String,
    pub(crate) value: String,
    /// `FILE:LINE`, for messages.
    pub(crate) place: String,
}

/// A text that is no unit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
pub struct NotAUnit {
    place: String,
    why: &'static str,
}

/// Reads the assignments of a file, in its order.
pub(crate) fn parse(file: &str, text: &str) -> Result<Vec<Assignment>, NotAUnit> {
    let mut found = Vec::new();
    let mut section: Option<String> = None;
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let refused = |why| NotAUnit {
            place: format!("{file}:{number}"),
            why,
        };
        let line = line.trim();
        if is_comment(line) || line.is_empty() {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            let name = name.strip_suffix(']').filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| refused("a section's name does not end with ]"))?;
            section = Some(name.to_owned());
            continue;
        }
        let (key, value) = line
            .split_once('=')
            .ok_or_else(|| refused("a line is neither a section nor an assignment"))?;
        let section = section
            .clone()
            .ok_or_else(|| refused("an assignment stands before the first section"))?;
        let mut value = value.trim().to_owned();
        while let Some(begun) = value.strip_suffix('\\') {
            // Comments between the lines do not end the value.
            let next = lines.by_ref().find(|(line, _)| !is_comment(line.trim()));
            let (next, _) = next.ok_or_else(|| refused("the last line ends with a backslash"))?;
            value = format!("{begun} {}", next.trim());
        }
        found.push(Assignment {
            section,
            key: key.trim().to_owned(),
            value: value.trim().to_owned(),
            place: format!("{file}:{number}"),
        });
    }
    Ok(found)
}

fn is_comment(line: &str) -> bool {
    line.starts_with(['#', ';'])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sections_assignments_comments_and_long_lines_are_read() {
        let text = "# a comment\n[Unit]\nDescription = a service\n; another\n\n[Service]\nExecStart=/bin/a \\\n# between\n  --b \\\n  --c\nEnvironment=\n";
        let found = parse("a.service", text).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|it| {
                (
                    it.section.as_str(),
                    it.key.as_str(),
                    it.value.as_str(),
                    it.place.as_str(),
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                ("Unit", "Description", "a service", "a.service:3"),
                ("Service", "ExecStart", "/bin/a  --b  --c", "a.service:7"),
                ("Service", "Environment", "", "a.service:11"),
            ]
        );
    }

    #[test]
    fn other_texts_are_refused_with_their_place() {
        for (text, place) in [
            ("A=b\n", "u:1"),
            ("[Unit\n", "u:1"),
            ("[]\n", "u:1"),
            ("[Unit]\nnonsense\n", "u:2"),
            ("[Unit]\nA=b\\", "u:2"),
        ] {
            let refused = parse("u", text).unwrap_err();
            assert!(refused.to_string().starts_with(place), "{refused}");
        }
    }
}
