//! The challenge of a 401: the `WWW-Authenticate` header (RFC 9110, 11.6.1), and the answer to it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use instar_values::RegistryAuth;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};

/// A challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    /// A token of a token service.
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

impl Challenge {
    /// The first challenge in these headers that we can answer; Bearer is preferred, as registries do.
    pub(crate) fn find<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Challenge> {
        let all: Vec<Challenge> = headers.flat_map(parse).collect();
        let bearer = all
            .iter()
            .find(|challenge| matches!(challenge, Challenge::Bearer { .. }));
        bearer.or(all.first()).cloned()
    }
}

fn parse(header: &str) -> Vec<Challenge> {
    let mut found = Vec::new();
    let mut rest = header.trim_start();
    while !rest.is_empty() {
        let end = rest.find([' ', ',']).unwrap_or(rest.len());
        let scheme = &rest[..end];
        let (parameters, after) = parameters(rest[end..].trim_start());
        let get = |name: &str| {
            let named = parameters
                .iter()
                .find(|(key, _)| key.eq_ignore_ascii_case(name));
            named.map(|(_, value)| value.clone())
        };
        if scheme.eq_ignore_ascii_case("basic") {
            found.push(Challenge::Basic);
        } else if scheme.eq_ignore_ascii_case("bearer")
            && let Some(realm) = get("realm")
        {
            found.push(Challenge::Bearer {
                realm,
                service: get("service"),
                scope: get("scope"),
            });
        }
        // Each round consumes at least one byte: the end of a scheme, or a lone comma.
        rest = if after.len() < rest.len() {
            after
        } else {
            &rest[rest.len().min(end + 1)..]
        };
        rest = rest.trim_start_matches([',', ' ']);
    }
    found
}

/// Reads `key=value, key="value"`; returns the parameters and the rest, which begins with the next scheme.
fn parameters(mut text: &str) -> (Vec<(String, String)>, &str) {
    let mut found = Vec::new();
    loop {
        let start = text.trim_start_matches([',', ' ']);
        let Some(equals) = start.find('=') else {
            return (found, text);
        };
        let key = &start[..equals];
        if key.is_empty() || key.contains([' ', ',', '"']) {
            return (found, start);
        }
        let (value, after) = match start[equals + 1..].strip_prefix('"') {
            Some(quoted) => match unquote(quoted) {
                Some(both) => both,
                None => return (found, ""),
            },
            None => {
                let value = &start[equals + 1..];
                let end = value.find([',', ' ']).unwrap_or(value.len());
                (value[..end].to_owned(), &value[end..])
            }
        };
        found.push((key.to_owned(), value));
        text = after;
    }
}

fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

/// The header for a user and password.
pub(super) fn basic(username: &str, password: &str) -> String {
    format!(
        "Basic {}",
        STANDARD.encode(format!("{username}:{password}"))
    )
}

/// The request for a token: its URL, and its form if it is a POST (an identity token is only sent in a form).
pub(crate) fn token_request(
    realm: &str,
    service: Option<&str>,
    scope: &str,
    auth: Option<&RegistryAuth>,
) -> (String, Option<String>) {
    let mut query = format!("scope={}", escaped(scope));
    if let Some(service) = service {
        query.push_str(&format!("&service={}", escaped(service)));
    }
    match auth {
        Some(RegistryAuth::IdentityToken(token)) => {
            let form = format!(
                "{query}&grant_type=refresh_token&client_id=instar&refresh_token={}",
                escaped(token.expose())
            );
            (realm.to_owned(), Some(form))
        }
        _ => (
            format!(
                "{realm}{}{query}",
                if realm.contains('?') { '&' } else { '?' }
            ),
            None,
        ),
    }
}

/// The characters to escape in queries and forms: all but the unreserved ones.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Escapes text for queries and forms.
pub(crate) fn escaped(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, RESERVED)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use instar_values::Secret;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Option<Challenge> {
        let own = |text: Option<&str>| text.map(str::to_owned);
        Some(Challenge::Bearer {
            realm: realm.to_owned(),
            service: own(service),
            scope: own(scope),
        })
    }

    #[test]
    fn challenges_of_real_registries() {
        let find = |headers: &[&str]| Challenge::find(headers.iter().copied());
        let hub = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/a:pull,push""#;
        let expected = bearer(
            "https://auth.docker.io/token",
            Some("registry.docker.io"),
            Some("repository:library/a:pull,push"),
        );
        assert_eq!(find(&[hub]), expected);
        assert_eq!(
            find(&[r#"Basic realm="basic-realm""#]),
            Some(Challenge::Basic)
        );
        assert_eq!(
            find(&[r#"Basic realm="x", Bearer realm=https://t , service="a\"b""#]),
            bearer("https://t", Some("a\"b"), None)
        );
        assert_eq!(
            find(&["Basic", r#"bearer Realm="t""#]),
            bearer("t", None, None)
        );
        for none in [
            "",
            "Negotiate",
            "Bearer",
            "Bearer service=x",
            r#"Bearer realm="open"#,
            ",,,",
            "= =",
            "Digest a=b,c",
        ] {
            assert_eq!(find(&[none]), None, "{none}");
        }
    }

    #[test]
    fn tokens_are_asked_for_without_leaking() {
        let (url, form) =
            token_request("https://t/x?a=b", Some("r s"), "repository:a/b:pull", None);
        assert_eq!(
            url,
            "https://t/x?a=b&scope=repository%3Aa%2Fb%3Apull&service=r%20s"
        );
        assert_eq!(form, None);
        let identity = RegistryAuth::IdentityToken(Secret::new("se&cret"));
        let (url, form) = token_request("https://t", None, "s", Some(&identity));
        assert_eq!(url, "https://t");
        assert!(form.unwrap().ends_with("refresh_token=se%26cret"));
    }
}
