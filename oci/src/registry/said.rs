//! The words of a registry about an error.

use std::fmt;

use serde::Deserialize;

use instar_http_client::Answer;

/// Size limit of tokens and error messages.
pub(super) const LARGEST_ANSWER: usize = 256 * 1024;

/// The registry's message about an error, formatted to follow a sentence.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Said(Option<String>);

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(words) => write!(f, " ({words})"),
            None => Ok(()),
        }
    }
}

/// The message of an error response. If it cannot be read, the status is enough.
pub(super) async fn explanation(answer: &mut Answer) -> Said {
    said(&answer.document(LARGEST_ANSWER).await.unwrap_or_default())
}

/// The message in `{"errors":[{"code":…,"message":…}]}`, the format of the distribution specification.
fn said(body: &[u8]) -> Said {
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<Message>,
    }
    #[derive(Deserialize)]
    struct Message {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let first = serde_json::from_slice::<Errors>(body)
        .ok()
        .and_then(|errors| errors.errors.into_iter().next());
    Said(first.map(|Message { code, message }| {
        format!("{code}: {message}")
            .chars()
            .filter(|c| !c.is_control())
            .take(200)
            .collect()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_registry_are_kept_short() {
        let body = br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest\nunknown","detail":{}}]}"#;
        assert_eq!(
            said(body).to_string(),
            " (MANIFEST_UNKNOWN: manifestunknown)"
        );
        assert_eq!(said(b"<html>").to_string(), "");
        assert_eq!(said(br#"{"errors":[]}"#).to_string(), "");
    }
}
