//! Text of strangers for a terminal: names, labels and messages that come from elsewhere must not move the cursor, hide what stands beside
//! them, or answer for somebody.

use std::fmt::Write as _;

/// The text in one line that no terminal obeys: blanks instead of tabs and ends of lines, and `\x1b` for other control characters, as the
/// kernel shows them to readers of its log. Characters that turn the direction of writing count as such.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\t' | '\n' | '\r' => shown.push(' '),
            other if is_obeyed(other) => {
                // Writing to a string does not fail.
                let _ = write!(shown, "\\x{:02x}", u32::from(other));
            }
            other => shown.push(other),
        }
    }
    shown
}

/// Whether a terminal does something else than to show this character.
pub fn is_obeyed(character: char) -> bool {
    let turns = matches!(
        character,
        '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    turns || character.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_terminal_obeys_a_text() {
        for (text, shown) in [
            ("plain, ä and 漢", "plain, ä and 漢"),
            ("v1\u{1b}[2J\u{1b}[H", "v1\\x1b[2J\\x1b[H"),
            ("one\r\ntwo\tthree", "one  two three"),
            ("\u{9b}31m\u{7f}\0", "\\x9b31m\\x7f\\x00"),
            ("a\u{202e}b", "a\\x202eb"),
            ("", ""),
        ] {
            assert_eq!(printable(text), shown);
        }
    }
}
