//! The authorities in a node's machine config: read, and changed without touching anything else.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use instar_client::{Failure, FailureKind};
use serde_json::{Value, json};

use super::record::Pair;
use super::step::{Authority, NodeChange};
use crate::patch;

/// The two authorities, by which configs are read and changed.
pub(super) struct Authorities<'a> {
    /// The old one's certificate, PEM.
    pub(super) old: &'a str,
    pub(super) new: &'a Pair,
}

/// A config's own authority, whether it accepts the other one, and whether it has the key of its own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Configured {
    pub(super) own: Authority,
    pub(super) accepts_other: bool,
    pub(super) has_key: bool,
}

impl Authorities<'_> {
    /// Reads a config.
    pub(super) fn read(&self, config: &str) -> Result<Configured, Failure> {
        let machine = machine(config)?;
        let own = machine.pointer("/ca/crt").and_then(certificate);
        let own = own.and_then(|own| self.which(&own)).ok_or_else(|| {
            bad("machine.ca is neither the authority of the client configuration nor the new one")
        })?;
        let others = accepted(&machine);
        let key = machine.pointer("/ca/key").and_then(Value::as_str);
        Ok(Configured {
            own,
            accepts_other: others
                .iter()
                .filter_map(|it| self.of(it))
                .any(|it| it != own),
            has_key: key.is_some_and(|key| !key.is_empty()),
        })
    }

    /// Returns the config after a change.
    pub(super) fn changed(&self, config: &str, change: NodeChange) -> Result<String, Failure> {
        let has_key = self.read(config)?.has_key;
        let mut others = accepted(&machine(config)?);
        let had_any = !others.is_empty();
        let mut operations = Vec::new();
        match change {
            NodeChange::Accept => others.push(json!({ "crt": encoded(&self.new.crt) })),
            NodeChange::Issue => {
                others.retain(|it| self.of(it).is_none());
                others.push(json!({ "crt": encoded(self.old) }));
                let mut own = json!({ "crt": encoded(&self.new.crt) });
                if has_key {
                    own["key"] = Value::String(encoded(&self.new.key));
                }
                operations.push(json!({ "op": "replace", "path": "/machine/ca", "value": own }));
            }
            NodeChange::Drop => others.retain(|it| self.of(it).is_none()),
            NodeChange::Sign => return Ok(config.to_owned()),
        }
        let path = "/machine/acceptedCAs";
        match (others.is_empty(), had_any) {
            (false, _) => operations.push(json!({ "op": "add", "path": path, "value": others })),
            (true, true) => operations.push(json!({ "op": "remove", "path": path })),
            (true, false) => {}
        }
        let patches = patch::read_all(&[Value::Array(operations).to_string()])?;
        patch::apply(config, &patches)
    }

    fn of(&self, accepted: &Value) -> Option<Authority> {
        self.which(&certificate(accepted.get("crt")?)?)
    }

    fn which(&self, certificate: &[u8]) -> Option<Authority> {
        let is = |pem: &str| {
            instar_pki::certificate_from_pem(pem).is_ok_and(|it| it.as_slice() == certificate)
        };
        match (is(self.old), is(&self.new.crt)) {
            (true, _) => Some(Authority::Old),
            (_, true) => Some(Authority::New),
            _ => None,
        }
    }
}

fn encoded(pem: &str) -> String {
    BASE64_STANDARD.encode(pem)
}

fn bad(why: &str) -> Failure {
    Failure::new(FailureKind::Refused, "cannot rotate this machine config").because(why.to_owned())
}

/// The certificate (DER) in base64 of PEM.
fn certificate(encoded: &Value) -> Option<Vec<u8>> {
    let bare: String = encoded.as_str()?.split_ascii_whitespace().collect();
    let pem = String::from_utf8(BASE64_STANDARD.decode(bare).ok()?).ok()?;
    instar_pki::certificate_from_pem(&pem).ok()
}

/// `machine` of the document without a kind.
fn machine(config: &str) -> Result<Value, Failure> {
    let documents = patch::documents(config).map_err(|error| bad(&error.to_string()))?;
    let mut main = documents.into_iter().filter(|it| it.get("kind").is_none());
    let found = main.find_map(|mut it| it.get_mut("machine").map(Value::take));
    found.ok_or_else(|| bad("it has no document with machine.ca"))
}

fn accepted(machine: &Value) -> Vec<Value> {
    let list = machine.get("acceptedCAs").and_then(Value::as_array);
    list.cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::SystemTime;

    use instar_pki::CertificateAuthority;

    use super::*;

    fn pair() -> Pair {
        Pair::of(&CertificateAuthority::generate(SystemTime::now()).unwrap())
    }

    fn config(ca: &Pair, with_key: bool, rest: &str) -> String {
        let key = match with_key {
            true => encoded(&ca.key),
            false => "\"\"".to_owned(),
        };
        let crt = encoded(&ca.crt);
        format!(
            "version: v1alpha1 # ours\nmachine:\n  type: worker # small\n  ca:\n    crt: {crt}\n    key: {key}\n{rest}---\nkind: HostnameConfig\nhostname: lamp-1\n"
        )
    }

    #[test]
    fn each_change_leads_to_the_next_and_leaves_everything_else() {
        let (old, new, third) = (pair(), pair(), pair());
        let authorities = Authorities {
            old: &old.crt,
            new: &new,
        };
        let rest = format!("  acceptedCAs:\n    - crt: {}\n", encoded(&third.crt));
        for (with_key, rest) in [(true, ""), (false, ""), (true, &*rest), (false, &*rest)] {
            let mut text = config(&old, with_key, rest);
            for (change, own, accepts_other) in [
                (NodeChange::Accept, Authority::Old, true),
                (NodeChange::Issue, Authority::New, true),
                (NodeChange::Sign, Authority::New, true),
                (NodeChange::Drop, Authority::New, false),
            ] {
                text = authorities.changed(&text, change).unwrap();
                let expected = Configured {
                    own,
                    accepts_other,
                    has_key: with_key,
                };
                assert_eq!(authorities.read(&text).unwrap(), expected, "{text}");
                assert!(
                    text.contains("# ours") && text.contains("type: worker # small"),
                    "{text}"
                );
                assert!(text.contains("hostname: lamp-1"), "{text}");
                assert_eq!(
                    text.contains(&encoded(&third.crt)),
                    !rest.is_empty(),
                    "{text}"
                );
            }
            assert!(!text.contains(&encoded(&old.crt)), "{text}");
            assert_eq!(text.contains(&encoded(&new.key)), with_key, "{text}");
        }
    }

    #[test]
    fn a_config_of_another_authority_is_refused() {
        let (old, new, third) = (pair(), pair(), pair());
        let authorities = Authorities {
            old: &old.crt,
            new: &new,
        };
        for bad in [
            config(&third, true, ""),
            "kind: X\n".to_owned(),
            String::new(),
        ] {
            assert!(authorities.read(&bad).is_err(), "{bad}");
            assert!(authorities.changed(&bad, NodeChange::Accept).is_err());
        }
    }
}
