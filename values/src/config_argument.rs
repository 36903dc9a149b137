//! The kernel's arguments that name the machine config. Their URL may hold a password or a token, and leads to the config: what others read
//! has it not.

/// The arguments, ours first. The other one is for users who come from Talos.
pub const CONFIG_ARGUMENTS: [&str; 2] = ["instar.config", "talos.config"];

/// The text in place of a value that is hidden.
const HIDDEN: &str = "<hidden>";

/// The line, which may hold a kernel's command line, without the values of the arguments that name the config.
pub fn without_config_urls(line: String) -> String {
    let next = |text: &str| {
        let places = CONFIG_ARGUMENTS.iter().filter_map(|argument| {
            let (at, name) = text
                .match_indices(argument)
                .find(|(at, name)| text[at + name.len()..].starts_with('='))?;
            Some(at + name.len() + 1)
        });
        places.min()
    };
    if next(&line).is_none() {
        return line;
    }
    let (mut hidden, mut rest) = (String::new(), line.as_str());
    while let Some(start) = next(rest) {
        let (before, value) = rest.split_at(start);
        hidden.push_str(before);
        hidden.push_str(HIDDEN);
        rest = &value[length_of_value(before, value)..];
    }
    hidden + rest
}

/// Returns the length of an argument's value. It ends at a blank that is not in double quotes; those may begin before the name.
fn length_of_value(before: &str, value: &str) -> usize {
    let word = before.rsplit(|it: char| it.is_ascii_whitespace()).next();
    let mut is_quoted = word.is_some_and(|word| word.starts_with('"'));
    let mut ends = value.char_indices().filter(|(_, character)| {
        is_quoted ^= *character == '"';
        character.is_ascii_whitespace() && !is_quoted
    });
    ends.next().map_or(value.len(), |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_name_the_config_are_hidden() {
        for (line, hidden) in [
            ("panic=10 quiet", "panic=10 quiet"),
            (
                "a instar.config=http://u:p@h/x?t=1 talos.config=y\n",
                "a instar.config=<hidden> talos.config=<hidden>\n",
            ),
            (
                "Command line: instar.config=\"http://h/a b\" c",
                "Command line: instar.config=<hidden> c",
            ),
            (
                "\"talos.config=http://h/a b\" c",
                "\"talos.config=<hidden> c",
            ),
            (
                "talos.config=a talos.config=b talos.configs=c",
                "talos.config=<hidden> talos.config=<hidden> talos.configs=c",
            ),
            ("instar.config=", "instar.config=<hidden>"),
            ("instar.config=\u{e9}x y", "instar.config=<hidden> y"),
        ] {
            assert_eq!(without_config_urls(line.to_owned()), hidden);
        }
    }
}
