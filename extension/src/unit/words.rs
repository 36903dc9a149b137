//! Command lines of units: words, quotes, variables and specifiers (systemd.service(5), "Command lines"; systemd.unit(5), "Specifiers").

use std::collections::BTreeMap;

/// A command of a unit, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Whether its failure counts as success (the prefix `-`).
    pub may_fail: bool,
    /// The program: a path, or a name that is looked for in the usual directories.
    pub program: String,
    /// The words after the program, with their variables.
    pub arguments: Vec<String>,
}

impl Command {
    /// Reads a command line. An error says which part of it is not served.
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let (may_fail, line) = match line.strip_prefix('-') {
            Some(line) => (true, line),
            None => (false, line),
        };
        if let Some(prefix) = line.chars().next().filter(|first| "@:+!|".contains(*first)) {
            return Err(format!("the prefix {prefix:?} of a command"));
        }
        let mut words = split(line)?.into_iter();
        let program = words.next().ok_or("a command without a program")?;
        if program.contains('$') {
            return Err("a variable as the program of a command".to_owned());
        }
        let arguments: Vec<String> = words.collect();
        if arguments.iter().any(|word| word == ";") {
            return Err("several commands in one line".to_owned());
        }
        Ok(Command {
            may_fail,
            program,
            arguments,
        })
    }

    /// The arguments with the values of their variables: `${NAME}` anywhere in a word as it is, `$NAME` as a whole word split at blanks.
    /// A variable without a value is empty.
    pub fn arguments(&self, environment: &BTreeMap<String, String>) -> Vec<String> {
        let value = |name: &str| environment.get(name).map_or("", String::as_str);
        let mut filled = Vec::new();
        for word in &self.arguments {
            match word.strip_prefix('$').filter(|name| is_variable(name)) {
                Some(name) => filled.extend(value(name).split_whitespace().map(str::to_owned)),
                None => filled.push(with_values(word, value)),
            }
        }
        filled
    }
}

fn is_variable(name: &str) -> bool {
    let begins = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    begins
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Replaces each `${NAME}`, and `$$` by `$`.
fn with_values<'a>(word: &str, value: impl Fn(&str) -> &'a str) -> String {
    let mut filled = String::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('$') {
        filled.push_str(before);
        let braced = after
            .strip_prefix('{')
            .and_then(|after| after.split_once('}'))
            .filter(|(name, _)| is_variable(name));
        rest = match (braced, after.strip_prefix('$')) {
            (Some((name, after)), _) => {
                filled.push_str(value(name));
                after
            }
            (None, Some(after)) => {
                filled.push('$');
                after
            }
            (None, None) => {
                filled.push('$');
                after
            }
        };
    }
    filled + rest
}

/// Splits a line at blanks that are not in quotes. An error says why it cannot.
pub(super) fn split(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = line.chars();
    while let Some(next) = characters.next() {
        match (next, quote) {
            ('\\', _) => word.get_or_insert_default().push(escaped(&mut characters)?),
            (next, Some(open)) if next == open => quote = None,
            (next, Some(_)) => word.get_or_insert_default().push(next),
            ('"' | '\'', None) => {
                quote = Some(next);
                word.get_or_insert_default();
            }
            (next, None) if next.is_whitespace() => words.extend(word.take()),
            (next, None) => word.get_or_insert_default().push(next),
        }
    }
    if quote.is_some() {
        return Err("a quote that does not end".to_owned());
    }
    words.extend(word);
    Ok(words)
}

fn escaped(rest: &mut std::str::Chars<'_>) -> Result<char, String> {
    match rest.next() {
        Some('n') => Ok('\n'),
        Some('t') => Ok('\t'),
        Some('s') => Ok(' '),
        Some(same @ ('\\' | '"' | '\'' | ' ' | '$' | '%')) => Ok(same),
        Some(other) => Err(format!("the escape \\{other}")),
        None => Err("a backslash at the end".to_owned()),
    }
}

/// The unit that specifiers speak of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named<'a> {
    /// `kubelet.service`
    pub(crate) unit: &'a str,
    /// The host's name.
    pub(crate) host: &'a str,
}

/// Replaces specifiers. An error names one that is not served.
pub(super) fn with_specifiers(value: &str, of: Named<'_>) -> Result<String, String> {
    let full = of.unit.rsplit_once('.').map_or(of.unit, |(full, _)| full);
    let instance = full.split_once('@').map_or("", |(_, instance)| instance);
    let mut filled = String::new();
    let mut characters = value.chars();
    while let Some(next) = characters.next() {
        if next != '%' {
            filled.push(next);
            continue;
        }
        match characters.next() {
            Some('%') => filled.push('%'),
            Some('N') => filled.push_str(full),
            Some('n') => filled.push_str(of.unit),
            Some('i') => filled.push_str(instance),
            Some('H') => filled.push_str(of.host),
            Some(other) => return Err(format!("the specifier %{other}")),
            None => return Err("a % at the end".to_owned()),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_command_is_words_with_variables() {
        let line = r#"-/usr/bin/kubelet $ARGS --a=${B}c "two words" 'it''s' \x$$ $NOT_SET --v=${NOT_SET} $5 a"#;
        let refused = Command::parse(line).unwrap_err();
        assert_eq!(refused, "the escape \\x");
        let command = Command::parse(&line.replace("\\x", "x")).unwrap();
        assert!(command.may_fail);
        assert_eq!(command.program, "/usr/bin/kubelet");
        let environment = [("ARGS", "--one  --two=2"), ("B", "b b")];
        let environment = environment.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let filled = command.arguments(&environment.into());
        assert_eq!(
            filled,
            [
                "--one",
                "--two=2",
                "--a=b bc",
                "two words",
                "its",
                "x$",
                "--v=",
                "$5",
                "a"
            ]
        );
    }

    #[test]
    fn a_command_that_is_not_served_is_refused() {
        for (line, why) in [
            ("", "a command without a program"),
            ("+/bin/a", "the prefix '+'"),
            ("/bin/a ; /bin/b", "several commands"),
            ("${A} b", "a variable as the program"),
            ("/bin/a \"b", "a quote that does not end"),
            ("/bin/a \\", "a backslash at the end"),
        ] {
            let refused = Command::parse(line).unwrap_err();
            assert!(refused.contains(why), "{line}: {refused}");
        }
    }

    #[test]
    fn specifiers_are_filled_in() {
        let of = Named {
            unit: "getty@tty1.service",
            host: "node-1",
        };
        let filled = with_specifiers("%N %n %i %H 100%%", of).unwrap();
        assert_eq!(filled, "getty@tty1 getty@tty1.service tty1 node-1 100%");
        assert_eq!(with_specifiers("%m", of).unwrap_err(), "the specifier %m");
        assert!(with_specifiers("%", of).is_err());
    }
}
