//! Text from nodes on a terminal. Lines of logs, labels and messages are those of whoever runs there: they may have colours, and nothing else
//! that a terminal obeys. Files and pipes get them as they are.

use instar_base::printable::{is_obeyed, printable};

/// Ends colours.
const PLAIN: &str = "\u{1b}[0m";

/// The text as a terminal may get it: with ends of lines, tabs and colours; other control characters are shown.
pub(crate) fn harmless(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut coloured = false;
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        if let Some(length) = length_of_colour(rest) {
            let (colour, after) = rest.split_at(length);
            shown.push_str(colour);
            (rest, coloured) = (after, true);
            continue;
        }
        let (this, after) = rest.split_at(character.len_utf8());
        match character {
            // A line that stays coloured would colour those of others.
            '\n' if coloured => {
                shown.push_str(PLAIN);
                shown.push('\n');
                coloured = false;
            }
            '\n' | '\t' => shown.push(character),
            // Programs that believe to write to a terminal end their lines so.
            '\r' if after.is_empty() || after.starts_with('\n') => {}
            other if is_obeyed(other) => shown.push_str(&escaped(this)),
            _ => shown.push_str(this),
        }
        rest = after;
    }
    if coloured {
        shown.push_str(PLAIN);
    }
    shown
}

/// A character as it is shown. A return would have what follows written over what came before.
fn escaped(character: &str) -> String {
    match character {
        "\r" => "\\x0d".to_owned(),
        other => printable(other),
    }
}

/// The length of the sequence that the text begins with, if that sets colours: `ESC [`, numbers, and `m` (ECMA-48, 8.3.117).
fn length_of_colour(text: &str) -> Option<usize> {
    let numbers = text.strip_prefix("\u{1b}[")?;
    let end = numbers.find(|it: char| !matches!(it, '0'..='9' | ';' | ':'))?;
    numbers[end..].starts_with('m').then_some(2 + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_log_has_colours_and_nothing_else() {
        for (text, shown) in [
            ("plain\tä\n漢", "plain\tä\n漢"),
            (
                "\u{1b}[1;31mred\u{1b}[0m x",
                "\u{1b}[1;31mred\u{1b}[0m x\u{1b}[0m",
            ),
            ("\u{1b}[31mred\nnext", "\u{1b}[31mred\u{1b}[0m\nnext"),
            ("\u{1b}[2J\u{1b}[1A", "\\x1b[2J\\x1b[1A"),
            ("\u{1b}]0;title\u{7}", "\\x1b]0;title\\x07"),
            ("\u{1b}[31", "\\x1b[31"),
            ("error\rdone ", "error\\x0ddone "),
            ("of DOS\r\nand the last\r", "of DOS\nand the last"),
            ("a\u{202e}b\u{9b}m", "a\\x202eb\\x9bm"),
        ] {
            assert_eq!(harmless(text), shown, "{text:?}");
        }
    }
}
