//! `fleet rotate`: replaces the authority of all nodes, one step after the other. It may be killed at any moment: what is true of the nodes and
//! of the client configuration decides the next step, and the new keys are written before the first one.
//!
//! ```text
//!   rotation.json (keys, nodes) ─┐
//!   client configuration ────────┼─► look ─► next (step.rs) ─► act ─► look …
//!   each node: config, TLS ──────┘
//! ```

mod client_file;
mod config;
mod look;
mod record;
mod step;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use instar_api::instar::ShowCertificateResponse;
use instar_api::machine::ApplyConfigurationRequest;
use instar_api::machine::apply_configuration_request::Mode;
use instar_base::whole_file;
use instar_client::{CONFIG_IN_FORCE, Failure, FailureKind, config_failure, is_busy};
use instar_pki::{CertificateAuthority, ServerRequest};
use instar_rollout::MachineName;
use serde_json::json;

use self::client_file::ClientFile;
use self::config::Authorities;
use self::record::{Pair, Rotation};
use self::step::{Client, ClientChange, Fact, NodeChange, Step};
use super::look::answered;
use super::members::{self, Way};
use super::note::note;
use super::store::Folder;
use super::{authority_file, sign};
use crate::cli::{FleetRotate, Global};
use crate::commands::gen_secrets::Secrets;
use crate::commands::patch::read_config;

/// The pause between two looks while there is nothing to do.
const INTERVAL: Duration = Duration::from_secs(2);
/// Timeout of the change of one node, a new connection included. The next look tells what became of it.
const CHANGE: Duration = Duration::from_secs(120);
/// The new authority with its key, for the person.
const AUTHORITY: &str = "authority.pem";
/// The client configuration as it was before.
const BEFORE: &str = "talosconfig.before";

pub(super) async fn run(global: &Global, arguments: &FleetRotate) -> Result<(), Failure> {
    let folder = Folder::of(global, &arguments.state)?;
    let client = ClientFile::open(global)?;
    let known = Rotation::read(&folder)?.filter(|rotation| !rotation.has_ended);
    if arguments.dry_run {
        let rotation = match known {
            Some(rotation) => rotation,
            None => new_rotation(global, arguments, &client).await?,
        };
        let client = client.with_context(&rotation.context);
        return plan(global, &left(rotation, arguments)?, &client).await;
    }
    let lock = folder.lock_driver().await?;
    let _lock = lock.ok_or_else(|| folder.is_driven())?;
    let rotation = match known {
        Some(rotation) => {
            note("goes on with the rotation that was begun");
            left(rotation, arguments)?
        }
        None => {
            let rotation = new_rotation(global, arguments, &client).await?;
            let rotation = left(rotation, arguments)?;
            keep(&folder, BEFORE, &client.text()?)?;
            rotation
        }
    };
    if let Some(secrets) = &arguments.secrets {
        belongs_to(&rotation, secrets)?;
    }
    rotation.write(&folder)?;
    let client = client.with_context(&rotation.context);
    drive(
        global,
        &rotation,
        &client,
        Duration::from_secs(arguments.patience.0),
    )
    .await?;
    // Not before the end: an authority of an earlier rotation may be there, and is in force until then.
    let authority = authority_file::to_pem(&rotation.authority()?);
    keep(&folder, AUTHORITY, &authority)?;
    if let Some(secrets) = &arguments.secrets {
        Secrets::replace_authority(secrets, &rotation.authority()?)?;
    }
    let ended = Rotation {
        has_ended: true,
        ..rotation
    };
    ended.write(&folder)?;
    tell_the_end(global, &folder, &ended)
}

/// A rotation that begins now.
async fn new_rotation(
    global: &Global,
    arguments: &FleetRotate,
    client: &ClientFile,
) -> Result<Rotation, Failure> {
    let ways = members::direct_ways(global, &arguments.nodes).await?;
    if let Some((name, _)) = ways.iter().find(|(_, way)| way.node.is_some()) {
        return Err(Failure::new(
            FailureKind::Usage,
            format!("{name} has no address of its own to connect to"),
        )
        .advise("name the nodes with their addresses in a file, with --fleet; --members takes them from their Kubernetes cluster"));
    }
    let authority = match &arguments.authority {
        Some(path) => authority_file::read(path)?,
        None => CertificateAuthority::generate(SystemTime::now()).map_err(|error| {
            Failure::new(FailureKind::Failed, "cannot make an authority").because(error)
        })?,
    };
    let old = client.authority()?;
    if is_of(&old, &authority) {
        return Err(Failure::new(
            FailureKind::Usage,
            "the new authority is the one that the client configuration believes already",
        ));
    }
    let shown = client.now()?.crt_pem().ok().flatten().unwrap_or_default();
    let roles = instar_pki::certificate_from_pem(&shown)
        .ok()
        .and_then(|certificate| instar_pki::client_roles(&certificate).ok());
    let roles = roles.ok_or_else(|| {
        Failure::new(
            FailureKind::Usage,
            "the client configuration has no readable certificate",
        )
    })?;
    Ok(Rotation {
        context: client.name().to_owned(),
        ways,
        left: Default::default(),
        old,
        new: Pair::of(&authority),
        client: Rotation::client_of(&authority, &roles)?,
        valid_for: arguments.valid_for,
        has_ended: false,
    })
}

/// The rotation without the nodes that the person leaves.
fn left(mut rotation: Rotation, arguments: &FleetRotate) -> Result<Rotation, Failure> {
    for name in &arguments.leave {
        let name = MachineName::from(name);
        if !rotation.ways.contains_key(&name) {
            return Err(Failure::new(
                FailureKind::Usage,
                format!("the rotation has no node {name}"),
            ));
        }
        rotation.left.insert(name);
    }
    Ok(rotation)
}

/// Refuses secrets of another fleet. Those of a rotation that was killed at its end have the new authority already.
fn belongs_to(rotation: &Rotation, secrets: &Path) -> Result<(), Failure> {
    let authority = Secrets::read(secrets)?.authority(secrets)?;
    if is_of(&rotation.old, &authority) || is_of(&rotation.new.crt, &authority) {
        return Ok(());
    }
    Err(Failure::new(
        FailureKind::Usage,
        format!(
            "{} has another authority than the client configuration believes",
            secrets.display()
        ),
    ))
}

/// Whether a certificate, PEM, is that of the authority.
fn is_of(certificate: &str, authority: &CertificateAuthority) -> bool {
    instar_pki::certificate_from_pem(certificate)
        .is_ok_and(|it| it == authority.certificate().as_ref())
}

/// Writes a file for the person into the folder.
fn keep(folder: &Folder, name: &str, content: &str) -> Result<(), Failure> {
    let path = folder.file(name);
    whole_file::replace(&path, 0o600, content.as_bytes())
        .map_err(|error| Failure::io(format!("cannot write {}", path.display()), error))
}

/// Takes one step after the other until there is none.
async fn drive(
    global: &Global,
    rotation: &Rotation,
    client: &ClientFile,
    patience: Duration,
) -> Result<(), Failure> {
    let mut waits: Option<(Instant, String)> = None;
    loop {
        let facts = (client.fact(rotation)?, look::all(global, rotation).await?);
        let why = match steps_of_a_look(global, rotation, client, facts).await? {
            Outcome::Done => return Ok(()),
            Outcome::Changed => {
                waits = None;
                continue;
            }
            Outcome::Waits(why) => why,
        };
        let since = waits
            .as_ref()
            .map_or_else(Instant::now, |(since, _)| *since);
        if waits.as_ref().is_none_or(|(_, told)| *told != why) {
            note(&format!("waits for {why}"));
        }
        if since.elapsed() >= patience {
            return Err(Failure::new(FailureKind::TimedOut, format!("waited for {why}")).advise(
                "the same command goes on; --leave NODE goes on without a node, which keeps the old authority",
            ));
        }
        waits = Some((since, why));
        tokio::time::sleep(INTERVAL).await;
    }
}

/// The outcome of a look at all nodes.
enum Outcome {
    Done,
    /// Something was changed: look again.
    Changed,
    /// Nothing can be done now, for this reason.
    Waits(String),
}

/// Takes the next step, and the same change of further nodes with it: between these nothing else decides, and a large fleet is not looked at
/// again for each node.
async fn steps_of_a_look(
    global: &Global,
    rotation: &Rotation,
    client: &ClientFile,
    mut facts: (Client, BTreeMap<MachineName, Fact>),
) -> Result<Outcome, Failure> {
    loop {
        let step = step::next(facts.0, &facts.1);
        let change = match &step {
            Step::Done => return Ok(Outcome::Done),
            Step::Wait(nodes) => return Ok(Outcome::Waits(in_words(nodes))),
            Step::Client(change) => {
                client.change(rotation, *change)?;
                tell(global, "client configuration", client_words(*change))?;
                return Ok(Outcome::Changed);
            }
            Step::Node(name, change) => {
                let acting = act(global, rotation, name, *change);
                match answered(name.as_str(), CHANGE, acting).await {
                    Ok(()) => tell(global, name.as_str(), node_words(*change))?,
                    Err(failure) if passes(&failure) => {
                        return Ok(Outcome::Waits(format!("{name} ({})", failure.chain())));
                    }
                    Err(failure) => return Err(failure),
                }
                *change
            }
        };
        facts = step::after(facts, &step);
        let next = step::next(facts.0, &facts.1);
        let is_the_same = matches!(next, Step::Node(_, next) if next == change);
        if !is_the_same {
            return Ok(Outcome::Changed);
        }
    }
}

/// Whether the failure ends by itself: the node is away, or another operation runs on it, as its boot after a power cut.
fn passes(failure: &Failure) -> bool {
    use FailureKind::{NotAuthorized, TimedOut, Unreachable};
    // A node that has just changed its certificate may refuse one connection.
    matches!(failure.kind(), Unreachable | TimedOut | NotAuthorized) || is_busy(failure)
}

fn in_words(nodes: &[(MachineName, String)]) -> String {
    let nodes = nodes.iter().map(|(name, why)| format!("{name} ({why})"));
    nodes.collect::<Vec<_>>().join(", ")
}

/// Changes one node.
async fn act(
    global: &Global,
    rotation: &Rotation,
    name: &MachineName,
    change: NodeChange,
) -> Result<(), Failure> {
    let way: &Way = rotation.ways.get(name).ok_or_else(|| {
        Failure::new(
            FailureKind::Failed,
            format!("the record has no node {name}"),
        )
    })?;
    let node = look::node(global, name, way).await?;
    if change == NodeChange::Sign {
        let request = to_sign(rotation, node.name(), &sign::show(&node).await?)?;
        let lifetime = Duration::from_secs(rotation.valid_for.0);
        sign::give(&node, &request, &rotation.authority()?, lifetime).await?;
        return Ok(());
    }
    let authorities = Authorities {
        old: &rotation.old,
        new: &rotation.new,
    };
    let config = read_config(&node, CONFIG_IN_FORCE).await?;
    let request = ApplyConfigurationRequest {
        data: authorities.changed(&config, change)?.into_bytes(),
        mode: Mode::NoReboot.into(),
        ..ApplyConfigurationRequest::default()
    };
    let reply = node
        .machine()
        .apply_configuration(node.request(request))
        .await;
    reply.map_err(|status| node.explain(config_failure(status.code()), status))?;
    Ok(())
}

/// The request of a node, if it is for no name of another node of the rotation.
fn to_sign(
    rotation: &Rotation,
    node: &str,
    shown: &ShowCertificateResponse,
) -> Result<ServerRequest, Failure> {
    let request = sign::read(node, shown)?;
    sign::Others::of(&rotation.ways).check(node, &request)?;
    Ok(request)
}

/// Shows the steps that are left, and changes nothing.
async fn plan(global: &Global, rotation: &Rotation, client: &ClientFile) -> Result<(), Failure> {
    let mut facts: (_, BTreeMap<MachineName, Fact>) =
        (client.fact(rotation)?, look::all(global, rotation).await?);
    loop {
        let step = step::next(facts.0, &facts.1);
        match &step {
            Step::Done => return Ok(()),
            Step::Wait(nodes) => {
                return tell(global, "then", &format!("waits for {}", in_words(nodes)));
            }
            Step::Client(change) => tell(global, "client configuration", client_words(*change))?,
            Step::Node(name, change) => tell(global, name.as_str(), node_words(*change))?,
        }
        facts = step::after(facts, &step);
    }
}

fn client_words(change: ClientChange) -> &'static str {
    match change {
        ClientChange::TrustBoth => "trusts both authorities",
        ClientChange::ShowNew => "has a certificate of the new authority",
        ClientChange::TrustNewAlone => "trusts the new authority alone",
    }
}

fn node_words(change: NodeChange) -> &'static str {
    match change {
        NodeChange::Accept => "accepts the new authority",
        NodeChange::Issue => "belongs to the new authority, and accepts the old one",
        NodeChange::Sign => "has its certificate, signed here",
        NodeChange::Drop => "accepts the old authority no more",
    }
}

fn tell(global: &Global, who: &str, what: &str) -> Result<(), Failure> {
    global.output.show(
        || format!("{who}: {what}"),
        || json!({ "who": who, "step": what }),
    )
}

fn tell_the_end(global: &Global, folder: &Folder, rotation: &Rotation) -> Result<(), Failure> {
    let left: Vec<&str> = rotation.left.iter().map(MachineName::as_str).collect();
    let authority = folder.file(AUTHORITY).display().to_string();
    let before = folder.file(BEFORE).display().to_string();
    global.output.show(
        || {
            let behind = match left.is_empty() {
                true => String::new(),
                false => format!("\nleft with the old authority: {}; {before} reaches them", left.join(", ")),
            };
            format!("rotated: the new authority and its key are in {authority} (keep it secret, and give it to gen config and fleet sign from now on){behind}")
        },
        || json!({ "authority": authority, "left": left, "before": before }),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_rotation_signs_for_no_name_of_another_node() {
        let way = |endpoint: &str| Way {
            endpoints: vec![endpoint.to_owned()],
            node: None,
        };
        let ways = [("lamp-1", way("10.0.0.1")), ("lamp-2", way("10.0.0.2"))];
        let authority = CertificateAuthority::generate(SystemTime::now()).unwrap();
        let rotation = Rotation {
            context: String::new(),
            ways: ways
                .map(|(name, way)| (MachineName::from(name), way))
                .into(),
            left: Default::default(),
            old: String::new(),
            new: Pair::of(&authority),
            client: Pair::of(&authority),
            valid_for: instar_rollout::Seconds(60),
            has_ended: false,
        };
        let key = instar_pki::PrivateKey::generate().unwrap();
        for (asked, is_signed) in [("10.0.0.1", true), ("10.0.0.2", false), ("LAMP-2", false)] {
            let names = ["lamp-1", asked].map(instar_pki::SubjectName::from);
            let shown = ShowCertificateResponse {
                csr: instar_pki::request_for_server(&key, &names).unwrap(),
                ..ShowCertificateResponse::default()
            };
            let request = to_sign(&rotation, "lamp-1", &shown);
            assert_eq!(request.is_ok(), is_signed, "{asked}");
        }
    }

    #[test]
    fn the_command_waits_for_nodes_that_are_away_or_busy() {
        use FailureKind::{Failed, NotAuthorized, Refused, TimedOut, Unreachable};
        let busy = "did not take the machine config: the machine is busy: the boot has been running for 8 s";
        for (kind, words, expected) in [
            (Unreachable, "", true),
            (TimedOut, "", true),
            (NotAuthorized, "", true),
            (Refused, busy, true),
            (Refused, "did not take the machine config: line 3", false),
            (Failed, busy, false),
        ] {
            assert_eq!(passes(&Failure::new(kind, words)), expected, "{words}");
        }
    }
}
