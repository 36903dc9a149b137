//! The proxies in the machine's environment: `http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`, in small or capital letters.
//!
//! hyper-util's matcher reads them as curl does. It drops values that it cannot parse, so they are checked here first: a machine that
//! silently bypasses its proxy reaches nothing.

use std::fmt;

use http::{HeaderValue, Uri};
use hyper_util::client::proxy::matcher::Matcher;

/// The environment's settings of proxies.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    http: Option<String>,
    https: Option<String>,
    except: String,
}

/// Hides the settings: addresses of proxies may contain passwords.
impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proxies(..)")
    }
}

/// Why a setting is not a proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{variable} does not name a proxy: write http://HOST[:PORT]; proxies over TLS or SOCKS are not served"
)]
pub struct BadProxy {
    variable: &'static str,
}

impl Proxies {
    /// Reads an environment. A name in small letters takes precedence over the same one in capitals, as in curl.
    pub fn from_environment<'a>(variable: impl Fn(&str) -> Option<&'a str>) -> Self {
        let either = |name: &str| {
            variable(name)
                .or_else(|| variable(&name.to_uppercase()))
                .filter(|value| !value.is_empty())
                .map(str::to_owned)
        };
        let all = either("all_proxy");
        Proxies {
            http: either("http_proxy").or_else(|| all.clone()),
            https: either("https_proxy").or(all),
            except: either("no_proxy").unwrap_or_default(),
        }
    }

    pub(crate) fn rules(&self) -> Rules {
        let matcher = Matcher::builder()
            .http(self.http.clone().unwrap_or_default())
            .https(self.https.clone().unwrap_or_default())
            .no(self.except.clone())
            .build();
        // A valid stand-in in the matcher shows for which addresses an invalid setting applies.
        let counts = Matcher::builder()
            .all("http://proxy".to_owned())
            .no(self.except.clone())
            .build();
        Rules {
            settings: self.clone(),
            matcher,
            counts,
        }
    }
}

/// The proxy of a request.
pub(crate) struct Proxy {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) authorization: Option<HeaderValue>,
}

impl Proxy {
    pub(crate) fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// The parsed settings.
pub(crate) struct Rules {
    settings: Proxies,
    matcher: Matcher,
    counts: Matcher,
}

impl Rules {
    /// The proxy for an address; `None` if none is set, or `no_proxy` excludes the address.
    pub(crate) fn proxy(&self, uri: &Uri) -> Option<Result<Proxy, BadProxy>> {
        let (variable, setting) = if uri.scheme_str() == Some("https") {
            ("https_proxy", &self.settings.https)
        } else {
            ("http_proxy", &self.settings.http)
        };
        setting.as_ref()?;
        self.counts.intercept(uri)?;
        let proxy = self.matcher.intercept(uri).and_then(|intercept| {
            let at = intercept.uri();
            if at.scheme_str() != Some("http") {
                return None;
            }
            Some(Proxy {
                host: at.host()?.trim_matches(['[', ']']).to_owned(),
                port: at.port_u16().unwrap_or(80),
                authorization: intercept.basic_auth().cloned(),
            })
        });
        Some(proxy.ok_or(BadProxy { variable }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The proxy for an address, in an environment.
    fn through(environment: &[(&str, &str)], uri: &str) -> Option<Result<String, BadProxy>> {
        let variable = |name: &str| {
            let found = environment.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| *value)
        };
        let proxy = Proxies::from_environment(variable)
            .rules()
            .proxy(&uri.parse().unwrap());
        proxy.map(|proxy| proxy.map(|proxy| proxy.authority()))
    }

    #[test]
    fn each_scheme_has_its_proxy_and_exceptions_have_none() {
        let environment = [
            ("http_proxy", "http://a:3128"),
            ("HTTPS_PROXY", "b:8080"),
            ("no_proxy", "lan.example,10.0.0.0/8"),
        ];
        let cases = [
            ("http://registry.example/v2", Some("a:3128")),
            ("https://registry.example/v2", Some("b:8080")),
            ("https://deep.lan.example/", None),
            ("http://10.1.2.3:5000/", None),
        ];
        for (uri, proxy) in cases {
            let expected = proxy.map(|proxy| Ok(proxy.to_owned()));
            assert_eq!(through(&environment, uri), expected, "{uri}");
        }
        assert_eq!(through(&[], "http://a/"), None);
        assert_eq!(
            through(&[("ALL_PROXY", "http://[fd00::1]:1")], "https://x/"),
            Some(Ok("fd00::1:1".to_owned()))
        );
    }

    #[test]
    fn a_setting_that_is_no_proxy_is_an_error_and_no_direct_way() {
        for bad in ["socks5://a:1", "https://a", "http://", "a b"] {
            let found = through(&[("https_proxy", bad)], "https://x/");
            assert!(matches!(found, Some(Err(_))), "{bad}: {found:?}");
        }
    }
}
