//! Looks at the nodes of a rotation: what is true of each.

use std::collections::BTreeMap;
use std::time::Duration;

use instar_client::{
    CONFIG_IN_FORCE, CONFIG_KEPT, Endpoint, Failure, FailureKind, Node, Target, Trust, connect,
};
use instar_pki::{certificates_from_pem, private_key_from_pem};
use instar_rollout::MachineName;
use instar_rollout_driver::says_the_same;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::super::members::Way;
use super::super::sign;
use super::config::Authorities;
use super::record::Rotation;
use super::step::{Authority, Fact, Seen, Signer};
use crate::cli::Global;
use crate::commands::patch::read_config;
use crate::target;

/// Timeout of one look at a node.
const LOOK: Duration = Duration::from_secs(20);

/// Looks at all nodes side by side, but at none that is left.
pub(super) async fn all(
    global: &Global,
    rotation: &Rotation,
) -> Result<BTreeMap<MachineName, Fact>, Failure> {
    let mut looks = JoinSet::new();
    for (name, way) in &rotation.ways {
        if rotation.left.contains(name) {
            continue;
        }
        let (name, way, rotation) = (name.clone(), way.clone(), rotation.clone());
        let target = target::by_way(global, &way.endpoints, None);
        looks.spawn(async move {
            let look = async {
                let node = connected(&target, &name).await?;
                fact(&node, &way, &rotation).await
            };
            let looked = timeout(LOOK, look).await;
            (name, looked)
        });
    }
    let mut facts = BTreeMap::new();
    while let Some(looked) = looks.join_next().await {
        let Ok((name, looked)) = looked else { continue };
        let fact = match looked {
            Ok(Ok(fact)) => fact,
            // The node answers, and no rotation can be made of its config.
            Ok(Err(failure)) if failure.kind() == FailureKind::Refused => {
                return Err(failure);
            }
            Ok(Err(failure)) => Fact::Away(failure.chain()),
            Err(_) => Fact::Away(format!("no answer within {} s", LOOK.as_secs())),
        };
        facts.insert(name, fact);
    }
    // A task that was lost counts as a node that is away.
    for name in rotation.ways.keys() {
        if !rotation.left.contains(name) {
            let lost = || Fact::Away("it was not looked at".to_owned());
            facts.entry(name.clone()).or_insert_with(lost);
        }
    }
    Ok(facts)
}

/// Connects to one node as the client configuration says.
pub(super) async fn node(global: &Global, name: &MachineName, way: &Way) -> Result<Node, Failure> {
    connected(&target::by_way(global, &way.endpoints, None), name).await
}

async fn connected(target: &Target, name: &MachineName) -> Result<Node, Failure> {
    Ok(target.behind_endpoint().await?.called(name.as_str()))
}

async fn fact(node: &Node, way: &Way, rotation: &Rotation) -> Result<Fact, Failure> {
    let config = read_config(node, CONFIG_IN_FORCE).await?;
    let authorities = Authorities {
        old: &rotation.old,
        new: &rotation.new,
    };
    let configured = authorities.read(&config).map_err(|failure| {
        Failure::new(
            FailureKind::Refused,
            format!("{}: not rotated", node.name()),
        )
        .because(failure)
    })?;
    if let Some(why) = two_configs(&config, &read_config(node, CONFIG_KEPT).await?) {
        return Ok(Fact::Away(why.to_owned()));
    }
    let signer = match configured.has_key {
        true => Signer::Itself,
        false if sign::show(node).await?.asks_control_plane => Signer::ControlPlane,
        false => Signer::Person,
    };
    let mut shows_new = false;
    match (configured.own, configured.accepts_other) {
        (Authority::Old, false) => {}
        // The config is in force, and the API may follow it a moment later.
        (Authority::Old, true) => {
            let both = [rotation.old.as_str(), rotation.new.crt.as_str()];
            if !lets_in(way, rotation, &both).await? {
                return Ok(Fact::Away(
                    "it does not let in clients of the new authority yet".to_owned(),
                ));
            }
        }
        (Authority::New, _) => shows_new = lets_in(way, rotation, &[&rotation.new.crt]).await?,
    }
    Ok(Fact::Here(Seen {
        own: configured.own,
        accepts_other: configured.accepts_other,
        shows_new,
        signer,
    }))
}

/// Why the config of a node is not changed now: a change would keep one that is only tried, and the one that waits for a boot would be lost.
fn two_configs(in_force: &str, kept: &str) -> Option<&'static str> {
    (!says_the_same(in_force, kept)).then_some(
        "its config for the next boot is not the one in force, which is tried, or was followed by one that waits for a boot",
    )
}

/// Whether the node lets in the client's new certificate, and can be verified by these authorities alone (PEM).
async fn lets_in(way: &Way, rotation: &Rotation, authorities: &[&str]) -> Result<bool, Failure> {
    let broken = || Failure::new(FailureKind::Failed, "the record of the rotation is broken");
    for endpoint in &way.endpoints {
        let endpoint: Endpoint = endpoint
            .parse()
            .map_err(|error| Failure::new(FailureKind::Usage, "cannot connect").because(error))?;
        let trust = Trust::Mutual {
            fingerprints: Vec::new(),
            authorities: certificates_from_pem(&authorities.join("\n"))
                .map_err(|error| broken().because(error))?,
            certificates: certificates_from_pem(&rotation.client.crt)
                .map_err(|error| broken().because(error))?,
            key: private_key_from_pem(&rotation.client.key)
                .map_err(|error| broken().because(error))?,
        };
        let tls = trust.into_tls().map_err(|error| broken().because(error))?;
        if connect(&endpoint, tls).await.is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_a_config_on_trial_or_staged_is_waited_for() {
        let config = "machine: {sysctls: {a: \"1\"}}\n";
        for (kept, is_waited_for) in [
            (config, false),
            ("# ours\nmachine:\n  sysctls: {a: '1'}\n", false),
            ("machine: {sysctls: {a: \"2\"}}\n", true),
            ("", true),
        ] {
            let why = two_configs(config, kept);
            assert_eq!(why.is_some(), is_waited_for, "{kept}");
        }
    }
}
