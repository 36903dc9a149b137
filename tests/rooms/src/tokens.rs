//! The tokens of a Rust source that can form paths; comments, literals and tests are left out.

/// A token; characters that no path holds are `Other`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    /// An identifier or a keyword.
    Word(String),
    /// `::`
    PathSeparator,
    /// Any other character.
    Other(char),
}

/// Returns the tokens of `source`, without those of items under `#[cfg(test)]`.
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    without_tests(split(source))
}

/// Returns the names of modules that `source` declares for tests only, each in a file of its own.
pub(crate) fn test_modules(source: &str) -> Vec<String> {
    let tokens = split(source);
    let mut names = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let Some(length) = test_attribute(&tokens[at..]) else {
            at += 1;
            continue;
        };
        at += length;
        let item = &tokens[at..at + item_length(&tokens[at..])];
        let declaration = item.iter().position(|token| is_word(token, "mod"));
        if let (Some(at), Some(Token::Other(';'))) = (declaration, item.last())
            && let Some(Token::Word(name)) = item.get(at + 1)
        {
            names.push(name.clone());
        }
    }
    names
}

fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match test_attribute(&tokens[at..]) {
            Some(length) => {
                at += length;
                at += item_length(&tokens[at..]);
            }
            None => {
                kept.push(tokens[at].clone());
                at += 1;
            }
        }
    }
    kept
}

/// Returns the length of `#[cfg(test)]`, if `tokens` begin with it.
fn test_attribute(tokens: &[Token]) -> Option<usize> {
    if tokens.first() != Some(&Token::Other('#')) {
        return None;
    }
    let attribute = split("#[cfg(test)]");
    tokens.starts_with(&attribute).then_some(attribute.len())
}

/// Returns the length of an item, which ends with its first semicolon outside of brackets, or with its block.
fn item_length(tokens: &[Token]) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate() {
        match token {
            Token::Other('{' | '(' | '[') => depth += 1,
            Token::Other('}') if depth == 1 => return index + 1,
            Token::Other('}' | ')' | ']') => depth = depth.saturating_sub(1),
            Token::Other(';') if depth == 0 => return index + 1,
            _ => {}
        }
    }
    tokens.len()
}

pub(crate) fn is_word(token: &Token, word: &str) -> bool {
    matches!(token, Token::Word(name) if name == word)
}

fn split(source: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = literal_length(rest, first) {
            length
        } else if first.is_alphanumeric() || first == '_' {
            let end = rest.find(|next: char| !next.is_alphanumeric() && next != '_');
            let end = end.unwrap_or(rest.len());
            tokens.push(Token::Word(rest[..end].to_owned()));
            end
        } else if rest.starts_with("::") {
            tokens.push(Token::PathSeparator);
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(Token::Other(first));
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    tokens
}

/// Returns the length of the string or character literal at the start of `source`.
fn literal_length(source: &str, first: char) -> Option<usize> {
    // Most tokens begin with none of these: a quick answer for them.
    let may_begin = matches!(first, '"' | '\'' | 'b' | 'c' | 'r');
    may_begin.then(|| string_length(source).or_else(|| character_length(source)))?
}

/// Returns the length of the string literal at the start of `source`, of any kind.
fn string_length(source: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
        let rest = source.strip_prefix(prefix);
        let rest = rest.map(|rest| match prefix.ends_with('r') {
            true => rest.trim_start_matches('#'),
            false => rest,
        });
        rest.is_some_and(|rest| rest.starts_with('"'))
    })?;
    let literal = &source[prefix.len()..];
    let quote = literal.find('"')?;
    let body = prefix.len() + quote + 1;
    if prefix.ends_with('r') {
        let end = format!("\"{}", "#".repeat(quote));
        let length = source[body..].find(&end).map(|at| body + at + end.len());
        return Some(length.unwrap_or(source.len()));
    }
    let mut is_escaped = false;
    for (at, character) in source[body..].char_indices() {
        match character {
            '"' if !is_escaped => return Some(body + at + 1),
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    Some(source.len())
}

/// Returns the length of the character literal at the start of `source`; a lifetime is none.
fn character_length(source: &str) -> Option<usize> {
    let literal = source.strip_prefix('b').unwrap_or(source);
    let prefix = source.len() - literal.len();
    let mut characters = literal.strip_prefix('\'')?.char_indices();
    let (_, first) = characters.next()?;
    if first == '\\' {
        // The escaped character itself may be a quote.
        characters.next()?;
        let end = characters.find(|(_, character)| *character == '\'')?.0;
        return Some(prefix + 1 + end + 1);
    }
    let (end, quote) = characters.next()?;
    (quote == '\'').then_some(prefix + 1 + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        let words = tokens(source).into_iter().filter_map(|token| match token {
            Token::Word(word) => Some(word),
            _ => None,
        });
        words.collect()
    }

    #[test]
    fn comments_and_literals_are_left_out() {
        let source = r####"
            // crate::a
            /* crate::b */ one
            "crate::\"c" b"d" r#"crate::"e"# 'f' '\'' b'\\' '\u{1F}' two
            <'three>
        "####;
        assert_eq!(words(source), ["one", "two", "three"]);
    }

    #[test]
    fn tests_are_left_out() {
        let source = "one #[cfg(test)] use a::{b, c}; two #[cfg(test)] #[allow(x)] mod t { fn u() { v; } } three";
        assert_eq!(words(source), ["one", "two", "three"]);
        let source =
            "#[cfg(test)] pub(super) mod only; mod both; #[cfg(test)] mod inside { mod x; }";
        assert_eq!(test_modules(source), ["only"]);
    }
}
